"""The parts of an archive that need no Spark: typed values, files, the ledger."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.errors import ConfigError
from headrace.spark.lake import Table, TableError, arrow_table, verify
from headrace.spark.lake.files import PartWriter, folder
from headrace.spark.lake.ledger import ArchivedRange, ends, merged, metadata_of
from headrace.spark.lake.place import Place
from headrace.spark.lake.rows import RECORD, by_date, read_report, table_schema, write_range
from headrace.spark.lake.typed import read_objects

KIND = pa.struct([("id", pa.int64()), ("who", pa.string())])


def records(offsets: list[int], times_ms: list[int] | None = None) -> pa.RecordBatch:
    times = times_ms or [0] * len(offsets)
    rows = [
        {"topic": "t", "partition": 0, "offset": offset, "timestamp": time * 1000, "timestampType": 0, "value": b"v"}
        for offset, time in zip(offsets, times, strict=True)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=RECORD)


def archive(path: Path, spans: list[tuple[int, int, list[int]]]) -> Table:
    """A table of ranges: start, end, and the offsets that hold a record."""
    table = Table(path)
    table.ensure(table_schema(RECORD, None), ["date"])
    for number, (start, end, offsets) in enumerate(spans):
        report = write_range(table.place, [records(offsets)], ("t", 0, start, end), RECORD, None)
        span, files = read_report(report)
        assert table.commit(files, transaction=("q", number), metadata=metadata_of([span]))
    return table


# values


def test_every_value_gives_one_row() -> None:
    values = [b'{"id":1,"who":"a"}', None, b"x", b'{"id":"1"}', b'{"id":1}{"id":2}', b' {"id":2} \n', b"{}", b"[1]"]
    data, reasons = read_objects(pa.array(values, pa.binary()), KIND)
    assert [None if row is None else row["id"] for row in data.to_pylist()] == [
        1,
        None,
        None,
        None,
        None,
        2,
        None,
        None,
    ]
    assert [bool(reason) for reason in reasons.to_pylist()] == [False, False, True, True, True, False, False, True]


json_values = st.one_of(
    st.none(),
    st.binary(max_size=8),
    st.builds(lambda number: json.dumps({"id": number}).encode(), st.integers(-(2**62), 2**62)),
    st.builds(lambda text: json.dumps({"who": text}).encode(), st.text(max_size=5)),
    st.sampled_from(
        [b"{", b"}", b'{"id":', b"1}", b'{"who":"}', b'{"}', b'{"id":1}\n{"id":2}', b"{}{}", b'{"id":1.5}']
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(json_values, max_size=12))
def test_a_value_is_read_as_if_it_stood_alone(values: list[bytes | None]) -> None:
    together = read_objects(pa.array(values, pa.binary()), KIND)
    for index, value in enumerate(values):
        alone = read_objects(pa.array([value], pa.binary()), KIND)
        assert together[0][index].as_py() == alone[0][0].as_py()
        assert (together[1][index].as_py() is None) == (alone[1][0].as_py() is None)


# files


def test_records_are_split_by_their_day() -> None:
    batch = records([0, 1, 2, 3], [0, 86_400_000, 5, -1])
    found = {values[0][1]: piece.column("offset").to_pylist() for values, piece in by_date(batch)}
    assert found == {"1970-01-01": [0, 2], "1970-01-02": [1], "1969-12-31": [3]}


def test_a_time_that_no_calendar_has_is_kept_under_the_last_day() -> None:
    batch = records([0], [1 << 52])
    assert [values for values, _ in by_date(batch)] == [(("date", "9999-12-31"),)]


@pytest.mark.parametrize("time_ms", [1_790_000_000_000_000, 1 << 52, -(1 << 52), 253_402_300_800_000])
def test_a_time_that_no_calendar_has_does_not_stop_an_archive(tmp_path: Path, time_ms: int) -> None:
    """A producer that takes microseconds for milliseconds is not rare."""
    table = Table(tmp_path)
    table.ensure(table_schema(RECORD, None), ["date"])
    report = write_range(table.place, [records([0, 1], [0, time_ms])], ("t", 0, 0, 2), RECORD, None)
    span, files = read_report(report)
    table.commit(files, metadata=metadata_of([span]))
    table.compact()
    assert arrow_table(tmp_path, ["offset"]).num_rows == 2
    assert verify(str(tmp_path), deep=True).holds


def test_statistics_never_hide_a_row(tmp_path: Path) -> None:
    """Readers leave out files by their statistics: one value without a bound makes its column one without bounds."""
    schema = pa.schema([("who", pa.string()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])
    writer = PartWriter(Place.of(tmp_path), schema)
    far = 1 << 60
    for who, at, number in (("m", 1, 5), ("z" * 99, far, None), (None, None, 7), ("a", 2, 6)):
        writer.add((), pa.record_batch([[who], pa.array([at], schema.field("at").type), [number]], schema=schema))
    (part,) = writer.close()
    assert (part.least, part.most) == ({"n": 5}, {"n": 7})


def test_many_days_at_once_keep_few_files_open(tmp_path: Path) -> None:
    days = [day * 86_400_000 for day in range(40)] * 2
    table = Table(tmp_path)
    table.ensure(table_schema(RECORD, None), ["date"])
    report = write_range(
        table.place, [records([i], [day]) for i, day in enumerate(days)], ("t", 0, 0, 80), RECORD, None
    )
    span, files = read_report(report)
    table.commit(files, metadata=metadata_of([span]))
    assert span.rows == 80 and sorted(arrow_table(tmp_path)["offset"].to_pylist()) == list(range(80))
    assert verify(str(tmp_path)).holds


def test_partition_values_are_safe_in_a_path() -> None:
    assert folder((("a", "x/../y"), ("b", None))) == "a=x%2F..%2Fy/b=__HIVE_DEFAULT_PARTITION__/"


def test_files_under_odd_partition_values_are_found_again(tmp_path: Path) -> None:
    from headrace.spark.lake.options import LakeOptions
    from headrace.spark.lake.snapshot import Snapshot, read

    table = Table(tmp_path)
    schema = pa.schema([("n", pa.int64()), ("shop", pa.string())])
    table.ensure(schema, ["shop"])
    writer = PartWriter(table.place, schema.remove(1))
    shops = ["New York", "50%", "a/b", "ö=?#", "100%25"]
    for number, shop in enumerate(shops):
        writer.add((("shop", shop),), pa.record_batch([[number]], names=["n"]))
    table.commit(writer.close())
    pieces = Snapshot(LakeOptions(str(tmp_path))).slices(0, len(shops))
    rows = [row for piece in pieces for batch in read(table.place, piece, schema) for row in batch.to_pylist()]
    assert sorted((row["n"], row["shop"]) for row in rows) == list(enumerate(shops))
    assert {table.place.path(path) for path in table.paths()} == set(table.files())


def test_a_file_that_the_driver_cannot_see_is_not_committed(tmp_path: Path) -> None:
    table = archive(tmp_path, [(0, 2, [0, 1])])
    writer = PartWriter(table.place, RECORD)
    writer.add((("date", "1970-01-01"),), records([2]))
    (part,) = writer.close()
    (tmp_path / part.path).unlink()
    with pytest.raises(TableError, match="where all machines see it"):
        table.commit([part])
    assert arrow_table(tmp_path).num_rows == 2


# commits and the ledger


def test_a_transaction_is_committed_once(tmp_path: Path) -> None:
    table = archive(tmp_path, [(0, 2, [0, 1])])
    assert not table.commit([], transaction=("q", 0))
    assert table.commit([], transaction=("other", 0))
    assert table.open().version() == 2


def test_the_ledger_outlives_the_log(tmp_path: Path) -> None:
    spans = [(start, start + 10, list(range(start, start + 10))) for start in range(0, 200, 10)]
    table = archive(tmp_path, spans)
    before = table.ranges()
    for _ in range(20):  # so many that its files are merged
        table.fold()
        table.commit([], metadata={})
    table.fold()
    assert len(list((tmp_path / "_headrace" / "ranges").iterdir())) < 20
    assert list(merged(table.ranges())) == list(merged(before)) == [ArchivedRange("t", 0, 0, 200, 200)]
    for path in (tmp_path / "_headrace" / "ranges").iterdir():
        assert not path.name.endswith(".tmp")
    assert verify(str(tmp_path)).holds


def test_a_crash_in_the_middle_of_a_fold_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = archive(tmp_path, [(start, start + 1, [start]) for start in range(30)])
    expected = list(merged(table.ranges()))

    def no_delete(self: Place, relative: str) -> None:
        raise OSError("killed")

    monkeypatch.setattr(Place, "delete", no_delete)
    for _ in range(40):
        table.commit([], metadata={})
        try:
            table.fold()
        except OSError:
            break
    else:
        pytest.fail("it never merged")
    assert list(merged(table.ranges())) == expected


range_lists = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 5)), max_size=20)


@settings(deadline=None)
@given(range_lists)
def test_merging_ranges_loses_no_offset_and_no_row(sizes: list[tuple[int, int]]) -> None:
    ranges, at = [], 0
    for size, rows in sizes:
        ranges.append(ArchivedRange("t", 0, at, at + size, rows))
        at += size
    found = list(merged(ranges))
    assert sum(each.rows for each in found) == sum(rows for _, rows in sizes)
    assert ends(found) == ends(ranges)
    assert len(found) <= 1


def test_ranges_with_a_hole_between_are_not_merged() -> None:
    apart = [ArchivedRange("t", 0, 0, 5, 5), ArchivedRange("t", 0, 6, 9, 3)]
    assert list(merged(apart)) == apart


def test_a_range_without_records_is_archived_too(tmp_path: Path) -> None:
    table = archive(tmp_path, [(0, 5, [0, 3]), (5, 9, []), (9, 10, [9])])
    proof = verify(str(tmp_path)).partitions[0]
    assert proof.faults == () and (proof.rows, proof.gaps) == (3, 7)
    assert table.ends() == {("t", 0): 10}


def test_vacuum_does_not_touch_what_a_running_archive_may_need(tmp_path: Path) -> None:
    table = archive(tmp_path, [(0, 1, [0])])
    with pytest.raises(ConfigError, match="an hour"):
        table.vacuum(keep_hours=0.5)
    orphan = tmp_path / "date=1970-01-01" / "young.parquet"
    orphan.write_bytes(b"")
    assert table.vacuum() == []
    assert orphan.exists()


def test_a_table_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="there is no table at"):
        Table(tmp_path / "none").describe()


def test_two_writers_of_one_query_cannot_both_commit(tmp_path: Path) -> None:
    """An older driver that woke up late: its commit is refused by the table itself."""
    from deltalake import CommitProperties, Transaction
    from deltalake.exceptions import DeltaError

    table = archive(tmp_path, [(0, 1, [0])])
    stale: Any = table.open()
    table.commit([], transaction=("q", 1))
    properties = CommitProperties(app_transactions=[Transaction("q", 1)])
    with pytest.raises(DeltaError):
        stale.create_write_transaction([], "append", stale.schema(), ["date"], commit_properties=properties)


def test_two_archives_of_one_table_never_add_an_offset_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second commits in the very moment between the first one's look and its commit."""
    from headrace.spark.lake import archive as archives

    table = archive(tmp_path, [(0, 2, [0, 1])])

    def report(topic: str, start: int) -> str:
        return write_range(table.place, [records([start])], (topic, 0, start, start + 1), RECORD, None)

    look, rivals = archives._check_order, [report("other", 0), report("t", 2)]

    def looks(*given: Any) -> None:
        look(*given)
        if rivals:
            archives.commit(table, [rivals.pop(0)], (f"rival-{len(rivals)}", 0))

    monkeypatch.setattr(archives, "_check_order", looks)
    with pytest.raises(TableError, match="ends at offset 3 of t-0, but the next batch starts at 2"):
        archives.commit(table, [report("t", 2)], ("first", 0))
    archives.commit(table, [report("t", 3)], ("first", 1))
    assert table.ends() == {("t", 0): 4, ("other", 0): 1}
    assert arrow_table(tmp_path).num_rows == 5


