from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.spark.ranges import OffsetRange, available, from_json, limited, tasks, to_json

places = st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5))
spans = st.dictionaries(places, st.tuples(st.integers(0, 10_000), st.integers(0, 5_000)), min_size=1)


@settings(deadline=None)
@given(st.dictionaries(places, st.integers(0, 1 << 60)))
def test_offsets_survive_the_checkpoint(offsets):
    assert from_json(to_json(offsets)) == offsets


def test_offsets_are_written_like_those_of_the_kafka_connector():
    assert to_json({("t", 1): 5, ("t", 0): 3}) == {"t": {"0": 3, "1": 5}}


@settings(deadline=None)
@given(spans, st.integers(1, 10_000))
def test_a_limit_is_kept_and_starves_no_partition(spans, most):
    start = {place: low for place, (low, _) in spans.items()}
    end = {place: low + size for place, (low, size) in spans.items()}
    found = limited(start, end, most)
    assert set(found) == set(end)
    assert all(start[place] <= found[place] <= end[place] for place in end)
    assert all(found[place] > start[place] for place in end if end[place] > start[place])
    assert available(start, found) <= max(most, 0) + len(spans)
    if available(start, end) <= most:
        assert found == end


def test_a_limit_is_split_in_proportion():
    start = {("t", 0): 0, ("t", 1): 100}
    assert limited(start, {("t", 0): 900, ("t", 1): 200}, 100) == {("t", 0): 90, ("t", 1): 110}


@settings(deadline=None)
@given(spans, st.none() | st.integers(1, 40), st.none() | st.integers(1, 500))
def test_tasks_cover_every_offset_once_and_in_order(spans, min_partitions, max_records):
    ranges = [OffsetRange(*place, low, low + size) for place, (low, size) in spans.items()]
    found = tasks(ranges, min_partitions, max_records)
    assert all(each.size > 0 for each in found)
    if max_records is not None:
        assert all(each.size <= max_records for each in found)
    for whole in ranges:
        position = whole.start
        for piece in found:
            if piece[:2] == whole[:2]:
                assert piece.start == position
                position = piece.end
        assert position == whole.end


def test_only_large_partitions_are_split_to_reach_min_partitions():
    found = tasks([OffsetRange("t", 0, 0, 1000), OffsetRange("t", 1, 0, 10)], 5, None)
    assert [each.size for each in found if each.partition == 1] == [10]
    assert [each.size for each in found if each.partition == 0] == [250] * 4
