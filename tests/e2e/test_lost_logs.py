"""A real broker whose logs, or whose whole directory, were lost, swapped, damaged or put back from an older copy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.storage.checked_lines import parse
from headrace.storage.directory import _parse, _render
from headrace.testing.ledger import CLIENT
from headrace.testing.process import BrokerProcess

pytestmark = [pytest.mark.process, pytest.mark.timeout(400)]

TOPIC = "orders"
OTHER = "others"


def produce(broker: BrokerProcess, count: int, topic: str = TOPIC) -> None:
    failures: list[object] = []
    producer = Producer({**CLIENT, "bootstrap.servers": broker.bootstrap_servers})
    for number in range(count):
        producer.produce(topic, b"%d" % number, on_delivery=lambda error, _: failures.append(error) if error else None)
    assert producer.flush(60) == 0
    assert failures == []


def count(broker: BrokerProcess, topic: str = TOPIC) -> int:
    client = Consumer({**CLIENT, "bootstrap.servers": broker.bootstrap_servers, "group.id": "g"})
    try:
        low, high = client.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        return int(high - low)
    finally:
        client.close()


def readiness(broker: BrokerProcess) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"{broker.http_url}/readyz", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def filled(data: Path) -> BrokerProcess:
    broker = BrokerProcess(data).start()
    admin = AdminClient({**CLIENT, "bootstrap.servers": broker.bootstrap_servers})
    for made in admin.create_topics([NewTopic(TOPIC, 1), NewTopic(OTHER, 1)]).values():
        made.result(60)
    produce(broker, 5)
    produce(broker, 7, OTHER)
    return broker


def log_of(data: Path, topic: str = TOPIC) -> Path:
    return data / "topics" / f"{topic}-0"


def missing(data: Path, backup: Path) -> None:
    shutil.rmtree(log_of(data))


def older(data: Path, backup: Path) -> None:
    shutil.rmtree(log_of(data))
    shutil.copytree(log_of(backup), log_of(data))


def swapped(data: Path, backup: Path) -> None:
    log_of(data).rename(data / "one")
    log_of(data, OTHER).rename(log_of(data))
    (data / "one").rename(log_of(data, OTHER))


def files_in(data: Path) -> dict[str, int]:
    return {str(path.relative_to(data)): path.stat().st_size for path in (data / "topics").rglob("*.log")}


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
@pytest.mark.parametrize("damage", [missing, older, swapped])
def test_a_lost_log_is_offline_with_a_sentence(
    tmp_path: Path, damage: Callable[[Path, Path], None], clean: bool
) -> None:
    data = tmp_path / "data"
    broker = filled(data)
    try:
        shutil.copytree(data, tmp_path / "backup")
        produce(broker, 5)
        broker.stop() if clean else broker.kill()
        damage(data, tmp_path / "backup")
        before = files_in(data)
        broker.start()
        status, told = readiness(broker)
        assert status == 503
        assert "headrace log accept DIR orders 0" in told
        assert "a partition is offline" in broker.log_tail(200)
        with pytest.raises(KafkaException):
            count(broker)
        if damage is not swapped:
            assert count(broker, OTHER) == 7
        broker.stop()
        assert {name: size for name, size in files_in(data).items() if TOPIC in name} == {
            name: size for name, size in before.items() if TOPIC in name
        }
    finally:
        broker.kill()


def test_a_loss_can_be_accepted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = filled(data)
    try:
        broker.stop()
        missing(data, data)
        subprocess.run([sys.executable, "-m", "headrace", "log", "accept", str(data), TOPIC, "0"], check=True)
        broker.start()
        assert readiness(broker)[0] == 200
        assert (count(broker), count(broker, OTHER)) == (0, 7)
        produce(broker, 3)
        broker.kill()
        broker.start()
        assert count(broker) == 3
    finally:
        broker.kill()


def as_an_older_release_left_it(data: Path) -> None:
    """Without a manifest, and with a file `owner` in each log's directory."""
    (data / "manifest").unlink()
    meta = _parse((data / "meta.json").read_bytes())
    del meta["manifest"]
    (data / "meta.json").write_bytes(_render(meta))
    for identity in (data / "topics").glob("*/identity"):
        document = parse(identity.read_bytes().rstrip())
        assert document is not None
        (identity.parent / "owner").write_bytes(UUID(document[0]).bytes)
        identity.unlink()


@pytest.mark.parametrize("name", ["identity", "owner"])
def test_a_flipped_bit_in_what_says_whose_a_log_is_costs_nothing(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    broker = filled(data)
    try:
        broker.kill()
        if name == "owner":
            as_an_older_release_left_it(data)
        path = log_of(data) / name
        content = bytearray(path.read_bytes())
        content[11] ^= 4
        path.write_bytes(content)
        broker.start()
        assert readiness(broker)[0] == 200
        assert count(broker) == 5
    finally:
        broker.kill()


def refusal(broker: BrokerProcess) -> str:
    process = broker.launch()
    assert process.wait(90) != 0
    broker.kill()
    return broker.log_tail(5)


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_an_older_copy_of_the_whole_directory_is_refused(tmp_path: Path, clean: bool) -> None:
    data = tmp_path / "data"
    broker = filled(data)
    try:
        shutil.copytree(data, tmp_path / "backup")
        produce(broker, 5)
        broker.stop() if clean else broker.kill()
        shutil.rmtree(data)
        shutil.copytree(tmp_path / "backup", data)
        before = files_in(data)
        told = refusal(broker)
        assert "is a copy, or was put back from one" in told and "--accept-restored" in told, told
        assert files_in(data) == before
        broker.flags = (*broker.flags, "--accept-restored")
        broker.start()
        assert count(broker) == 5, "the operator has accepted it"
    finally:
        broker.kill()


def test_a_metadata_journal_that_was_cut_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = filled(data)
    try:
        broker.stop()
        [journal] = (data / "metadata").glob("*.raft")
        content = journal.read_bytes()
        journal.write_bytes(content[: len(content) // 2])
        told = refusal(broker)
        assert "the metadata journal ends at entry" in told, told
        journal.write_bytes(content)
        broker.start()
        assert count(broker) == 5
    finally:
        broker.kill()


def test_a_manifest_that_is_gone_is_missed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    broker = filled(data)
    try:
        broker.kill()
        (data / "manifest").unlink()
        assert "has lost its manifest" in refusal(broker)
    finally:
        broker.kill()