def test_the_ledger_of_a_slow_archive_outlives_the_log(tmp_path: Path) -> None:
    """Once in a while delta-rs deletes commits that are older than a month: what they say must be kept before."""
    from headrace.spark.lake import archive as archives

    table = archive(tmp_path, [])
    while table.open().version() < 60:
        for path in (tmp_path / "_delta_log").iterdir():
            os.utime(path, (0, 0))
        start = table.ends().get(("t", 0), 0)
        text = write_range(table.place, [records([start])], ("t", 0, start, start + 1), RECORD, None)
        archives.commit(table, [text], ("q", start))
        if start == 10:
            table.compact()  # folds at an odd moment
    assert len(list((tmp_path / "_delta_log").glob("*.json"))) < 30, "else this shows nothing"
    assert list(merged(table.ranges())) == [ArchivedRange("t", 0, 0, 59, 59)]


# upkeep


def test_small_files_are_joined_when_there_are_enough(tmp_path: Path) -> None:
    table = archive(tmp_path / "t", [(start, start + 2, [start, start + 1]) for start in range(0, 16, 2)])
    assert len(table.files()) == 8
    assert table.tidy(at_least=9) is None and len(table.files()) == 8
    found = table.tidy(at_least=8)
    assert found is not None and (found.files_before, found.files_after) == (8, 1)
    proof = verify(str(tmp_path / "t"))
    assert proof.holds and proof.partitions[0].rows == 16
    assert table.ends() == {("t", 0): 16}
    assert table.is_committed(("q", 7)) and not table.is_committed(("q", 8))
    assert table.tidy(at_least=2) is None


