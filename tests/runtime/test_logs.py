"""Log lines: what they carry, and that nobody can flood them or stall the broker through them."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass

import pytest

from headrace.core.logs import REQUEST, RequestLine, limited
from headrace.runtime import logs


@dataclass
class Settings:
    level: str = "info"
    format: str = "json"


class StoppedClock:
    """The module's clock stands still, so that it does not matter how long a test takes."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def __getattr__(self, name: str) -> object:
        return getattr(time, name)


@pytest.fixture
def clock(monkeypatch):
    stopped = StoppedClock()
    monkeypatch.setattr(logs, "time", stopped)
    return stopped


@pytest.fixture
def stream(monkeypatch, clock):
    monkeypatch.setattr(logs, "FLUSH_SECONDS", 60.0)
    root, own = logging.getLogger(), logging.getLogger("headrace")
    before = (root.level, own.level)
    text = io.StringIO()
    yield text
    if logs._writer is not None:
        root.removeHandler(logs._writer)
    root.setLevel(before[0])
    own.setLevel(before[1])


def configure(stream: io.StringIO, **settings: str) -> None:
    logs.configure(Settings(**settings), stream)
    here = threading.get_ident()
    logs._writer.addFilter(lambda record: record.thread == here)  # a broker of other tests may say something, too


def lines(stream: io.StringIO) -> list[dict]:
    logs.flush()
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_is_one_json_object_with_its_values(stream):
    configure(stream)
    logging.getLogger("headrace.storage").info("segment sealed", extra={"topic": "orders", "base_offset": 7})
    (line,) = lines(stream)
    assert line["event"] == "segment sealed"
    assert (line["level"], line["logger"]) == ("info", "headrace.storage")
    assert (line["topic"], line["base_offset"]) == ("orders", 7)
    assert line["time"].endswith("Z")


def test_a_line_written_while_a_request_is_handled_carries_the_request(stream):
    configure(stream)
    token = REQUEST.set(RequestLine("Produce", 42, "app", "127.0.0.1:5000"))
    logging.getLogger("headrace.broker").warning("disk full")
    REQUEST.reset(token)
    logging.getLogger("headrace.broker").warning("later")
    during, after = lines(stream)
    assert during["api"] == "Produce"
    assert during["correlation_id"] == 42
    assert during["client_id"] == "app"
    assert during["connection"] == "127.0.0.1:5000"
    assert "api" not in after


def test_a_traceback_stays_in_its_line(stream):
    configure(stream)
    try:
        raise RuntimeError("boom\nboom")
    except RuntimeError:
        logging.getLogger("headrace.x").exception("failed")
    (line,) = lines(stream)
    assert "RuntimeError: boom" in line["error"]


@pytest.mark.parametrize("odd", ["\ud800", object(), {1: 2}, b"\xff", float("nan"), 2**80, {"a": {"\ud800"}}])
def test_odd_values_never_lose_a_line(stream, odd):
    configure(stream)
    logging.getLogger("headrace.x").warning("odd", extra={"value": odd})
    assert "odd" in lines(stream)[0]["event"]


def test_a_value_cannot_forge_a_standard_field(stream):
    configure(stream)
    logging.getLogger("headrace.x").warning("real", extra={"event": "forged", "level": "debug"})
    (line,) = lines(stream)
    assert (line["event"], line["level"]) == ("real", "warning")
    assert (line["event_"], line["level_"]) == ("forged", "debug")


def test_a_flood_of_one_kind_becomes_a_few_lines_and_a_count(stream, clock):
    configure(stream)
    log = logging.getLogger("headrace.kafka")
    for _ in range(1000):
        log.warning("bad frame", extra=limited("bad-frame", peer="x"))
    log.warning("other", extra=limited("other"))
    clock.now += logs.WINDOW_SECONDS + 1
    logs.sweep()
    seen = lines(stream)
    assert [line["event"] for line in seen[:6]] == ["bad frame"] * logs.LINES_PER_WINDOW + ["other"]
    assert seen[6]["kind"] == "bad-frame"
    assert seen[6]["held_back"] == 1000 - logs.LINES_PER_WINDOW
    assert len(seen) == 7
    log.warning("bad frame", extra=limited("bad-frame"))
    assert lines(stream)[-1]["event"] == "bad frame"


def test_a_flood_of_kinds_is_bounded(stream):
    configure(stream)
    for number in range(3 * logs.KINDS):
        logging.getLogger("headrace.kafka").warning("bad", extra=limited(f"kind-{number}"))
    assert len(lines(stream)) == logs.KINDS


def test_other_libraries_are_limited_and_quiet(stream):
    configure(stream)
    for _ in range(50):
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("uvicorn.error").info("started")
    assert len(lines(stream)) == logs.LINES_PER_WINDOW


def test_pretty_lines_escape_control_characters(stream):
    configure(stream, format="pretty")
    logging.getLogger("headrace.x").warning("hello", extra={"client_id": "a\033[2Jb\n", "n": 1})
    logs.flush()
    text = stream.getvalue()
    assert "\033" not in text
    assert text.count("\n") == 1
    assert "warning hello  client_id=a\\x1b[2Jb\\n n=1" in text


def test_the_level_holds_back_lesser_lines(stream):
    configure(stream, level="error")
    logging.getLogger("headrace.x").warning("no")
    logging.getLogger("headrace.x").error("yes")
    assert [line["event"] for line in lines(stream)] == ["yes"]


@pytest.mark.process
def test_an_unread_stderr_does_not_block_the_process():
    code = (
        "import logging; from headrace.runtime import logs\n"
        "class S: level='info'; format='json'\n"
        "logs.QUEUED_LINES = 100; logs.FLUSH_SECONDS = 0.2; logs.configure(S())\n"
        "[logging.getLogger('headrace.x').info('x' * 1000) for _ in range(2000)]\n"
        "print('done', flush=True); import os; os._exit(0)\n"
    )
    read_end, write_end = os.pipe()
    try:
        process = subprocess.run(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write_end, timeout=60, check=True
        )
    finally:
        os.close(write_end)
        os.close(read_end)
    assert process.stdout == b"done\n"


@pytest.mark.process
def test_the_last_lines_are_written_before_the_process_ends():
    code = (
        "import logging; from headrace.runtime import logs\n"
        "class S: level='info'; format='auto'\n"
        "logs.FLUSH_SECONDS = 60.0; logs.configure(S())\n"
        "[logging.getLogger('headrace.x').info('line', extra={'n': n}) for n in range(500)]\n"
    )
    process = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=60, check=True)
    assert [json.loads(line)["n"] for line in process.stderr.splitlines()] == list(range(500))
