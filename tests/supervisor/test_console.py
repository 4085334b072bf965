"""The console's language, over a supervisor whose services are small Python processes."""

from __future__ import annotations

import asyncio

import pytest

from headrace.supervisor.console import Console, completions, table
from headrace.supervisor.plan import Plan, Service
from headrace.supervisor.supervisor import Look, Supervisor


@pytest.fixture
def console(tmp_path):
    services = tuple(Service(f"broker-{n}", "broker", n, ("version",), "127.0.0.1", 1) for n in range(3))
    plan = Plan(services, "127.0.0.1", 0, 0, temporary=False, notes=())
    return Console(Supervisor(plan, str(tmp_path), lambda _: None))


def ask(console: Console, line: str) -> str:
    return asyncio.run(console.answer(line)).text


def test_help_names_every_command(console):
    text = ask(console, "help")
    for word in ("status", "broker list", "broker start|stop|restart N", "restart all", "quit"):
        assert word in text
    assert "producer" not in text, "no such service runs here"


def test_status_shows_every_service(console):
    lines = ask(console, "status").splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["broker-0", "broker-1", "broker-2"]
    assert all("stopped" in line for line in lines[1:])


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("broker stop 3", "no broker 3; there are 0 to 2"),
        ("broker stop x", "no broker x; there are 0 to 2"),
        ("broker stop -1", "no broker -1; there are 0 to 2"),
        ("broker stop", "which broker? broker stop N"),
        ("broker", "broker what? broker list, broker start, broker stop, broker restart"),
        ("restart", "restart what? restart all"),
        ("producer start", "no producer service runs here"),
        ("status now", "status stands alone"),
        ("broker stop 1", "broker-1 was stopped already"),
        ('broker "', "cannot read that: No closing quotation"),
        ("", ""),
    ],
)
def test_what_cannot_be_done_is_said(console, line, answer):
    assert ask(console, line) == answer


@pytest.mark.parametrize(
    ("line", "failed"),
    [("broker stop 3", True), ("statsu", True), ("producer start", True), ("status", False), ("broker stop 1", False)],
)
def test_a_reply_says_whether_it_was_done(console, line, failed):
    assert asyncio.run(console.answer(line)).failed is failed


def test_an_unknown_word_gets_a_suggestion(console):
    assert "status" in ask(console, "statsu")


def test_quit_ends_the_console(console):
    assert asyncio.run(console.answer("quit")).quits


def test_words_are_completed():
    assert completions("b") == ["broker"]
    assert completions("broker st") == ["start", "stop"]
    assert completions("broker stop ") == []
    assert "status" in completions("")


def test_the_table_is_aligned_and_says_how_long_a_service_lives():
    looks = [
        Look("broker-0", "broker", 0, "127.0.0.1:9092", "ready", 17, 3.0, 0, None),
        Look("broker-10", "broker", 10, "127.0.0.1:9102", "restarting", None, 0.0, 2, -9),
        Look("producer", "producer", 0, "127.0.0.1:9103", "ready", 18, 3725.0, 0, None),
    ]
    lines = table(looks).splitlines()
    assert (
        len({line.index(word) for line, word in zip(lines, ("STATE", "ready", "restarting", "ready"), strict=True)})
        == 1
    )
    assert "1h02m" in lines[3]
    assert "-9" in lines[2]
