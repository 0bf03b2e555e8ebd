"""Messages and stubs of proto/dmlcomm_ps.proto; setup.py generates them when it builds."""
