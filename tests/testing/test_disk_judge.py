"""The judge of disk histories: it passes what is right, finds every kind of wrong, and shares no code with us."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.testing.disk_histories import judge as judging
from headrace.testing.disk_histories.judge import KINDS, Book, Place, View, judge, load

PLAIN, PAIRS = Place("plain", 0), Place("pairs", 0)
SCRIPT = Path(judging.__file__)


class Lines:
    """Ledgers that a test writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.write({"is": "topic", "topic": "plain", "partitions": 1, "transactional": False})
        self.write({"is": "topic", "topic": "pairs", "partitions": 1, "transactional": True})

    def write(self, line: dict[str, object]) -> None:
        with (self.folder / "all.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")

    def sent(self, by: str, n: int, offset: int | None, *, tx: str | None = None, place: Place = PLAIN) -> None:
        where = {"topic": place.topic, "partition": place.partition}
        self.write({"is": "sent", "by": by, "n": n, "value": f"{by}:{n}", "tx": tx, **where})
        if offset is not None:
            self.write({"is": "acked", "by": by, "n": n, "offset": offset})

    def read(self, offset: int, value: str, *, committed: bool = False, place: Place = PLAIN) -> None:
        where = {"topic": place.topic, "partition": place.partition, "offset": offset}
        self.write({"is": "read", "by": "r", "committed": committed, "value": value, **where})

    def book(self) -> Book:
        return load(self.folder)


@pytest.fixture
def lines(tmp_path) -> Lines:
    """Three records, and two transactions of which the second was aborted."""
    found = Lines(tmp_path / "ledgers")
    for n in range(3):
        found.sent("w", n, n)
    for n, tx in enumerate(("t/0", "t/0", "t/1", "t/1")):
        found.sent("t", n, n + (n > 1), tx=tx, place=PAIRS)
    found.write({"is": "tx", "tx": "t/0", "fate": "committed"})
    found.write({"is": "tx", "tx": "t/1", "fate": "aborted"})
    return found


def logs() -> dict[Place, dict[int, str]]:
    """What is right: markers have offsets, too."""
    return {PLAIN: {0: "w:0", 1: "w:1", 2: "w:2"}, PAIRS: {0: "t:0", 1: "t:1", 3: "t:2", 4: "t:3"}}


def visible() -> dict[Place, dict[int, str]]:
    return {PLAIN: {0: "w:0", 1: "w:1", 2: "w:2"}, PAIRS: {0: "t:0", 1: "t:1"}}


def kinds(
    book: Book,
    records: dict[Place, dict[int, str]] | None = None,
    committed: dict[Place, dict[int, str]] | None = None,
    offsets: dict[str, dict[Place, int]] | None = None,
) -> set[str]:
    views = [View("committed records", True, committed or visible()), View("all records", False, records or logs())]
    return {violation.kind for violation in judge(book, views, offsets or {})}


def test_a_history_without_a_fault_passes(lines):
    lines.read(0, "w:0")
    lines.read(1, "t:1", committed=True, place=PAIRS)
    lines.read(3, "t:2", place=PAIRS)  # of an aborted one, by somebody who asked for everything
    assert kinds(lines.book()) == set()


def test_a_lost_record_is_found(lines):
    records = logs()
    del records[PLAIN][2]
    assert kinds(lines.book(), records) == {"lost", "changed"}


def test_a_lost_record_that_was_acknowledged_without_a_place_is_found(lines):
    lines.sent("w", 3, -1)
    assert "lost" in kinds(lines.book())


def test_a_record_at_another_offset_is_found(lines):
    records = logs()
    records[PLAIN] = {0: "w:1", 1: "w:0", 2: "w:2"}
    assert {"lost", "order"} <= kinds(lines.book(), records)


def test_a_doubled_record_is_found(lines):
    records = logs()
    records[PLAIN][3] = "w:2"
    assert kinds(lines.book(), records) == {"doubled"}


def test_a_record_that_nobody_sent_is_found(lines):
    records = logs()
    records[PLAIN][3] = "x:0"
    assert kinds(lines.book(), records) == {"foreign"}


def test_a_record_in_another_partition_than_it_was_sent_to_is_found(lines):
    records = logs()
    records[PLAIN][3] = "t:0"
    assert kinds(lines.book(), records) == {"foreign"}


def test_a_hole_is_found(lines):
    lines.sent("w", 3, None)
    records = logs()
    records[PLAIN][4] = "w:3"
    assert kinds(lines.book(), records) == {"gap"}


def test_a_log_that_does_not_begin_at_its_beginning_is_found(lines):
    views = [View("committed records", True, visible()), View("all records", False, logs(), starts={PAIRS: 1})]
    assert {violation.kind for violation in judge(lines.book(), views, {})} == {"gap"}


def test_a_visible_aborted_transaction_is_found(lines):
    assert kinds(lines.book(), committed=logs()) == {"aborted"}


def test_a_torn_transaction_is_found(lines):
    committed = visible()
    del committed[PAIRS][1]
    assert kinds(lines.book(), committed=committed) == {"torn"}


def test_a_torn_transaction_of_unknown_fate_is_found(lines):
    for n in (4, 5):
        lines.sent("t", n, n + 2, tx="t/2", place=PAIRS)
    records, committed = logs(), visible()
    records[PAIRS] |= {6: "t:4", 7: "t:5"}
    assert kinds(lines.book(), records, committed) == set(), "all or nothing"
    committed[PAIRS] |= {6: "t:4"}
    assert kinds(lines.book(), records, committed) == {"torn"}
    committed[PAIRS] |= {7: "t:5"}
    assert kinds(lines.book(), records, committed) == set(), "all or nothing"


