"""`headrace log` on directories that were written by the storage engine, and then damaged."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from headrace.runtime.disk import DiskFiles
from headrace.storage.log import Log
from headrace.storage.settings import StorageSettings
from headrace.storage.topic_config import TopicConfig
from headrace.wire import batch

BATCHES = 20
NOW_MS = 1_700_000_000_000
FIRST = "00000000000000000000"


def _write(root: Path, topic: str, partition: int, *, checkpoint: bool = True) -> None:
    config = TopicConfig.of({"segment.bytes": "1048576"}, StorageSettings())
    log = Log.open(DiskFiles(str(root)), f"topics/{topic}-{partition}", config, now_ms=NOW_MS)
    for number in range(BATCHES):
        items = [(b"k%d" % number, b"v" * 100_000), (None, b"\xff"), (b"gone", None)]
        data = bytearray(batch.build(items, timestamp_ms=NOW_MS + number, headers=(("h", b"1"),)))
        log.append(data, list(batch.headers(data)), leader_epoch=0, now_ms=NOW_MS)
    if checkpoint:
        sync = log.begin_sync()
        assert sync is not None
        sync.run()
        log.end_sync(sync)
        log.close()


@pytest.fixture
def data(tmp_path) -> Path:
    root = tmp_path / "data"
    _write(root, "orders", 0)
    _write(root, "with-dash", 0)
    return root


def _picture(root: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in sorted(root.rglob("*")) if path.is_file()
    }


def _flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def test_list_shows_every_segment(command, data):
    logs = command("log", "list", str(data), "--json").json
    assert [(log["topic"], log["partition"]) for log in logs] == [("orders", 0), ("with-dash", 0)]
    segments = logs[0]["segments"]
    assert [(each["base_offset"], each["end_offset"], each["sealed"]) for each in segments] == [
        (0, 30, True),
        (30, 60, False),
    ]
    assert segments[0]["max_timestamp"] == NOW_MS + 9
    assert "with-dash" in command("log", "list", str(data)).out


def test_dump_prints_batches_from_the_one_that_holds_the_offset(command, data):
    lines = command("log", "dump", str(data), "orders", "0", "--offset", "31", "--limit", "2", "--json").json_lines
    assert [(line["base_offset"], line["last_offset"], line["records"]) for line in lines] == [(30, 32, 3), (33, 35, 3)]
    assert all(line["crc_ok"] for line in lines)


def test_dump_opens_records(command, data):
    (line,) = command("log", "dump", str(data), "orders", "0", "-r", "-n", "1", "--json").json_lines
    assert [record["offset"] for record in line["content"]] == [0, 1, 2]
    assert line["content"][1]["value"] == {"base64": "/w=="}
    assert line["content"][2]["value"] is None
    shown = command("log", "dump", str(data), "orders", "0", "-r", "-n", "1").out
    assert max(len(each) for each in shown.splitlines()) < 250


def test_a_sound_directory_verifies(command, data):
    ran = command("log", "verify", str(data), "--deep")
    assert ran.code == 0
    assert "2 logs sound (40 batches, 120 records read)" in ran.out


@pytest.mark.parametrize("position", [30, 5000, 100_103 * 3 + 40])
def test_verify_finds_a_flipped_bit(command, data, position):
    _flip(data / f"topics/orders-0/{FIRST}.log", position)
    ran = command("log", "verify", str(data), "orders", "--json")
    assert ran.code == 1
    assert not ran.json["ok"]
    assert "bad checksum" in ran.json["logs"][0]["problems"][0]
    assert command("log", "verify", str(data), "with-dash").code == 0


def test_verify_finds_a_damaged_index(command, data):
    _flip(data / f"topics/orders-0/{FIRST}.index", 40)
    ran = command("log", "verify", str(data))
    assert ran.code == 1
    assert "index or .timeindex is damaged" in ran.out


def test_verify_finds_a_missing_segment(command, data):
    os.rename(data / f"topics/orders-0/{FIRST}.log", data / "topics/orders-0/away")
    (data / f"topics/orders-0/{FIRST[:-2]}99.log").write_bytes(b"")
    ran = command("log", "verify", str(data), "orders")
    assert ran.code == 1
    assert "should begin at offset" in ran.out


def test_verify_and_recover_find_lost_bytes_that_were_durable(command, data):
    path = data / f"topics/orders-0/{FIRST[:-2]}30.log"
    os.truncate(path, path.stat().st_size - 5)
    verified = command("log", "verify", str(data), "orders")
    assert verified.code == 1
    assert "60 was durable" in verified.out
    recovered = command("log", "recover", str(data), "--dry-run")
    assert recovered.code == 1
    assert "orders-0: REFUSED" in recovered.out
    assert "with-dash-0: keeps offsets 0 to 60; nothing to cut" in recovered.out


def test_recover_shows_the_torn_tail_that_it_would_cut(command, tmp_path):
    root = tmp_path / "data"
    _write(root, "torn", 0, checkpoint=False)
    path = sorted((root / "topics/torn-0").glob("*.log"))[-1]
    os.truncate(path, path.stat().st_size - 100)
    (found,) = command("log", "recover", str(root), "--dry-run", "--json").json
    assert found["refused"] is None
    assert found["end_offset"] == 57
    assert [cut["reason"] for cut in found["cuts"]] == ["torn write"]


def test_nothing_is_ever_changed(command, data):
    _flip(data / f"topics/orders-0/{FIRST}.log", 5000)
    before = _picture(data)
    command("log", "list", str(data))
    command("log", "dump", str(data), "orders", "0", "-r")
    command("log", "verify", str(data), "--deep")
    command("log", "recover", str(data), "--dry-run")
    assert _picture(data) == before


def test_recover_without_dry_run_says_who_recovers(command, data):
    ran = command("log", "recover", str(data))
    assert ran.code == 2
    assert "--dry-run" in ran.err


def test_a_directory_in_use_is_said_to_be(command, data):
    held = DiskFiles(str(data)).lock()
    assert held is not None
    try:
        assert "a broker is at work" in command("log", "verify", str(data)).err
    finally:
        held.release()
    assert command("log", "verify", str(data)).err == ""


def test_an_unknown_log_is_named_with_those_that_exist(command, data):
    ran = command("log", "verify", str(data), "nope")
    assert ran.code == 2
    assert "no log nope; topics: orders, with-dash" in ran.err
