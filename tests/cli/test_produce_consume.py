"""`headrace produce` and `headrace consume` against a broker: what goes in comes out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest


def test_values_keys_headers_and_times_arrive(online, headrace):
    topic = headrace.topic("plain")
    sent = online("produce", topic, "one", "two", "-k", "key", "-H", "a=1", "-H", "a=2", "--timestamp", "1700000000123")
    assert sent.out.splitlines() == [f"2 messages (12 B) to {topic}", "  partition 0: 2 at offset 0 to 1"]
    read = online("consume", topic, "--from-beginning", "--exit", "--json").json_lines
    assert [message["value"] for message in read] == ["one", "two"]
    assert read[0] == {
        "topic": topic,
        "partition": 0,
        "offset": 0,
        "timestamp": 1700000000123,
        "key": "key",
        "value": "one",
        "headers": {"a": ["1", "2"]},
    }


def test_stdin_is_one_message_per_line(online, headrace):
    topic = headrace.topic("lines")
    summary = online("produce", topic, "--json", stdin="a\n\nb\r\nc").json
    assert (summary["messages"], summary["bytes"], summary["failed"]) == (4, 3, 0)
    assert summary["partitions"]["0"] == {"messages": 4, "first_offset": 0, "last_offset": 3}
    assert online("consume", topic, "-e").out == "a\n\nb\nc\n"


def test_files_are_lines_or_whole(online, headrace, tmp_path):
    topic = headrace.topic("files")
    file = tmp_path / "input"
    file.write_bytes(b"x\ny\n")
    online("produce", topic, "--file", str(file))
    online("produce", topic, "--file", str(file), "--whole", "--key", "all")
    read = online("consume", topic, "-e", "--json").json_lines
    assert [message["value"] for message in read] == ["x", "y", "x\ny\n"]
    missing = online("produce", topic, "--file", str(tmp_path / "none"))
    assert missing.code == 1
    assert missing.err == f"headrace: {tmp_path / 'none'}: no such file or directory\n"


def test_a_separator_splits_key_and_value(online, headrace):
    topic = headrace.topic("split")
    online("produce", topic, "-K", ":", stdin="k1:v1\nk2:v:2\nnone\n")
    assert online("consume", topic, "-e", "--format", "%k|%v;").out == "k1|v1;k2|v:2;|none;"


def test_a_tombstone_is_a_null_value(online, headrace):
    topic = headrace.topic("null")
    online("produce", topic, "--null", "--key", "gone")
    (message,) = online("consume", topic, "-e", "--json").json_lines
    assert message["value"] is None
    assert message["key"] == "gone"


def test_a_topic_is_copied_through_json_lines(online, headrace):
    one, two = headrace.topic("one"), headrace.topic("two")
    online("produce", one, "text", "-H", "h=1", "-k", "k")
    online("produce", one, "--json-lines", stdin='{"value": {"base64": "/w=="}}\n{"key": null, "value": {"n": 1}}\n')
    dumped = online("consume", one, "-e", "--json")
    assert online("produce", two, "--json-lines", stdin=dumped.out).code == 0
    copied = online("consume", two, "-e", "--json").json_lines
    assert [{**message, "topic": one} for message in copied] == dumped.json_lines
    assert copied[1]["value"] == {"base64": "/w=="}
    assert copied[2]["value"] == '{"n":1}'


def test_a_bad_json_line_is_named(online, headrace):
    ran = online("produce", headrace.topic("bad"), "--json-lines", stdin='{"value": 1}\n{"valu": 1}\n')
    assert ran.code == 2
    assert "stdin line 2 has an unknown field 'valu'" in ran.err
    assert "sent without --json-lines" in ran.err


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_messages_arrive(online, headrace, codec):
    topic = headrace.topic(codec)
    online("produce", topic, "--compression", codec, stdin="word\n" * 100)
    assert online("consume", topic, "-e").out == "word\n" * 100


def test_what_is_too_large_is_counted_and_fails(online, headrace):
    topic = headrace.topic("small", configs={"max.message.bytes": "1000"})
    ran = online("produce", topic, "--json", stdin="x" * 5000 + "\nfine\n")
    assert ran.code == 1
    assert ran.json["failed"] >= 1
    assert "MSG_SIZE_TOO_LARGE" in ran.json["errors"]
    assert "not delivered" in ran.err


def test_partitions_are_chosen_on_both_sides(online, headrace):
    topic = headrace.topic("parts", partitions=3)
    for partition in range(3):
        online("produce", topic, f"p{partition}", "--partition", str(partition))
    assert online("consume", topic, "-e", "-p", "1").out == "p1\n"
    assert sorted(online("consume", topic, "-e", "-p", "0", "-p", "2").out.split()) == ["p0", "p2"]
    ran = online("consume", topic, "-e", "-p", "3")
    assert ran.code == 2
    assert f"topic {topic} has no partition 3; it has 0 to 2" in ran.err


def test_starts_and_ends(online, headrace):
    topic = headrace.topic("starts")
    for number in range(10):
        online("produce", topic, str(number), "--timestamp", str(1_700_000_000_000 + number * 1000), "-q")

    def read(*words: str) -> str:
        ran = online("consume", topic, "--exit", "--format", "%v", *words)
        assert ran.code == 0, ran.err
        return ran.out

    assert read() == "0123456789"
    assert read("--offset", "4") == "456789"
    assert read("--offset", "-3") == "789"
    assert read("--offset", "latest") == ""
    assert read("--tail", "2") == "89"
    assert read("--tail", "0") == ""
    assert read("--max", "3") == "012"
    assert read("--since", "2023-11-14T22:13:25Z") == "56789"
    assert read("--until", "2023-11-14T22:13:23Z") == "012"
    assert read("--since", "2023-11-14T22:13:22Z", "--until", "1700000004000") == "23"
    assert read("--since", "10m") == ""


def test_the_last_messages_are_the_last_over_all_partitions(online, headrace):
    topic = headrace.topic("tails", partitions=3)
    for number in range(9):
        stamp = str(1_700_000_000_000 + number)
        online("produce", topic, str(number), "-p", str(number % 3), "--timestamp", stamp)
    assert online("consume", topic, "-e", "--tail", "4", "--format", "%v").out == "5678"


def test_raw_and_columns(online, headrace):
    topic = headrace.topic("columns")
    online("produce", topic, "v", "-k", "k", "-H", "a=b", "--timestamp", "1700000000123")
    assert online("consume", topic, "-e", "--raw").out == "v"
    shown = online("consume", topic, "-e", "--keys", "--headers", "--offsets", "--timestamps").out
    assert shown == f"2023-11-14 22:13:20.123Z\t{topic}-0:0\ta=b\tk\tv\n"


def test_a_group_goes_on_after_what_was_printed(online, headrace):
    topic, group = headrace.topic("grouped", partitions=2), headrace.group()
    online("produce", topic, stdin="".join(f"{number}\n" for number in range(10)))
    words = ["consume", topic, "--group", group, "--from-beginning", "--exit"]
    first = online(*words, "--max", "4").out.split()
    rest = online(*words).out.split()
    assert len(first) == 4
    assert sorted(map(int, first + rest)) == list(range(10))
    assert online(*words).out == ""


def test_a_group_cannot_be_told_where_to_start(online, headrace):
    ran = online("consume", headrace.topic("where"), "--group", "g", "--since", "1h")
    assert ran.code == 2
    assert "headrace group reset" in ran.err


def test_the_rate_is_kept(online, headrace):
    begun = time.monotonic()
    assert online("produce", headrace.topic("slow"), "--rate", "20", stdin="x\n" * 9).code == 0
    assert time.monotonic() - begun >= 8 / 20


@pytest.mark.process
def test_following_sees_new_messages_and_ends_cleanly_on_ctrl_c(online, headrace):
    topic = headrace.topic("follow")
    online("produce", topic, "old")
    words = [sys.executable, "-m", "headrace", "consume", topic, "--from-beginning"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "old\n"
        online("produce", topic, "new")
        assert process.stdout.readline() == "new\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.startswith("2 messages, 6 B in ")
    assert "Traceback" not in err


@pytest.mark.process
def test_a_closed_pipe_ends_quietly(online, headrace):
    topic = headrace.topic("pipe")
    online("produce", topic, stdin="line\n" * 20_000)
    shell = f"{sys.executable} -m headrace consume {topic} --from-beginning | head -n 1"
    ran = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=90, env=dict(os.environ))
    assert ran.stdout == "line\n"
    assert ran.stderr == ""