def test_a_committed_transaction_that_nobody_sees_is_found(lines):
    committed = visible()
    committed[PAIRS] = {}
    assert kinds(lines.book(), committed=committed) == {"hidden"}


def test_a_record_that_only_readers_of_everything_see_is_found(lines):
    committed = visible()
    del committed[PLAIN][2]
    assert kinds(lines.book(), committed=committed) == {"hidden"}


def test_a_reader_that_saw_something_else_is_heard(lines):
    lines.read(1, "w:2")
    assert kinds(lines.book()) == {"changed"}


def test_a_reader_that_saw_what_is_gone_is_heard(lines):
    lines.sent("w", 3, None)
    lines.read(3, "w:3")
    assert kinds(lines.book()) == {"changed"}


def test_a_reader_of_committed_records_that_was_given_an_aborted_one_is_heard(lines):
    lines.read(3, "t:2", committed=True, place=PAIRS)
    assert kinds(lines.book()) == {"aborted"}


def test_two_replicas_that_differ_are_found(lines):
    other = logs()
    other[PLAIN][1] = "w:2"
    views = [View(f"all records, turn {turn}", False, records) for turn, records in enumerate((logs(), other))]
    assert "changed" in {violation.kind for violation in judge(lines.book(), views, {})}


def test_committed_offsets_that_go_back_are_found(lines):
    place = {"topic": "plain", "partition": 0}
    lines.write({"is": "committed", "group": "g", "offset": 2, **place})
    assert kinds(lines.book(), offsets={"g": {PLAIN: 2}}) == set()
    assert kinds(lines.book(), offsets={"g": {PLAIN: 1}}) == {"group"}
    assert kinds(lines.book(), offsets={}) == {"group"}
    lines.write({"is": "asking", "id": 1, "group": "g"})
    lines.write({"is": "committed", "group": "g", "offset": 3, **place})
    lines.write({"is": "found", "id": 1, "offset": 2, **place})  # it asked before the last commit
    assert kinds(lines.book(), offsets={"g": {PLAIN: 3}}) == set()
    lines.write({"is": "asking", "id": 2, "group": "g"})
    lines.write({"is": "found", "id": 2, "offset": 2, **place})
    assert kinds(lines.book(), offsets={"g": {PLAIN: 3}}) == {"group"}


def test_clients_that_were_given_damage_or_were_broken_are_heard(lines):
    lines.write({"is": "damaged", "by": "r", "topic": "plain", "partition": 0, "why": "CRC"})
    lines.write({"is": "failed", "by": "w", "n": 3, "why": "timed out", "fatal": False})
    assert kinds(lines.book()) == {"damaged"}
    lines.write({"is": "failed", "by": "w", "n": 4, "why": "out of order", "fatal": True})
    assert kinds(lines.book()) == {"damaged", "refused"}


def test_a_line_that_is_not_whole_does_not_count_and_one_that_is_unknown_is_an_error(lines):
    with (lines.folder / "all.jsonl").open("a") as file:
        file.write('{"is": "sent", "by": "w", "n": 3')
    assert kinds(lines.book()) == set()
    (lines.folder / "other.jsonl").write_text('{"is": "guessed"}\n')
    with pytest.raises(ValueError, match="guessed"):
        lines.book()


def test_every_kind_is_explained(lines):
    used = {
        node.args[0].value
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Violation"
    }
    assert used == set(KINDS)


def test_the_judge_shares_no_code_with_the_broker_or_its_clients():
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(SCRIPT.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."])
    }
    assert imported - set(sys.stdlib_module_names) == {"kafka"}


@pytest.mark.process
def test_the_judge_reads_a_broker_by_itself_and_its_exit_code_tells(headrace_broker, tmp_path):
    lines = Lines(tmp_path / "ledgers")
    producer = Producer({"bootstrap.servers": headrace_broker.bootstrap_servers, "enable.idempotence": True})
    (tmp_path / "ledgers" / "all.jsonl").write_text("")
    topic = f"judged-{tmp_path.name[-20:]}"
    lines.write({"is": "topic", "topic": topic, "partitions": 1, "transactional": False})
    place = Place(topic, 0)
    for n in range(5):
        producer.produce(topic, f"w:{n}", partition=0)
        lines.sent("w", n, n, place=place)
    assert producer.flush(60) == 0

    def verdict() -> tuple[int, dict]:
        report = tmp_path / "report.json"
        command = [sys.executable, "-I", str(SCRIPT), headrace_broker.bootstrap_servers, str(lines.folder)]
        done = subprocess.run([*command, "--json", str(report)], capture_output=True, text=True, timeout=100)
        return done.returncode, json.loads(report.read_text()) if report.exists() else {"told": done.stdout}

    code, report = verdict()
    assert (code, report["kept"], report["acknowledged"]) == (0, True, 5), report
    lines.sent("w", 5, 5, place=place)  # nobody did
    code, report = verdict()
    assert code == 1 and set(report["kinds"]) == {"lost", "hidden"}, report
    (tmp_path / "ledgers" / "broken.jsonl").write_text("no json\n")
    assert verdict()[0] == 2
