"""Topics in Spark: the data source `format("headrace")`. PySpark is imported here and nowhere else.

It knows nothing of the broker: it speaks to any Kafka, by the bytes of `headrace.wire`.
"""
