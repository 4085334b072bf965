"""A task's reads against a real broker, without Spark."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest
from confluent_kafka import Producer

from headrace import Broker
from headrace.client.errors import ClientError
from headrace.core.errors import ErrorCode
from headrace.spark import fetch, link
from headrace.spark.cluster import Cluster
from headrace.spark.fetch import Fetcher
from headrace.spark.offsets import LostRecordsError
from headrace.spark.options import parse
from headrace.spark.task import Task

SCHEMA = pa.schema([("offset", pa.int64()), ("value", pa.binary())])


def options_of(bootstrap, **more):
    return parse({"kafka.bootstrap.servers": bootstrap, "subscribe": "unused", **more}, "batch")


def task_of(options, topic, start, end):
    (partition,) = (
        Cluster(options)
        .partitions(parse({"kafka.bootstrap.servers": "h:1", "subscribe": topic}, "batch").subscription)
        .values()
    )
    return Task(topic, 0, start, end, *partition)


def offsets_of(batches):
    return [offset for page in batches for offset in page["offset"].to_pylist()]


def numbers(start, stop):
    return [b"%d" % index for index in range(start, stop)]


@pytest.fixture
def topic(kafka):
    name = kafka.topic()
    kafka.produce(name, numbers(0, 10))
    return name


def test_a_range_is_read_and_no_more(kafka, topic):
    options = options_of(kafka.bootstrap)
    assert offsets_of(Fetcher(task_of(options, topic, 3, 7), SCHEMA, options).batches()) == [3, 4, 5, 6]


def test_small_fetches_give_the_same_records(kafka):
    topic = kafka.topic()
    for start in range(0, 200, 10):
        kafka.produce(topic, numbers(start, start + 10))
    options = options_of(kafka.bootstrap, **{"kafka.max.partition.fetch.bytes": "1"})
    assert offsets_of(Fetcher(task_of(options, topic, 5, 195), SCHEMA, options).batches()) == list(range(5, 195))


def test_a_process_keeps_its_connections(kafka, topic):
    options = options_of(kafka.bootstrap, **{"kafka.client.id": "keeps"})
    task = task_of(options, topic, 0, 10)
    list(Fetcher(task, SCHEMA, options).batches())
    ((kept,),) = [shelf for (_, client), shelf in link._idle.items() if client == "keeps"]
    list(Fetcher(task, SCHEMA, options).batches())
    assert link._idle[kept.address, "keeps"] == [kept]


def test_a_read_that_is_given_up_leaves_no_dirty_connection(kafka):
    topic = kafka.topic()
    for start in range(0, 50, 10):
        kafka.produce(topic, numbers(start, start + 10))
    options = options_of(kafka.bootstrap, **{"kafka.client.id": "quits", "kafka.max.partition.fetch.bytes": "1"})
    batches = Fetcher(task_of(options, topic, 0, 50), SCHEMA, options).batches()
    next(batches)
    batches.close()
    assert all(each.is_clean for (_, client), shelf in link._idle.items() if client == "quits" for each in shelf)
    assert offsets_of(Fetcher(task_of(options, topic, 0, 50), SCHEMA, options).batches()) == list(range(50))


def test_deleted_records_are_an_error_or_skipped(kafka, topic):
    kafka.trim(topic, 0, 4)
    strict = options_of(kafka.bootstrap)
    with pytest.raises(LostRecordsError, match="starts at 4 now: offsets 1 to 3 are gone"):
        list(Fetcher(task_of(strict, topic, 1, 10), SCHEMA, strict).batches())
    lenient = options_of(kafka.bootstrap, failOnDataLoss="false")
    assert offsets_of(Fetcher(task_of(lenient, topic, 1, 10), SCHEMA, lenient).batches()) == [4, 5, 6, 7, 8, 9]
    assert offsets_of(Fetcher(task_of(lenient, topic, 1, 3), SCHEMA, lenient).batches()) == []


@pytest.mark.parametrize("end", [15, 25])
def test_a_log_that_ends_too_early_is_an_error_or_read_to_its_end(kafka, topic, end):
    brief = {"kafka.fetch.max.wait.ms": "10", "kafkaConsumer.pollTimeoutMs": "100"}
    strict = options_of(kafka.bootstrap, **brief)
    with pytest.raises(LostRecordsError, match=f"offsets 10 to {end - 1} are gone"):
        list(Fetcher(task_of(strict, topic, 0, end), SCHEMA, strict).batches())
    lenient = options_of(kafka.bootstrap, failOnDataLoss="false", **brief)
    assert offsets_of(Fetcher(task_of(lenient, topic, 8, end), SCHEMA, lenient).batches()) == [8, 9]
    assert offsets_of(Fetcher(task_of(lenient, topic, 20, 25), SCHEMA, lenient).batches()) == []


@pytest.mark.parametrize("step", [0.06, 1.0])
def test_what_is_lost_is_told_however_late_the_clock_is_read(kafka, topic, monkeypatch, step):
    """Patience ends between two looks at the clock, or before the first answer."""
    options = options_of(kafka.bootstrap, **{"kafka.fetch.max.wait.ms": "10", "kafkaConsumer.pollTimeoutMs": "100"})
    task = task_of(options, topic, 0, 15)
    deleted = task_of(options, kafka.topic(), 0, 15)
    kafka.delete(deleted.topic)
    ticks = itertools.count()
    monkeypatch.setattr(fetch, "time", SimpleNamespace(monotonic=lambda: next(ticks) * step, sleep=time.sleep))
    with pytest.raises(LostRecordsError, match="offsets 10 to 14 are gone"):
        list(Fetcher(task, SCHEMA, options).batches())
    with pytest.raises(LostRecordsError, match="does not exist any more"):
        list(Fetcher(deleted, SCHEMA, options).batches())


def test_a_topic_made_anew_is_not_taken_for_the_old_one(kafka, topic):
    options = options_of(kafka.bootstrap)
    task = task_of(options, topic, 0, 10)
    kafka.delete(topic)
    kafka.topic(name=topic)
    kafka.produce(topic, numbers(0, 10))
    with pytest.raises(LostRecordsError, match="does not exist any more"):
        list(Fetcher(task, SCHEMA, options).batches())


def test_a_broker_that_does_not_know_a_topic_yet_is_asked_again(kafka, topic, monkeypatch):
    """A broker that has just started, or a leader that has moved: no reason to leave records out."""
    real, calls = fetch.read_answer, []

    def forgetful(version, data):
        calls.append(version)
        answer = real(version, data)
        codes = {1: ErrorCode.unknown_topic_id, 2: ErrorCode.offset_out_of_range}
        return answer._replace(error_code=codes.get(len(calls), answer.error_code))

    monkeypatch.setattr(fetch, "read_answer", forgetful)
    monkeypatch.setattr(fetch, "_SILENCE_MS", 120_000)  # a busy machine's silence is not the broker's
    options = options_of(kafka.bootstrap, failOnDataLoss="false")
    assert offsets_of(Fetcher(task_of(options, topic, 3, 10), SCHEMA, options).batches()) == list(range(3, 10))
    assert len(calls) >= 3


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("question", ["partitions", "offsets"])
def test_a_topic_that_is_deleted_while_its_offsets_are_looked_up_is_lost_too(
    kafka, topic, monkeypatch, question, strict
):
    brief = {"kafkaConsumer.pollTimeoutMs": "100", "failOnDataLoss": str(strict).lower()}
    options = options_of(kafka.bootstrap, **brief)
    fetcher = Fetcher(task_of(options, topic, 20, 25), SCHEMA, options)  # beyond its end
    real = getattr(Cluster, question)

    def late(*given):
        monkeypatch.undo()
        kafka.delete(topic)
        return real(*given)

    monkeypatch.setattr(Cluster, question, late)
    if strict:
        with pytest.raises(LostRecordsError, match="does not exist any more"):
            list(fetcher.batches())
    else:
        assert list(fetcher.batches()) == []


def test_a_deleted_topic_is_an_error_or_nothing(kafka, topic):
    brief = {"kafkaConsumer.pollTimeoutMs": "100"}
    strict, lenient = options_of(kafka.bootstrap, **brief), options_of(kafka.bootstrap, failOnDataLoss="false", **brief)
    task = task_of(strict, topic, 0, 10)
    kafka.delete(topic)
    with pytest.raises(LostRecordsError, match="does not exist any more"):
        list(Fetcher(task, SCHEMA, strict).batches())
    assert offsets_of(Fetcher(task, SCHEMA, lenient).batches()) == []


def test_a_broker_that_stays_away_is_told_in_a_sentence():
    options = options_of("127.0.0.1:1", **{"kafkaConsumer.pollTimeoutMs": "300"})
    task = Task("t", 0, 0, 10, ("127.0.0.1", 1))
    with pytest.raises(ClientError, match=r"cannot reach a broker at 127\.0\.0\.1:1"):
        list(Fetcher(task, SCHEMA, options).batches())


def test_a_broker_that_restarts_is_waited_for(kafka, tmp_path):
    with Broker(str(tmp_path / "data"), storage_flush="os") as broker:
        port = int(broker.bootstrap_servers.rpartition(":")[2])
        plain = type(kafka)(broker.bootstrap_servers)
        name = plain.topic(name="kept")
        for start in range(0, 50, 10):
            plain.produce(name, numbers(start, start + 10))
        options = options_of(broker.bootstrap_servers, **{"kafka.max.partition.fetch.bytes": "1"})
        batches = Fetcher(task_of(options, name, 0, 50), SCHEMA, options).batches()
        seen = offsets_of([next(batches)])
    with Broker(str(tmp_path / "data"), port=port, storage_flush="os"):
        seen += offsets_of(batches)
    assert seen == list(range(50))


def test_transactions_are_read_when_they_are_committed(kafka):
    topic = kafka.topic()
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions(60)
    for outcome in ("commit", "abort", "commit"):
        producer.begin_transaction()
        for index in range(3):
            producer.produce(topic, b"%s-%d" % (outcome.encode(), index), partition=0)
        producer.flush(60)  # or else an abort forgets what was not sent yet
        (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)(60)
    expected = [(row[4], row[1]) for row in kafka.rows(topic)]
    assert len(expected) == 6
    for more, count in (({}, 6), ({"kafka.isolation.level": "read_uncommitted"}, 9)):
        options = options_of(kafka.bootstrap, **more)
        # 12: three transactions of three records and a marker each; the range ends with a marker.
        found = pa.Table.from_batches(Fetcher(task_of(options, topic, 0, 12), SCHEMA, options).batches(), SCHEMA)
        assert found.num_rows == count
        if not more:
            assert list(zip(found["offset"].to_pylist(), found["value"].to_pylist(), strict=True)) == expected


def test_a_peer_that_does_not_speak_kafka_is_told():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            peer, _ = server.accept()
            peer.recv(1000)
            peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            peer.close()

        thread = threading.Thread(target=answer)
        thread.start()
        host, port = server.getsockname()
        with pytest.raises(Exception, match="frame of"):
            Cluster(options_of(f"{host}:{port}")).partitions(options_of(f"{host}:{port}").subscription)
        thread.join()
