"""The control plane of PSNet in a lab: ``dmlcomm psnet``."""
