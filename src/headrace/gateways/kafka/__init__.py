"""The Kafka door: frames in, answers out, in order."""
