"""Headrace: a message broker that speaks Kafka and lives in a Python process."""
