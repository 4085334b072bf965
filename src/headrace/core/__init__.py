"""The vocabulary: ids, errors, ports, limits, settings machinery. Imports nothing else of ours."""
