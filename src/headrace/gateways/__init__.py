"""The doors. Each is a sans-I/O protocol and a small server onto the same service."""
