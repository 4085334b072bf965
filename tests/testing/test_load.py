"""The load's own arithmetic: what is counted, what is refused, what is shown together."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading

import pytest

from headrace.testing.load import raw
from headrace.testing.load.crew import LoadError, Tally, crew, percentile
from headrace.testing.load.results import Measured, document, markdown, rates, ratios, tables
from headrace.wire import batch
from headrace.wire.hot import ProducedPartition, produce_answer
from headrace.wire.messages import decode_request

TOPIC = "bench-x"


def produce_answers(count: int, code: int = 0) -> bytes:
    parts = produce_answer(9, [(TOPIC, None, [ProducedPartition(0, code, 7)])])
    body = b"".join((struct.pack(">i", 1), b"\x00", *parts))
    return (struct.pack(">i", len(body)) + body) * count


@pytest.fixture
def answers():
    return raw.ProduceAnswers(len(produce_answers(1)), 4 + 4 + 1 + 1 + 1 + len(TOPIC) + 1 + 4)


def test_whole_answers_are_counted_and_the_rest_is_kept(answers):
    received = bytearray(produce_answers(5)[:-3])
    assert answers.take(received) == 4
    received += produce_answers(1)[-3:]
    assert answers.take(received) == 1
    assert not received


def test_an_error_in_any_answer_ends_the_run(answers):
    received = bytearray(produce_answers(3) + produce_answers(1, code=56) + produce_answers(1))
    with pytest.raises(LoadError):
        answers.take(received)


def test_a_ready_made_request_is_a_right_one():
    records = batch.build(raw.values(3, 100), timestamp_ms=0)
    request = raw.produce_request(TOPIC, records)
    assert struct.unpack(">ihh", request[:8]) == (len(request) - 4, raw.PRODUCE, raw.PRODUCE_VERSION)
    body = request[4:]
    decoded = decode_request(raw.PRODUCE, raw.PRODUCE_VERSION, body, 8 + 2 + len("peer") + 1)
    assert decoded.topic_data[0].name == TOPIC
    assert bytes(decoded.topic_data[0].partition_data[0].records) == records
    assert [header.count for header in batch.check(records, max_batch_bytes=10_000)] == [3]


def test_the_pump_keeps_requests_in_flight_and_counts_answers(answers, monkeypatch):
    request = b"r" * 50
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        link, _ = server.accept()
        owed = b""
        with link, contextlib.suppress(OSError):  # the pump hangs up when its time is over, with answers under way
            while data := link.recv(65536):
                owed += data
                count, owed = len(owed) // len(request), owed[len(owed) // len(request) * len(request) :]
                link.sendall(produce_answers(count))

    thread = threading.Thread(target=serve)
    thread.start()
    host, port = server.getsockname()
    counted = [0]  # answers are the clock: a second that a busy machine steals must not end the pump

    def take(received: bytearray) -> int:
        counted[0] += (count := answers.take(received))
        return count

    monkeypatch.setattr(raw, "now", lambda: float(counted[0]))
    options = {"in_flight": 16, "connections": 1, "seconds": 100.0}
    tally = raw.pump(lambda: None, host=host, port=port, request=request, take=take, **options)
    thread.join()
    server.close()
    assert tally.done >= 100
    assert tally.bytes == tally.done * len(request)


def test_a_failing_load_process_is_reported_and_ended():
    with (
        pytest.raises(LoadError, match="closed|refused|Connection"),
        crew(raw.fetch, [{"host": "127.0.0.1", "port": 1, "requests": [b""], "seconds": 1.0}]) as go,
    ):
        go()


def test_rates_add_up_over_processes_that_ran_together():
    found = rates([Tally(100, 1_000_000, 2.0, (0.001,)), Tally(300, 3_000_000, 2.0, (0.003,))], cpu_s=0.4)
    assert found["requests_per_s"] == 200
    assert found["mb_per_s"] == 2
    assert found["cpu_us_per_request"] == pytest.approx(1000)
    assert found["p99_ms"] == pytest.approx(3)


def test_percentiles_are_values_that_were_measured():
    assert percentile(range(1, 101), 0.5) == 51
    assert percentile(range(1, 101), 0.99) == 100
    with pytest.raises(LoadError):
        percentile([], 0.5)


def test_durability_levels_never_share_a_table():
    rows = [
        Measured("headrace", "raw produce", "a", "cached", 100, requests_per_s=10),
        Measured("headrace", "raw produce", "a", "synced", 100, requests_per_s=4),
        Measured("redis", "raw produce", "a", "cached", 100, requests_per_s=5),
        Measured("redis", "raw produce", "a", "synced", 100, requests_per_s=8),
    ]
    assert [{row.level for row in group} for _, group in tables(rows)] == [{"cached"}, {"synced"}]
    assert [ratio for *_, ratio in ratios(rows)] == [2.0, 0.5]
    assert markdown(rows).count("| --- |") == 2
    assert len(document(rows, {})["results"]) == 4
