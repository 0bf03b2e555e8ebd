"""``dmlcomm regroup``: which circuits bring the servers of a job together, and what that gains."""
