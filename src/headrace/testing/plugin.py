"""The pytest plugin: a `headrace` fixture, one broker per session, fresh names per test."""
