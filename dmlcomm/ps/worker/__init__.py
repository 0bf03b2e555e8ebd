"""A worker's side: `client` is what users have; the other modules are what it needs."""
