"""``dmlcomm plan``: predicted times of collectives on a network, and plan files for jobs."""
