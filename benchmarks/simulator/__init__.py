"""Scenarios of ``dmlcomm simulate``, played in the lab, too."""
