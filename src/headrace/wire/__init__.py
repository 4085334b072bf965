"""Kafka bytes <-> objects: frames, headers, messages (over kio), record batches, hot encoders. No I/O."""
