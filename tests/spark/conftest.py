"""One Spark session per process, one broker, and what a plain consumer sees of a topic."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

pytest.importorskip("pyspark")
pytest.importorskip("numba")

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from headrace import Broker
from headrace.client import Connection, Groups

TOO_LATE = "Python worker failed to connect back"
ATTEMPTS = 3
OPEN_SECONDS = 60.0
_numbers = itertools.count()


# A short life: no second compiler, one small collector, and plans that are walked rather than compiled.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
QUICK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spark starts a process for every query: where others use the machine too, that takes its time."""
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent):
            continue
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
        if "quick" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.java)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Spark gives a new Python process ten seconds to call back, and no setting changes that: then, try again."""
    if not item.path.is_relative_to(Path(__file__).parent) or not isinstance(item, pytest.Function):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for _ in range(ATTEMPTS - 1):
        if any(each.failed and TOO_LATE in each.longreprtext for each in reports):
            item._initrequest()
            reports = runtestprotocol(item, log=False, nextitem=nextitem)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@pytest.fixture(scope="session")
def quick() -> dict[str, str]:
    """Settings for every session of these tests. Where there is no Java, they are skipped."""
    from headrace.core.errors import ConfigError
    from headrace.spark.java import java_home

    try:
        java_home()
    except ConfigError as error:
        pytest.skip(str(error))
    return QUICK


@pytest.fixture(scope="session")
def spark(quick: dict[str, str]) -> Iterator[Any]:
    from headrace.spark.session import spark_session

    session = spark_session("headrace-tests", "local[2,4]", quick)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def broker() -> Iterator[Broker]:
    with Broker(storage_retention_ms=-1) as running:  # tests like fixed times
        yield running


class Kafka:
    """A plain client of the broker under test."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def topic(self, partitions: int = 1, name: str = "", **configs: str) -> str:
        name = name or f"t{next(_numbers)}"
        # Some tests write old timestamps: retention must not take them away.
        config = {"retention.ms": "-1"} | {key.replace("_", "."): value for key, value in configs.items()}
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)
        return name

    def grow(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, partitions)])[topic].result(60)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(60)

    def trim(self, topic: str, partition: int, offset: int) -> None:
        """Delete records before an offset."""
        place = TopicPartition(topic, partition, offset)
        self.admin.delete_records([place])[place].result(60)

    def produce(self, topic: str, records: Any, *, codec: str = "none", partition: int = 0, **more: Any) -> None:
        """Records are values, or mappings as `Producer.produce` takes them. One batch for one call, if it fits."""
        producer = Producer({"bootstrap.servers": self.bootstrap, "compression.type": codec, "linger.ms": 20, **more})
        for record in records:
            fields = {"value": record} if not isinstance(record, dict) else record
            producer.produce(topic, **{"partition": partition, **fields})
        assert producer.flush(60) == 0

    def rows(self, topic: str, partitions: int = 1) -> list[tuple[Any, ...]]:
        """The topic as a plain consumer sees it, in the columns of the source with headers."""
        self._await_decided(topic, partitions)
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "plain",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
        found, left = [], set(range(partitions))
        while left:
            message = consumer.poll(60)
            assert message is not None, "the plain consumer waits in vain"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left.discard(message.partition())
                continue
            kind, timestamp_ms = message.timestamp()
            headers = None if message.headers() is None else tuple(message.headers())
            found.append(
                (
                    message.key(),
                    message.value(),
                    message.topic(),
                    message.partition(),
                    message.offset(),
                    timestamp_ms,
                    kind - 1,  # librdkafka counts from 1
                    headers,
                )
            )
        consumer.close()
        return sorted(found, key=lambda row: row[3:5])

    def _await_decided(self, topic: str, partitions: int) -> None:
        """A commit is answered before its markers are written. What is still open after a while, stays open."""
        levels = ("read_committed", "read_uncommitted")
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "plain"}
        clients = [Consumer({**settings, "isolation.level": level}) for level in levels]
        deadline = time.monotonic() + OPEN_SECONDS
        for place in (TopicPartition(topic, index) for index in range(partitions)):
            while time.monotonic() < deadline:
                stable, end = (client.get_watermark_offsets(place, 60)[1] for client in clients)
                if stable >= end:
                    break
                time.sleep(0.02)
        for client in clients:
            client.close()

    def marked(self, group: str) -> dict[tuple[str, int], int]:
        """What a group has committed, also in a transaction whose end was just answered."""
        found = Groups(Connection(self.bootstrap, timeout_s=60)).commits(group, stable=True)
        return {place: offset for place, (offset, _) in found.items()}

    def committed(self, group: str, topic: str, partitions: int = 1) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        found = consumer.committed([TopicPartition(topic, index) for index in range(partitions)], 60)
        consumer.close()
        return [each.offset for each in found]


@pytest.fixture(scope="session")
def kafka(broker: Broker) -> Kafka:
    return Kafka(broker.bootstrap_servers)


@pytest.fixture
def table(spark: Any, kafka: Kafka) -> Callable[..., Any]:
    """A batch read: `table(subscribe=..., startingOffsets=...)`."""

    def load(*, schema: str = "", **options: Any) -> Any:
        reader = spark.read.format("headrace").option("kafka.bootstrap.servers", kafka.bootstrap)
        if schema:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return load


class Stream:
    """A query into memory that can be stopped and started again on its checkpoint."""

    def __init__(self, spark: Any, bootstrap: str, checkpoint: Path) -> None:
        self._spark = spark
        self._bootstrap = bootstrap
        self.checkpoint = checkpoint

    def start(self, into: list[tuple[Any, ...]], *, available_now: bool = False, **options: Any) -> Any:
        """Rows (topic, partition, offset, value) are appended to `into`."""

        def keep(frame: Any, batch_id: int) -> None:
            into.extend(tuple(row) for row in frame.select("topic", "partition", "offset", "value").collect())

        reader = self._spark.readStream.format("headrace").option("kafka.bootstrap.servers", self._bootstrap)
        writer = reader.options(**options).load().writeStream.foreachBatch(keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        return (writer.trigger(availableNow=True) if available_now else writer).start()

    def drain(self, **options: Any) -> list[tuple[Any, ...]]:
        """Run once over what is there."""
        rows: list[tuple[Any, ...]] = []
        query = self.start(rows, available_now=True, **options)
        assert query.awaitTermination(500)
        return rows


@pytest.fixture
def stream(spark: Any, kafka: Kafka, tmp_path: Path) -> Stream:
    return Stream(spark, kafka.bootstrap, tmp_path / "checkpoint")
