"""The parameter server on one host, beside plain TCP and the figures of ps-lite."""
