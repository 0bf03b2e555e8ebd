"""The ways that ``dmlcomm strategy`` ranks, played in the lab."""
