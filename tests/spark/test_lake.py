"""Archives: every record once, whatever happens, and readable by every engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa

from headrace.spark.lake import Archive, Table, TableError, arrow_table, duckdb_table, polars_table, read_table, verify
from headrace.spark.lake.files import PartWriter
from headrace.spark.lake.rows import RECORD

COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")


def finish(start: Callable[[], Any]) -> None:
    """Run a query to its end. A machine that is too busy to start a Python process in ten seconds gets another try."""
    from pyspark.errors import StreamingQueryException

    for attempt in range(4):
        query = start()
        try:
            assert query.awaitTermination(500)
            return
        except StreamingQueryException as error:
            if attempt == 3 or "failed to connect back" not in str(error):
                raise
        finally:
            query.stop()


class Desk:
    """An archive of one topic, run to its end on demand."""

    def __init__(self, spark: Any, bootstrap: str, topic: str, folder: Path) -> None:
        self._spark = spark
        self.path = str(folder / "table")
        self.checkpoint = folder / "checkpoint"
        options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "kafka.group.id": f"archive-{topic}"}
        self.archive = Archive(options, self.path, str(self.checkpoint), name=f"archive-{topic}")

    @property
    def table(self) -> Table:
        return Table(self.path)

    def run(self, **changes: Any) -> None:
        options = {**self.archive.options, **changes.pop("options", {})}
        archive = replace(self.archive, options=options, **changes)
        finish(lambda: archive.start(self._spark, once=True))

    def rows(self) -> list[tuple[Any, ...]]:
        """In the form of `Kafka.rows`."""
        found = arrow_table(self.path, COLUMNS).to_pylist()
        for row in found:
            row["timestamp"] = int(row["timestamp"].timestamp() * 1000 + 0.5)
            row["headers"] = (
                None if row["headers"] is None else tuple((each["key"], each["value"]) for each in row["headers"])
            )
        return sorted((tuple(row[name] for name in COLUMNS) for row in found), key=lambda row: row[3:5])


@pytest.fixture
def desk(spark: Any, kafka: Any, tmp_path: Path) -> Callable[[str], Desk]:
    return lambda topic: Desk(spark, kafka.bootstrap, topic, tmp_path)


@pytest.mark.basic
def test_an_archive_holds_what_a_plain_consumer_reads(kafka: Any, desk: Callable[[str], Desk]) -> None:
    topic = kafka.topic(2, retention_ms="-1")
    kafka.produce(topic, [{"value": b"%d" % i, "key": b"k", "headers": [("a", b"1"), ("b", None)]} for i in range(500)])
    kafka.produce(topic, [{"value": None, "key": b"gone"}, b"", b"\xff\x00"], partition=1, codec="zstd")
    kafka.produce(topic, [{"value": b"old", "timestamp": 86_400_000 * day} for day in (1, 2, 3)], partition=1)
    it = desk(topic)
    it.run(options={"maxOffsetsPerTrigger": "200"})
    kafka.produce(topic, [b"more"] * 7)
    it.run()
    assert it.rows() == kafka.rows(topic, 2)
    assert kafka.committed(f"archive-{topic}", topic, 2) == [507, 6]
    view = it.table.describe()
    assert [each[0] for each in view.partitions[:3]] == ["date=1970-01-02", "date=1970-01-03", "date=1970-01-04"]
    assert view.archived == ((topic, 0, 0, 507, 507), (topic, 1, 0, 6, 6))
    proof = verify(it.path, bootstrap=kafka.bootstrap, deep=True)
    assert proof.holds
    assert [(each.rows, each.gaps, each.compared) for each in proof.partitions] == [(507, 0, 507), (6, 0, 6)]


def test_a_batch_that_is_run_again_after_its_commit_adds_nothing(kafka: Any, desk: Callable[[str], Desk]) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"%d" % i for i in range(100)])
    it = desk(topic)
    it.run()
    for name in ("0", ".0.crc"):  # as if the driver had died between the table's commit and Spark's own
        (it.checkpoint / "commits" / name).unlink(missing_ok=True)
    kafka.produce(topic, [b"next"])
    it.run()
    assert it.rows() == kafka.rows(topic)
    assert verify(it.path).holds
    assert len(list(Path(it.path).rglob("*.parquet"))) == len(it.table.files())  # it did not even read again


def test_without_its_checkpoint_an_archive_goes_on_where_the_table_ends(
    kafka: Any, desk: Callable[[str], Desk]
) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b"])
    it = desk(topic)
    it.run()
    kafka.produce(topic, [b"c"])
    it.run(checkpoint=str(it.checkpoint) + "-new")
    assert it.rows() == kafka.rows(topic)


def test_a_checkpoint_that_is_ahead_of_the_table_is_refused(
    kafka: Any, desk: Callable[[str], Desk], tmp_path: Path
) -> None:
    from pyspark.errors import StreamingQueryException

    topic = kafka.topic()
    kafka.produce(topic, [b"a", b"b"])
    it = desk(topic)
    it.run()
    kafka.produce(topic, [b"c"])
    other = str(tmp_path / "other")
    Table(other).ensure(it.table.schema(), ["date"])
    writer = PartWriter(Table(other).place, RECORD)
    Table(other).commit(writer.close(), metadata={"headrace.ranges": f'[["{topic}",0,0,1,1]]'})
    with pytest.raises(StreamingQueryException, match="delete the checkpoint"):
        it.run(path=other)


def test_upkeep_changes_no_row_and_clears_what_failed_attempts_left(kafka: Any, desk: Callable[[str], Desk]) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"%d" % i for i in range(300)])
    it = desk(topic)
    it.run(options={"maxOffsetsPerTrigger": "100"}, data="id long")
    before, ranges = it.rows(), it.table.ranges()
    orphan = Path(it.table.files()[0]).with_name("orphan.parquet")
    orphan.write_bytes(b"half a file")
    assert it.rows() == before
    assert it.table.compact().files_after == 1
    assert str(orphan.relative_to(it.path)) in it.table.vacuum(keep_hours=0, force=True)
    assert not orphan.exists()
    assert len(list(Path(it.path).glob("date=*/*.parquet"))) == 1
    assert it.rows() == before and it.table.ranges() == ranges
    assert verify(it.path, bootstrap=kafka.bootstrap).holds


def test_verify_finds_what_is_missing_double_or_unknown(kafka: Any, desk: Callable[[str], Desk]) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"%d" % i for i in range(10)])
    it = desk(topic)
    it.run()
    row = arrow_table(it.path).slice(0, 1).to_pylist()[0]

    def add(offset: int, ranges: str = "[]") -> None:
        writer = PartWriter(it.table.place, RECORD)
        fields = {**row, "offset": offset}
        writer.add((("date", str(row["date"])),), pa.RecordBatch.from_pylist([fields], schema=RECORD))
        it.table.commit(writer.close(), metadata={"headrace.ranges": ranges})

    add(3)
    faults = verify(it.path).partitions[0].faults
    assert faults == (
        "offset 3 more than once",
        "offsets 0 to 9 held 10 records when they were read; the table has 11",
    )
    add(50)
    assert verify(it.path).partitions[0].faults[-1] == "1 rows have offsets that no commit speaks of"
    add(20, f'[["{topic}",0,20,21,1]]')
    assert "offsets 10 to 19 were never archived" in verify(it.path).partitions[0].faults
    kafka.produce(topic, [b"%d" % i for i in range(10, 15)])
    proof = verify(it.path, bootstrap=kafka.bootstrap)
    assert not proof.holds
    assert "the broker has offsets 10, 11, 12, 13, 14 which the table lacks" in proof.partitions[0].faults


def test_offsets_without_records_are_gaps_and_not_losses(kafka: Any, desk: Callable[[str], Desk]) -> None:
    from confluent_kafka import Producer

    topic = kafka.topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(60)
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        for number in range(5):
            producer.produce(topic, f"{outcome}{number}")
        producer.flush(60)  # or an abort would only forget what was never sent
        (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)(60)
    it = desk(topic)
    it.run()
    assert it.rows() == kafka.rows(topic)
    proof = verify(it.path, bootstrap=kafka.bootstrap).partitions[0]
    assert (proof.faults, proof.rows, proof.gaps, proof.end) == ((), 10, 8, 18)


def test_every_engine_reads_the_same_rows(spark: Any, kafka: Any, desk: Callable[[str], Desk]) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    topic = kafka.topic(2, retention_ms="-1")
    kafka.produce(topic, [{"value": b"%d" % i, "timestamp": 43_200_000 * (i + 1)} for i in range(50)])
    kafka.produce(topic, [{"value": b"x", "headers": {"a": b"b"}}], partition=1)
    it = desk(topic)
    it.run()
    expected = (51, 1, 27)
    query = "select count(*), sum(partition), count(distinct date) from t"
    read_table(spark, it.path).createOrReplaceTempView("t")
    assert tuple(spark.sql(query).first()) == expected
    assert read_table(spark, it.path).where("partition = 1").first().headers[0].value == b"b"
    t = duckdb_table(it.path)
    assert t is not None and duckdb.sql(query).fetchall() == [expected]
    frame = polars_table(it.path).collect()
    assert (frame.height, frame["partition"].sum(), frame["date"].n_unique()) == expected
    table = spark.read.format("headracelake").load(it.path)
    assert table.count() == 51 and table.schema == read_table(spark, it.path).schema


def test_decoded_values_stand_beside_the_raw_ones(kafka: Any, desk: Callable[[str], Desk]) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b'{"id": 1, "who": "ann"}', b"broken", {"value": None}, b'{"id": "one"}'])
    it = desk(topic)
    it.run(data="id long, who string")
    rows = arrow_table(it.path, ["value", "data", "data_error"]).to_pylist()
    assert [row["data"] for row in rows] == [{"id": 1, "who": "ann"}, None, None, None]
    assert [row["value"] for row in rows][1] == b"broken"
    assert [bool(row["data_error"]) for row in rows] == [False, True, False, True]


def test_a_table_sink_adds_a_batch_once(spark: Any, kafka: Any, tmp_path: Path) -> None:
    topic = kafka.topic()
    kafka.produce(topic, [b"%d" % i for i in range(20)])
    path, checkpoint = str(tmp_path / "sunk"), tmp_path / "checkpoint"

    def run() -> None:
        source = (
            spark.readStream.format("headrace")
            .options(**{"kafka.bootstrap.servers": kafka.bootstrap, "subscribe": topic, "startingOffsets": "earliest"})
            .load()
        )
        frame = source.selectExpr("cast(value as string) as word", "offset % 3 as third", "offset")
        writer = (
            frame.writeStream.format("headracelake")
            .option("checkpointLocation", str(checkpoint))
            .option("partitionBy", "third")
            .trigger(availableNow=True)
        )
        finish(lambda: writer.start(path))

    run()
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink(missing_ok=True)
    kafka.produce(topic, [b"more"])
    run()
    assert sorted(row.offset for row in read_table(spark, path).collect()) == list(range(21))
    assert Table(path).describe().partition_by == ("third",)
    with pytest.raises(TableError, match="has no column"):
        Table(path).ensure(pa.schema([("other", pa.int64())]), ["third"])


def test_a_table_is_played_in_portions(spark: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "numbers")
    for start in (0, 10):
        spark.range(start, start + 10, numPartitions=2).write.format("headracelake").mode("append").save(path)
    sizes: list[int] = []
    seen: list[int] = []

    def keep(frame: Any, batch_id: int) -> None:
        rows = [row.id for row in frame.collect()]
        sizes.append(len(rows))
        seen.extend(rows)

    writer = (
        spark.readStream.format("headracelake")
        .option("maxRowsPerTrigger", "8")
        .load(path)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    finish(writer.start)
    assert sizes == [8, 8, 4] and sorted(seen) == list(range(20))
