"""The proxy does what it says; and idempotent and transactional producers survive it, once each and in order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace import Broker
from headrace.testing.peer import ClosedError, Peer
from headrace.testing.proxy import IDEMPOTENT, Faults, Proxy

pytestmark = [pytest.mark.process, pytest.mark.timeout(300)]

API_VERSIONS, PRODUCE, INIT_PRODUCER_ID = 18, 0, 22
BAD = Faults(lose_answer=0.03, delay_answer=0.05, lose_request=0.02, repeat=0.2, late=0.03, longest_delay_s=0.05)
BRISK = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 50,
    "retry.backoff.ms": 10,
    "retry.backoff.max.ms": 50,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}
COUNT = 2000  # records, at least
LIMIT = 10 * COUNT
ANY_PRODUCER = {"transactional_id": None, "transaction_timeout": 0}


@contextmanager
def behind(faults: Faults, seed: int = 3) -> Iterator[Proxy]:
    """A broker behind a proxy."""
    proxy = Proxy(Faults(), seed=seed)
    with Broker(kafka_advertised_port=proxy.port) as broker, proxy:
        proxy.upstream = "127.0.0.1", int(broker.bootstrap_servers.rpartition(":")[2])
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic("t", 2)])["t"].result(60)
        proxy.faults = faults
        yield proxy


def values(proxy: Proxy, partition: int) -> list[int]:
    """All committed values of a partition; nothing happens to this reader."""
    proxy.faults = Faults()
    settings = {"group.id": "audit", "isolation.level": "read_committed", "enable.partition.eof": True, "log_level": 0}
    client = Consumer({"bootstrap.servers": proxy.bootstrap_servers, **settings})
    client.assign([TopicPartition("t", partition, 0)])
    found: list[int] = []
    while (message := client.poll(60)) is not None:
        if message.error() is None:
            found.append(int(message.value()))
        else:
            assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            client.close()
            return found
    raise TimeoutError(f"no end after {len(found)} records")


def await_decided(proxy: Proxy, partition: int) -> None:
    """A commit is answered before its markers are written, and a reader of committed records ends before them."""
    proxy.faults = Faults()
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "group.id": "audit", "log_level": 0}
    levels = ("read_committed", "read_uncommitted")
    clients = [Consumer({**settings, "isolation.level": level}) for level in levels]
    deadline = time.monotonic() + 60
    while True:
        stable, end = (client.get_watermark_offsets(TopicPartition("t", partition), 60)[1] for client in clients)
        if stable >= end:
            break
        assert time.monotonic() < deadline, "a transaction stays open"
    for client in clients:
        client.close()


def was_bad(proxy: Proxy) -> bool:
    """Whether enough happened for the test to mean something. Slow machines make fewer, larger requests."""
    breaks = sum(proxy.counts[name] for name in ("lose_answer", "lose_request", "late"))
    return breaks >= 5 and proxy.counts["repeat"] >= 5


def goes_on(proxy: Proxy, sent: int) -> bool:
    """Whether a writer has not had enough yet."""
    return sent < COUNT or (not was_bad(proxy) and sent < LIMIT)


# -- the proxy itself


def test_without_faults_everything_gets_through():
    with behind(Faults()) as proxy, Peer(proxy.bootstrap_servers) as peer:
        for _ in range(100):
            assert peer.call(API_VERSIONS, 0).error_code == 0
        assert not +proxy.counts


def test_a_lost_answer_breaks_the_connection_after_the_request_was_served():
    with behind(Faults(lose_answer=1.0)) as proxy:
        with Peer(proxy.bootstrap_servers) as peer, pytest.raises(ClosedError):
            peer.call(INIT_PRODUCER_ID, 0, ANY_PRODUCER)
        proxy.faults = Faults()
        with Peer(proxy.bootstrap_servers) as peer:
            found = peer.call(INIT_PRODUCER_ID, 0, ANY_PRODUCER)
    assert found.producer_id > 0, "nobody was given the first producer id"


def test_a_lost_request_breaks_the_connection_before_it_is_served():
    with behind(Faults(lose_request=1.0)) as proxy:
        with Peer(proxy.bootstrap_servers) as peer, pytest.raises(ClosedError):
            peer.call(INIT_PRODUCER_ID, 0, ANY_PRODUCER)
        proxy.faults = Faults()
        with Peer(proxy.bootstrap_servers) as peer:
            found = peer.call(INIT_PRODUCER_ID, 0, ANY_PRODUCER)
    assert found.producer_id == 0


def test_delayed_answers_stay_in_order():
    with behind(Faults(delay_answer=0.5, longest_delay_s=0.01)) as proxy, Peer(proxy.bootstrap_servers) as peer:
        sent = [peer.send(API_VERSIONS, 0) for _ in range(50)]
        for correlation_id in sent:
            peer.receive(API_VERSIONS, 0, correlation_id)
        assert proxy.counts["delay_answer"]


@pytest.mark.parametrize("fault", ["repeat", "late"])
def test_a_plain_record_is_doubled_by_a_bad_network(fault: str):
    """Which shows that the tests below can fail."""
    with behind(Faults(**{fault: 0.2}, longest_delay_s=0.01)) as proxy:
        each_alone = {"linger.ms": 0, "batch.num.messages": 1}
        client = Producer({**BRISK, "bootstrap.servers": proxy.bootstrap_servers, **each_alone})
        for number in range(100):
            client.produce("t", b"%d" % number, partition=0)
            client.poll(0.002)
        assert client.flush(60) == 0
        deadline = time.monotonic() + 60
        while len(values(proxy, 0)) <= 100:
            assert time.monotonic() < deadline
        assert set(values(proxy, 0)) == set(range(100))


# -- producers


@pytest.mark.parametrize("seed", [1, 2])
def test_confluent_kafka_writes_once_and_in_order(seed: int):
    with behind(BAD, seed) as proxy:
        client = Producer(
            {
                **BRISK,
                "bootstrap.servers": proxy.bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 20,
            }
        )
        failures: list[KafkaError] = []
        sent = 0
        while goes_on(proxy, sent):
            client.produce(
                "t", b"%d" % sent, partition=sent % 2, on_delivery=lambda e, _: failures.append(e) if e else None
            )
            sent += 1
            client.poll(0.0005)
        assert client.flush(90) == 0
        assert failures == []
        for partition in range(2):
            assert values(proxy, partition) == list(range(partition, sent, 2))
        assert was_bad(proxy), proxy.counts


def test_confluent_kafka_commits_once_and_in_order():
    with behind(BAD) as proxy:
        settings = {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": "writer", "linger.ms": 0}
        client = Producer({**BRISK, **settings})
        client.init_transactions(120)
        expected = [number for number in range(150) if number % 4]
        for number in range(150):
            while not _transact(client, number, commit=bool(number % 4)):
                pass
        for partition in range(2):
            await_decided(proxy, partition)
            assert values(proxy, partition) == [number for number in expected for _ in range(3)]
        assert was_bad(proxy), proxy.counts


def _transact(client: Producer, number: int, *, commit: bool) -> bool:
    """One transaction; False if it had to be aborted."""
    client.begin_transaction()
    for _ in range(3):
        for partition in range(2):
            client.produce("t", b"%d" % number, partition=partition)
    while True:
        try:
            if commit:
                client.commit_transaction(120)
            else:
                # Kafka refuses to abort what its coordinator has not heard of, and librdkafka does not survive that.
                client.flush(120)
                client.abort_transaction(120)
            return True
        except KafkaException as error:
            if error.args[0].retriable():
                continue
            if not error.args[0].txn_requires_abort():
                raise
            client.abort_transaction(120)
            return not commit


def test_aiokafka_writes_once_and_in_order():
    aiokafka = pytest.importorskip("aiokafka", reason="aiokafka is not installed")

    async def write(proxy: Proxy) -> int:
        client = aiokafka.AIOKafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers, enable_idempotence=True, retry_backoff_ms=20, max_batch_size=500
        )
        await client.start()
        futures = []
        while goes_on(proxy, len(futures)):
            number = len(futures)
            futures.append(await client.send("t", b"%d" % number, partition=number % 2))
            if number % 20 == 0:
                await client.flush()
        await asyncio.gather(*futures)
        await client.stop()
        return len(futures)

    # It does not connect again by itself while it starts.
    with behind(BAD._replace(spared=frozenset({API_VERSIONS, 3}))) as proxy:
        sent = asyncio.run(asyncio.wait_for(write(proxy), 200))
        for partition in range(2):
            assert values(proxy, partition) == list(range(partition, sent, 2))
        assert was_bad(proxy), proxy.counts


def test_kafka_python_writes_once_and_in_order():
    kafka = pytest.importorskip("kafka", reason="kafka-python is not installed")
    with behind(BAD) as proxy:
        client = kafka.KafkaProducer(
            bootstrap_servers=proxy.bootstrap_servers,
            enable_idempotence=True,
            retry_backoff_ms=20,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=100,
        )
        futures = []
        while goes_on(proxy, len(futures)):
            number = len(futures)
            futures.append(client.send("t", b"%d" % number, partition=number % 2))
            if number % 20 == 0:
                client.flush(60)
        client.flush(60)
        for future in futures:
            future.get(30)
        client.close(timeout=2)
        for partition in range(2):
            assert values(proxy, partition) == list(range(partition, len(futures), 2))
        assert was_bad(proxy), proxy.counts


def test_only_what_can_be_told_apart_is_doubled_by_default():
    assert Faults().doubled == IDEMPOTENT == {PRODUCE}
