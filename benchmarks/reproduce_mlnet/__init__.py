"""MLNET's simulation, repeated."""