def test_only_the_day_with_the_most_small_files_is_touched(tmp_path: Path) -> None:
    table = Table(tmp_path / "t")
    table.ensure(table_schema(RECORD, None), ["date"])
    day_ms = 86_400_000
    for number, day in enumerate([0, 1, 1, 1, 0]):
        batch = records([number], [day * day_ms])
        span, files = read_report(write_range(table.place, [batch], ("t", 0, number, number + 1), RECORD, None))
        table.commit(files, transaction=("q", number), metadata=metadata_of([span]))
    assert table.tidy(at_least=3) is not None
    assert [part[:2] for part in table.describe().partitions] == [("date=1970-01-01", 2), ("date=1970-01-02", 1)]
    assert verify(str(tmp_path / "t")).holds


def test_a_file_that_is_large_enough_is_left_alone(tmp_path: Path) -> None:
    table = archive(tmp_path / "t", [(start, start + 1, [start]) for start in range(4)])
    assert table.tidy(at_least=2, target_bytes=64) is None and len(table.files()) == 4


def test_an_empty_table_needs_no_upkeep(tmp_path: Path) -> None:
    assert archive(tmp_path / "t", []).tidy(at_least=2) is None


def test_an_archive_looks_only_when_it_is_worth_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.spark.lake.archive import Archived, Upkeep

    looks: list[int] = []
    table = Table(tmp_path / "t")
    monkeypatch.setattr(Table, "tidy", lambda self, *, at_least: looks.append(at_least))
    upkeep = Upkeep(table, 4)
    for number in range(9):
        upkeep.after(Archived(number, 1, 1, 1, 100))
    assert looks == [4, 4, 4]  # at once, and then after every fourth file
    Upkeep(table, 0).after(Archived(0, 1, 1, 1, 100))
    assert len(looks) == 3


