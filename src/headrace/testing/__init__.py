"""Shipped test tools: the pytest fixture, faulty files, oracles, conformance suites."""
