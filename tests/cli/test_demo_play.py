"""The play from end to end, with a stand-in for Spark."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("deltalake")

from headrace.cli.demo import play as plays
from headrace.cli.demo.play import DemoError, Play
from headrace.cli.demo.process import PipelineProcess

STAND_IN = Path(__file__).with_name("demo_stand_in.py")


@pytest.fixture
def rehearsal(monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(*words: str) -> tuple[Play, list[str]]:
        """`{}` in a word stands for the pipeline's folder."""
        monkeypatch.setattr(plays, "DOWN_SECONDS", 0.2)

        def run(folder: Path, log: Path) -> PipelineProcess:
            return PipelineProcess([sys.executable, *(word.replace("{}", str(folder)) for word in words)], log)

        monkeypatch.setattr(plays, "run_pipeline", run)
        told: list[str] = []
        return Play(1000, 1.0, lambda play: None, lambda at, text: told.append(text)), told

    return make


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_play_ends_with_books_that_agree_and_leaves_nothing(rehearsal: Any) -> None:
    play, told = rehearsal(str(STAND_IN), "{}", "0")
    try:
        assert play.run(), [check for check in play.story.checks if not check.good]
        last = play.story.samples[-1]
        assert last.sent == last.archived == play.shops.day.truth.sent["orders"]
        assert play.story.killed_at < play.story.back_at
        assert any(text.startswith("kill -9: all 1 processes") for text in told)
    finally:
        play.close()
    assert not play.folder.exists() and not play.shops.is_alive() and not play.tally.is_alive()


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_window_too_many_is_told(rehearsal: Any) -> None:
    play, _ = rehearsal(str(STAND_IN), "{}", "1")
    try:
        assert not play.run()
        assert [check.good for check in play.story.checks] == [False, True, True, True, True, True]
        assert "windows twice" in play.story.checks[0].told
    finally:
        play.close()


@pytest.mark.process
@pytest.mark.timeout(300)
def test_a_pipeline_that_ends_early_ends_the_play(rehearsal: Any) -> None:
    play, _ = rehearsal("-c", "print('there is no coffee')")
    began = time.monotonic()
    try:
        with pytest.raises(DemoError, match="ended early: there is no coffee"):
            play.run()
    finally:
        play.close()
    assert time.monotonic() - began < plays.PATIENCE_SECONDS, "it was waited for"
