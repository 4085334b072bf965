"""Load by a real client: confluent-kafka (librdkafka) in as many processes as it takes.

A producer hands over lists of messages and flushes at the end; what arrived is read from the broker's end offsets
afterwards, so that no callback per message slows the client down.
"""

from __future__ import annotations

from typing import Any

from headrace.testing.load.crew import LoadError, Start, Tally, now

CHUNK = 1_000
FLUSH_SECONDS = 60.0


def produce(
    start: Start,
    *,
    bootstrap_servers: str,
    topic: str,
    partitions: list[int],
    value_bytes: int,
    seconds: float,
    properties: dict[str, Any],
) -> Tally:
    """Produce as fast as the client can for `seconds`, then wait until all of it is acknowledged."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "acks": "all",
            "linger.ms": 5,
            "batch.size": 1_000_000,
            "batch.num.messages": 100_000,
            "queue.buffering.max.messages": 200_000,
            "queue.buffering.max.kbytes": 262_144,
            **properties,
        }
    )
    producer.list_topics(topic, timeout=10)
    value = b"x" * value_bytes
    chunks = {index: [{"value": value} for _ in range(CHUNK)] for index in partitions}
    batched = hasattr(producer, "produce_batch")
    start()
    begun = now()
    deadline = begun + seconds
    sent = turn = 0
    while now() < deadline:
        index = partitions[turn % len(partitions)]
        taken = _batch(producer, topic, chunks[index], index) if batched else _each(producer, topic, value, index)
        sent += taken
        if taken < CHUNK:
            producer.poll(0.002)
        else:
            turn += 1
    left = producer.flush(FLUSH_SECONDS)
    if left:
        raise LoadError(f"{left} messages were not acknowledged within {FLUSH_SECONDS:.0f} s")
    return Tally(sent, sent * value_bytes, now() - begun)


def _batch(producer: Any, topic: str, messages: list[dict[str, Any]], partition: int) -> int:
    try:
        return int(producer.produce_batch(topic, messages, partition=partition))
    except BufferError:
        return 0


def _each(producer: Any, topic: str, value: bytes, partition: int) -> int:
    """For confluent-kafka before 2.12, which has no batches."""
    for count in range(CHUNK):
        try:
            producer.produce(topic, value, partition=partition)
        except BufferError:
            return count
    return CHUNK


def consume(
    start: Start, *, bootstrap_servers: str, topic: str, partitions: list[int], seconds: float, group: str
) -> Tally:
    """Read from the beginning for `seconds`, or until everything is read."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.message.max.bytes": 8_000_000,
            "queued.max.messages.kbytes": 65_536,
            "queued.min.messages": 1_000_000,
            "fetch.queue.backoff.ms": 5,  # the default stops fetching for a second whenever the queue is full
        }
    )
    consumer.list_topics(topic, timeout=10)
    start()
    begun = now()
    deadline = begun + seconds
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in partitions])
    done = size = 0
    ended: set[int] = set()
    while now() < deadline and len(ended) < len(partitions):
        for message in consumer.consume(10_000, 0.1):
            error = message.error()
            if error is None:
                done += 1
                size += len(message)
            elif error.name() == "_PARTITION_EOF":
                ended.add(message.partition() or 0)
            else:
                raise LoadError(f"the consumer was told {error}")
    elapsed = now() - begun
    consumer.close()
    return Tally(done, size, elapsed)


def end_to_end(start: Start, *, bootstrap_servers: str, topic: str, value_bytes: int, seconds: float) -> Tally:
    """One message at a time from `produce` to `poll`, through one producer and one consumer of this process."""
    from confluent_kafka import OFFSET_END, Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 0})
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, OFFSET_END)])
    value = b"x" * value_bytes
    deadline = now() + 10.0
    while consumer.poll(0.2) is None:  # until the consumer follows the end
        if now() > deadline:
            raise LoadError("the consumer never saw a message")
        producer.produce(topic, value, partition=0)
        producer.poll(0)
    producer.flush(10)
    while consumer.poll(0.3) is not None:
        pass
    start()
    begun = now()
    latencies = []
    while now() < begun + seconds:
        before = now()
        producer.produce(topic, value, partition=0)
        message = None
        while message is None:
            producer.poll(0)
            message = consumer.poll(5.0)
            if message is None and now() - before > 10.0:
                raise LoadError("a message did not arrive within 10 s")
        latencies.append(now() - before)
    elapsed = now() - begun
    producer.flush(10)
    consumer.close()
    return Tally(len(latencies), len(latencies) * value_bytes, elapsed, tuple(latencies))
