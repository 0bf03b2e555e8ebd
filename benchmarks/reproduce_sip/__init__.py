"""The simulations of the SiP paper, repeated."""
