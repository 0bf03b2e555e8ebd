"""Random operations under random faults, for minutes or hours: `make soak`."""
