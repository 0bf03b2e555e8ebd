"""PyTorch's own distributed test suite, run on this backend: ``python -m tests.conformance``."""
