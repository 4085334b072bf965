"""The runner of the suite: what it forgives, and what not."""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
PASSES = "def test_passes(): pass\n"
FAILS_ONCE = """
from pathlib import Path
def test_fails_once():
    been_here = Path("been-here")
    if not been_here.exists():
        been_here.touch()
        raise ValueError("not yet")
"""
FAILS = "def test_fails(): assert 1 == 2\n"


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """Runs a suite of these files; returns the exit code."""
    spec = importlib.util.spec_from_file_location("run", TESTS / "run.py")
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    shutil.copy(TESTS / "conftest.py", tmp_path)
    monkeypatch.chdir(tmp_path)

    def run(*files: str) -> int:
        for number, text in enumerate(files):
            (tmp_path / f"test_{number}.py").write_text(text)
        return runner.main([], home=tmp_path, parts=[runner.Part(runner.REST)])

    return run


@pytest.mark.process
def test_a_suite_that_passes_passes(suite, capfd):
    assert suite(PASSES) == 0
    assert "all passed, in" in capfd.readouterr().out
    assert not Path("build").exists()


@pytest.mark.process
def test_what_passes_the_second_time_is_named_and_forgiven(suite, capfd):
    assert suite(PASSES, FAILS_ONCE) == 0
    assert "flaky: test_1.py::test_fails_once: ValueError: not yet" in capfd.readouterr().out
    noted = json.loads(Path("build/flaky.jsonl").read_text())
    assert noted == {"name": "test_1.py::test_fails_once", "error": "ValueError: not yet", "seed": "fixed"}


@pytest.mark.process
def test_what_fails_twice_fails_the_run(suite, capfd):
    assert suite(FAILS, FAILS_ONCE) == 1
    assert "failed: the rest" in capfd.readouterr().out


@pytest.mark.process
def test_more_than_three_are_not_forgiven(suite):
    assert suite(*[FAILS_ONCE.replace("been-here", f"been-here-{number}") for number in range(4)]) == 1


@pytest.mark.process
def test_a_file_that_cannot_be_read_fails_the_run(suite):
    assert suite(PASSES, "import nothing_of_the_kind\n") == 1
