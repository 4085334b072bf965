"""The command line in this process: words in; exit code, stdout and stderr out."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any, Protocol

import pytest

from headrace.cli import run


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Command(Protocol):
    def __call__(self, *words: str, stdin: str = "") -> Outcome: ...


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `headrace WORDS...` and return what happened."""
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)
    monkeypatch.delenv("HEADRACE_DEBUG", raising=False)

    def call(*words: str, stdin: str = "") -> Outcome:
        out, err = io.BytesIO(), io.BytesIO()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
            patch.setattr(sys, "stdout", io.TextIOWrapper(out, write_through=True))
            patch.setattr(sys, "stderr", io.TextIOWrapper(err, write_through=True))
            code = run(words)
            return Outcome(code, out.getvalue().decode(), err.getvalue().decode())

    return call


@pytest.fixture
def online(command: Command, headrace: Any, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`command`, with the session's broker as its bootstrap, and the patience that a busy machine needs."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", headrace.bootstrap_servers)

    def call(*words: str, stdin: str = "") -> Outcome:
        return command(*words, "--timeout", "60", stdin=stdin)

    return call
