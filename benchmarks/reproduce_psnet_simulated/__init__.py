"""PSNet's evaluation at scale, simulated; see ``__main__``."""
