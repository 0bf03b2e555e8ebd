"""The local proxy in a lab, beside workers that talk to the server themselves."""
