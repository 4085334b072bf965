"""One module per Kafka API. `TABLE` is the only registration; ApiVersions is derived from it."""
