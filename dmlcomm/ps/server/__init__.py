"""A server: the control plane around the data path of the core. `server` puts it together."""