# other formats than JSON

AVRO = (
    '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": "string"}]}'
)


def avro(number: int, who: str) -> bytes:
    import io

    import fastavro

    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, json.loads(AVRO), {"id": number, "who": who})
    return buffer.getvalue()


def test_avro_values_get_typed_columns(tmp_path: Path) -> None:
    from headrace.spark.lake.archive import DATA, DECODER, TypedValues, data_type
    from headrace.spark.lake.typed import read_by

    (tmp_path / "order.avsc").write_text(AVRO)
    options = TypedValues.of_file(tmp_path / "order.avsc", "avro").options()
    kind = data_type(options[DATA])
    assert kind is not None
    read = read_by(TypedValues.parse(options[DECODER]).decoder())
    data, reasons = read(pa.array([avro(1, "a"), None, b"", avro(2, "b")], pa.binary()), kind)
    assert data.to_pylist() == [{"id": 1, "who": "a"}, None, None, {"id": 2, "who": "b"}]
    assert [bool(each) for each in reasons.to_pylist()] == [False, False, True, False]
    assert data.type == kind
    nothing, none = read(pa.array([None], pa.binary()), kind)
    assert nothing.to_pylist() == [None] and none.to_pylist() == [None]
    table = Table(tmp_path / "t")
    table.ensure(table_schema(RECORD, kind), ["date"])
    batch = records([0, 1])
    batch = batch.set_column(batch.schema.get_field_index("value"), "value", pa.array([avro(7, "x"), b""], pa.binary()))
    span, files = read_report(write_range(table.place, [batch], ("t", 0, 0, 2), RECORD, kind, read))
    table.commit(files, transaction=("q", 0), metadata=metadata_of([span]))
    rows = arrow_table(tmp_path / "t", ["data", "data_error"]).to_pylist()
    assert rows[0] == {"data": {"id": 7, "who": "x"}, "data_error": None}
    assert rows[1]["data"] is None and rows[1]["data_error"]


def test_protobuf_travels_as_text(tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2

    from headrace.spark.lake.archive import TypedValues, data_type

    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    message.field.add(name="id", number=1, type=3, label=1)
    files = descriptor_pb2.FileDescriptorSet(file=[file])
    (tmp_path / "order.desc").write_bytes(files.SerializeToString())
    values = TypedValues.of_file(tmp_path / "order.desc", "protobuf", "shop.Order")
    assert TypedValues.parse(values.text()) == values
    assert data_type(values.options()["archive.data"]) == pa.struct([("id", pa.int64())])


def test_a_schema_that_is_not_there_is_named(tmp_path: Path) -> None:
    from headrace.spark.lake.archive import TypedValues

    with pytest.raises(ConfigError, match=r"cannot read schema .*nowhere\.avsc"):
        TypedValues.of_file(tmp_path / "nowhere.avsc", "avro")
    with pytest.raises(ConfigError, match="not an Avro schema|Avro schema of a record"):
        TypedValues('{"type": "map"}', "avro").options()
