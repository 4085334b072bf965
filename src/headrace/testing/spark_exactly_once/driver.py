"""The process that is killed: a driver of Spark with some flows, until it is told that no more records will come.

Rules:
- It knows nothing of blows and of what must come out. Whatever goes wrong ends the process with 1; a file in the
  history's folder ends it well, after the last record.
- Sessions are those of the product. A pipeline is run by its runner, which restarts queries by itself.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from headrace.spark.pipeline.config import load
from headrace.spark.pipeline.runner import Runner
from headrace.spark.session import spark_session
from headrace.testing.spark_exactly_once.flows import COPIES, SOURCE, document

ENOUGH: Final = "enough"  # the file
_LOOK_SECONDS: Final = 0.1


class Orders(NamedTuple):
    """What a driver is told."""

    folder: str
    bootstrap: str
    flows: list[str]
    per_batch: int
    master: str
    conf: dict[str, str]
    transform: str  # module:function, which takes and gives a frame (key, value); or nothing


def copy(spark: Any, orders: Orders, delivery: str) -> Any:
    """A query from topic to topic."""
    frame = (
        spark.readStream.format("headrace")
        .option("kafka.bootstrap.servers", orders.bootstrap)
        .option("subscribe", SOURCE)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", orders.per_batch)
        .load()
        .select("key", "value")
    )
    if delivery == "exactly_once_partitioned":
        frame = frame.repartition(3, "key")  # repeats itself, in another order
    if orders.transform:
        module, _, name = orders.transform.partition(":")
        frame = getattr(importlib.import_module(module), name)(frame)
    staged = {"stageAboveBytes": "4096"} if delivery == "exactly_once" else {}
    return (
        frame.writeStream.format("headrace")
        .option("kafka.bootstrap.servers", orders.bootstrap)
        .option("topic", delivery)
        .option("delivery", delivery)
        .options(**staged)
        .option("checkpointLocation", f"{orders.folder}/{delivery}/checkpoint/copy")
        .start()
    )


def pipeline(spark: Any, orders: Orders, flow: str) -> Runner:
    folder = Path(orders.folder, flow)
    folder.mkdir(exist_ok=True)
    (folder / "pipeline.yml").write_text(yaml.safe_dump(document(flow, orders.bootstrap, orders.per_batch)))
    return Runner(load(folder), folder, spark)


class Watch(threading.Thread):
    """Ends the process when a copy fails; sees to the end when no more records will come."""

    def __init__(self, spark: Any, orders: Orders, copies: list[Any]) -> None:
        super().__init__(daemon=True)
        self._spark = spark
        self._orders = orders
        self._copies = copies
        self.done = threading.Event()
        self.runner: Runner | None = None

    def run(self) -> None:
        while not (Path(self._orders.folder, ENOUGH).exists() and self._all_is_read()):
            for query in self._copies:
                if not query.isActive:
                    _give_up(str(query.exception() or "a query ended by itself"))
            time.sleep(_LOOK_SECONDS)
        self.done.set()
        if self.runner is not None:
            self.runner.stop_asked = True

    def _all_is_read(self) -> bool:
        """A pipeline's query may just be dead: its runner starts it again."""
        active = list(self._spark.streams.active)
        if len(active) < len(self._orders.flows):
            return False
        try:
            for query in active:
                query.processAllAvailable()
        except Exception:  # whatever a query died of
            return False
        return all(query.isActive for query in active)


def drive(orders: Orders) -> None:
    spark = spark_session("headrace-history", orders.master, orders.conf, log_file=f"{orders.folder}/spark.log")
    copies = [copy(spark, orders, flow) for flow in orders.flows if flow in COPIES]
    watch = Watch(spark, orders, copies)
    pipelines = [flow for flow in orders.flows if flow not in COPIES]
    assert len(pipelines) <= 1, "a runner wants the main thread, where Spark knows its session"
    if pipelines:
        watch.runner = pipeline(spark, orders, pipelines[0])
    watch.start()
    if watch.runner is not None:
        watch.runner.run()
    watch.done.wait()
    for query in copies:
        query.stop()


def _give_up(reason: str) -> None:
    print(reason, file=sys.stderr, flush=True)
    os._exit(1)  # whatever hangs is killed by the history


def main() -> None:
    try:
        drive(Orders(**json.loads(sys.argv[1])))
    except BaseException:
        _give_up(traceback.format_exc())
    os._exit(0)


if __name__ == "__main__":
    main()
