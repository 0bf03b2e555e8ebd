"""``dmlcomm simulate``: jobs on a network, played flow by flow."""
