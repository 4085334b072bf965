"""`headrace serve` as a process: how it starts, refuses, stops and comes back."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from headrace.core.errors import ErrorCode
from headrace.testing.peer import Peer
from headrace.testing.process import BrokerProcess
from headrace.wire.batch import build

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]


def admin_of(broker: BrokerProcess) -> AdminClient:
    return AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})


def create_topic(broker: BrokerProcess, name: str) -> None:
    admin = admin_of(broker)  # must live until the answer is there
    admin.create_topics([NewTopic(name, 1)])[name].result(30)


def finish(broker: BrokerProcess) -> tuple[int, str, str]:
    """Run a broker that is expected to end by itself: exit code, stdout, stderr."""
    done = subprocess.run(broker.command(), capture_output=True, text=True, timeout=90, check=False)
    return done.returncode, done.stdout, done.stderr


def only_line(text: str) -> str:
    lines = text.strip().splitlines()
    assert len(lines) == 1, text
    return lines[0]


def test_a_second_broker_on_the_same_directory_is_refused_in_one_line(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        code, out, err = finish(BrokerProcess(tmp_path / "data"))
        assert code != 0
        assert out == ""
        assert "in use by another broker" in only_line(err)
        create_topic(broker, "still-there")


def test_a_port_in_use_is_named_in_one_line(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = finish(BrokerProcess(tmp_path / "data", port=port))
    assert code == 2
    assert out == ""
    assert str(port) in only_line(err)


@pytest.mark.parametrize(
    "flags",
    [("--no-such-flag", "1"), ("--port", "many"), ("--flush", "sometimes"), ("--config", "not/there.yaml")],
    ids=str,
)
def test_a_bad_flag_is_named_in_one_line(tmp_path: Path, flags: tuple[str, str]):
    code, out, err = finish(BrokerProcess(tmp_path / "data", *flags))
    assert code == 2
    assert out == ""
    line = only_line(err)
    assert flags[0] in line
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(tmp_path: Path, number: signal.Signals):
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker, "t")
        assert broker.stop(number) == 0
        assert "Traceback" not in broker.log_tail()


def test_stopping_under_load_loses_no_answer(tmp_path: Path):
    """Whatever was acknowledged before SIGTERM, or while it was stopping, is there afterwards, once."""
    acknowledged: dict[int, int] = {}
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker, "t")
        client = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
        )

        def delivered(error, message) -> None:
            assert error is None, error
            acknowledged[message.offset()] = int(message.value())

        sent = 0
        begun = time.monotonic()
        while time.monotonic() < begun + 1.0 or (not acknowledged and time.monotonic() < begun + 30.0):
            if len(client) < 500:
                client.produce("t", f"{sent}", on_delivery=delivered)
                sent += 1
            client.poll(0.0005)
        assert acknowledged
        assert broker.stop() == 0
        client.poll(0.2)
        broker.start()
        assert client.flush(90) == 0
        assert acknowledged == {number: number for number in range(sent)}
        reader = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
        assert reader.get_watermark_offsets(TopicPartition("t", 0), timeout=30) == (0, sent)
        reader.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restart_keeps_topics_configs_offsets_and_ids(tmp_path: Path, end: str):
    with BrokerProcess(tmp_path / "data") as broker:
        admin = admin_of(broker)
        admin.create_topics([NewTopic("kept", 3, config={"retention.ms": "4242000"}), NewTopic("gone", 1)])[
            "kept"
        ].result(30)
        admin.delete_topics(["gone"])["gone"].result(30)
        client = Producer({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        for number in range(10):
            client.produce("kept", f"{number}", partition=1)
        assert client.flush(30) == 0
        member = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0})
        member.commit(offsets=[TopicPartition("kept", 1, 6, "six")], asynchronous=False)
        member.close()
        with Peer(broker.bootstrap_servers) as peer:
            before = peer.call(3, 12, {"topics": None})
        if end == "stop":
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()
        with Peer(broker.bootstrap_servers) as peer:
            after = peer.call(3, 12, {"topics": None})
            assert after.cluster_id == before.cluster_id
            assert {(t.name, t.topic_id, len(t.partitions)) for t in after.topics} == {
                (t.name, t.topic_id, len(t.partitions)) for t in before.topics
            }
        admin = admin_of(broker)
        [found] = [
            future.result(30)
            for future in admin.describe_configs([ConfigResource(ResourceType.TOPIC, "kept")]).values()
        ]
        assert found["retention.ms"].value == "4242000"
        member = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0})
        [place] = member.committed([TopicPartition("kept", 1)], timeout=30)
        assert (place.offset, place.metadata) == (6, "six")
        assert member.get_watermark_offsets(TopicPartition("kept", 1), timeout=30) == (0, 10)
        member.close()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_batch_that_is_retried_after_a_restart_is_in_the_log_once(tmp_path: Path, end: str):
    with BrokerProcess(tmp_path / "data") as broker:
        create_topic(broker, "t")

        def produce(peer: Peer, data: bytes):
            rows = [{"index": 0, "records": data}]
            request = {"acks": -1, "timeout": 60_000, "topic_data": [{"name": "t", "partition_data": rows}]}
            return peer.call(0, 9, request).responses[0].partition_responses[0]

        def new_id(peer: Peer) -> int:
            wanted = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1, "transactional_id": None}
            return peer.call(22, 4, wanted).producer_id

        with Peer(broker.bootstrap_servers) as peer:
            producer_id = new_id(peer)
            batches = [
                build(
                    [(b"k", b"v")] * 2, timestamp_ms=1, producer_id=producer_id, producer_epoch=0, base_sequence=number
                )
                for number in (0, 2, 4, 6)
            ]
            assert [produce(peer, each).base_offset for each in batches[:3]] == [0, 2, 4]
        if end == "stop":
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()
        with Peer(broker.bootstrap_servers) as peer:
            for number in (0, 1, 2):
                row = produce(peer, batches[number])
                assert (row.error_code, row.base_offset) == (ErrorCode.none, 2 * number)
            gap = build([(b"k", b"v")], timestamp_ms=1, producer_id=producer_id, producer_epoch=0, base_sequence=99)
            assert produce(peer, gap).error_code == ErrorCode.out_of_order_sequence_number
            assert produce(peer, batches[3]).base_offset == 6
            assert new_id(peer) > producer_id


def test_health_and_metrics_are_served(tmp_path: Path):
    with BrokerProcess(tmp_path / "data") as broker:
        assert broker.http_url
        for path in ("/healthz", "/readyz", "/metrics"):
            with urllib.request.urlopen(broker.http_url + path, timeout=30) as answer:
                assert answer.status == 200


def test_its_log_is_lines_of_json(tmp_path: Path):
    with BrokerProcess(tmp_path / "data", "--log-level", "debug") as broker:
        with Peer(broker.bootstrap_servers) as peer:
            peer.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
            assert peer.is_closed()
        assert broker.stop() == 0
        lines = [line for line in broker.log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
        assert any("HTTP" in json.dumps(json.loads(line)) for line in lines), broker.log_tail()
