"""The experiments of the PSNet paper, in the lab; see ``__main__``."""
