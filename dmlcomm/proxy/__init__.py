"""The local proxy: workers of a host talk to it as to the parameter servers. See docs/proxy.md."""
