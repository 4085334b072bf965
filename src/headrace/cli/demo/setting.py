"""The pipeline of the demo, as a folder: the roll-up and the archive, in one `pipeline.yml` as anybody may write it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from headrace.cli.demo.day import CLICKS, ORDERS, PAYMENTS, SCHEMA

PER_HOUR, BROKEN, AGAIN = "orders-per-hour", "orders-broken", "payments-again"  # topics that Spark writes
ARCHIVE: Final = "lake/archive"
ANSWERS: Final = "answers.json"
DELAY: Final = "1 hour"  # more than orders are late: see day.py

PIPELINE: Final = f"""\
name: coffee
broker: {{broker}}
sources:
  orders:
    topic: {ORDERS}
    decode:                       # bytes become columns; what does not fit becomes a dead letter
      value: json
      schema: {SCHEMA}
      on_error: dlq
      dlq: {BROKEN}
    watermark: {{{{column: at, delay: {DELAY}}}}}      # orders may come this late
  everything:
    topics: [{ORDERS}, {PAYMENTS}, {CLICKS}]
transform:
  - name: per_hour
    sql: |
      select window.start as hour, city, count(*) as orders, sum(cents) as cents, sum(id) as id_sum
      from orders
      group by city, window(at, '1 hour')
sinks:
  - {{{{type: topic, from: per_hour, topic: {PER_HOUR}, key: city, delivery: exactly_once}}}}
  - {{{{type: archive, from: everything, path: {ARCHIVE}}}}}
trigger: {{{{interval: 1s}}}}
"""
# The demo is over before a JVM has warmed up: compile little, and share the cores with the broker.
_BRISK: Final = """\
spark:
  master: local[2]
  conf:
    spark.sql.shuffle.partitions: 1
    spark.sql.codegen.wholeStage: false
    spark.sql.codegen.factoryMode: NO_CODEGEN
    spark.driver.extraJavaOptions: -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData
"""


def write(folder: Path, broker: str) -> str:
    """Make the folder; the pipeline as people should read it."""
    text = PIPELINE.format(broker=broker)
    folder.mkdir(parents=True)
    (folder / "pipeline.yml").write_text(text + _BRISK, encoding="utf-8")
    return text
