"""Messages of proto/execution_trace.proto; setup.py generates them when it builds."""
