"""kcat: the command line that everybody has (librdkafka of the distribution, often an old one)."""

from __future__ import annotations

import json
import shutil
import subprocess
import time

import pytest

KCAT = shutil.which("kcat") or shutil.which("kafkacat")

pytestmark = [
    pytest.mark.process,
    pytest.mark.timeout(300),
    pytest.mark.skipif(KCAT is None, reason="kcat is not installed"),
]

QUICK = ("-X", "fetch.wait.max.ms=50", "-X", "topic.metadata.refresh.interval.ms=500")
PATIENT = ("-m", "60")  # with metadata, in seconds


def kcat(headrace, *args: str, stdin: bytes = b"", check: bool = True) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(
        [str(KCAT), "-b", headrace.bootstrap_servers, *QUICK, *PATIENT, *args],
        input=stdin,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert not check or done.returncode == 0, done.stderr.decode()
    return done


def read(headrace, topic: str, *args: str) -> list[dict]:
    """The whole topic, as kcat's JSON envelopes."""
    done = kcat(headrace, "-C", "-t", topic, "-e", "-q", "-J", *args)
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("acks", ["0", "1", "-1"])
def test_what_is_produced_is_consumed_in_order(headrace, acks):
    topic = headrace.topic()
    lines = [f"line {n}" for n in range(500)]
    kcat(headrace, "-P", "-t", topic, "-X", f"acks={acks}", stdin="\n".join(lines).encode())
    found, deadline = read(headrace, topic), time.monotonic() + 60
    while len(found) < len(lines) and acks != "-1":  # what nobody waited for may be visible a moment later
        assert time.monotonic() < deadline, f"{len(found)} records"
        found = read(headrace, topic)
    assert [each["payload"] for each in found] == lines


def test_an_idempotent_producer_works(headrace):
    topic = headrace.topic()
    kcat(headrace, "-P", "-t", topic, "-X", "enable.idempotence=true", stdin=b"a\nb\nc")
    assert [each["payload"] for each in read(headrace, topic)] == ["a", "b", "c"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_comes_back(headrace, codec):
    topic = headrace.topic()
    lines = [f"{codec} {n} " * 10 for n in range(300)]
    done = kcat(
        headrace, "-P", "-t", topic, "-z", codec, "-X", "linger.ms=50", stdin="\n".join(lines).encode(), check=False
    )
    if b"not supported" in done.stderr or b"Unsupported" in done.stderr:
        pytest.skip(f"this kcat was built without {codec}")
    assert done.returncode == 0, done.stderr
    assert [each["payload"] for each in read(headrace, topic)] == lines
    assert [each["offset"] for each in read(headrace, topic, "-o", "120")] == list(range(120, 300))


def test_keys_values_and_headers_come_back_as_they_were(headrace):
    topic = headrace.topic()
    kcat(headrace, "-P", "-t", topic, "-K", ":", "-Z", "-H", "a=1", "-H", "a=2", stdin=b"key:value\nempty:\n:no key")
    first, second, third = read(headrace, topic)
    assert (first["key"], first["payload"], first["headers"]) == ("key", "value", ["a", "1", "a", "2"])
    assert (second["key"], second["payload"]) == ("empty", None)
    assert (third["key"], third["payload"]) == (None, "no key")


def test_a_large_message_passes_and_a_larger_one_is_refused(headrace, tmp_path):
    topic = headrace.topic(configs={"max.message.bytes": "950000"})
    large, larger = tmp_path / "large", tmp_path / "larger"
    large.write_bytes(b"x" * 900_000)
    larger.write_bytes(b"x" * 960_000)
    kcat(headrace, "-P", "-t", topic, str(large))
    assert len(read(headrace, topic)[0]["payload"]) == 900_000
    refused = kcat(headrace, "-P", "-t", topic, "-X", "message.max.bytes=3000000", str(larger), check=False)
    assert b"too large" in refused.stderr.lower()


def test_offsets_are_found_by_time(headrace):
    topic = headrace.topic()
    kcat(headrace, "-P", "-t", topic, stdin=b"a\nb")
    at = read(headrace, topic)[0]["ts"]
    assert kcat(headrace, "-Q", "-t", f"{topic}:0:{at}").stdout.decode().split() == [topic, "[0]", "offset", "0"]
    assert kcat(headrace, "-Q", "-t", f"{topic}:0:-1").stdout.decode().split()[-1] == "2"
    assert kcat(headrace, "-Q", "-t", f"{topic}:0:-2").stdout.decode().split()[-1] == "0"


def test_metadata_lists_brokers_and_topics(headrace):
    topic = headrace.topic(partitions=3)
    found = json.loads(kcat(headrace, "-L", "-J", "-t", topic).stdout)
    assert [each["name"] for each in found["brokers"]] == [headrace.bootstrap_servers]
    assert [each["partition"] for each in found["topics"][0]["partitions"]] == [0, 1, 2]


def test_a_topic_comes_into_being_when_it_is_produced_to(headrace):
    topic = headrace.name("auto")
    kcat(headrace, "-P", "-t", topic, stdin=b"first")
    assert [each["payload"] for each in read(headrace, topic)] == ["first"]


def test_a_group_goes_on_where_it_stopped(headrace):
    topic, group = headrace.topic(partitions=2), headrace.group()
    quick = ("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=10000", "-X", "heartbeat.interval.ms=200")
    kcat(headrace, "-P", "-t", topic, stdin=b"\n".join(b"%d" % n for n in range(50)))
    first = kcat(headrace, "-G", group, *quick, "-q", "-e", topic).stdout.split()
    kcat(headrace, "-P", "-t", topic, stdin=b"more\nand more")
    second = kcat(headrace, "-G", group, *quick, "-q", "-c", "2", topic)
    assert sorted(map(int, first)) == list(range(50))
    assert sorted(second.stdout.decode().splitlines()) == ["and more", "more"]
