"""The experiments of the BML paper (NeurIPS 2018), repeated in the lab; see ``__main__``."""
