"""Spark, exactly once: queries whose driver, workers and broker are killed, and the rows counted in the end.

    python -m headrace.testing.spark_exactly_once                  20 histories, seeds 1 to 20
    python -m headrace.testing.spark_exactly_once --seed 7         one of them again

A history: a broker process on disk; a driver process with one or more flows from the topic `in`; SIGKILL of the driver,
of Python workers (those of tasks, of planning, and of commits) and of the broker, at moments that a seed chose, while
records keep coming. A driver that ends with an error is started again. Then every row must be where it belongs, once,
and nothing else. The seed gives the plan of a history; what the machine makes of it differs from run to run.

The flows (`flows`): both exactly-once deliveries of the sink, and pipelines that put misfits aside: beside a topic, and
beside a table.
"""
