"""What tickets bring, beside bounds, peers and bars; see ``__main__``."""
