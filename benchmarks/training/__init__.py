"""Batch completion time of real models between emulated hosts; see ``__main__``."""
