"""What hooks with fewer bytes bring, and cost; see ``__main__``."""
