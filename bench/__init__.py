"""Benchmarks of the repository: `python -m bench`. The load itself is in `headrace.testing.load`."""
