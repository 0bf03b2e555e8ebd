"""What several NICs per host bring, beside bounds, peers and bars; see ``__main__``."""
