"""Histories by their seeds: run one, and say how it went and how to run it again."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import KafkaException

from headrace.core.errors import HeadraceError
from headrace.testing.disk_histories.history import History
from headrace.testing.disk_histories.plan import Plan


class HistoryError(AssertionError):
    """A history broke a promise."""


class Outcome(NamedTuple):
    """What happened in a history that kept all promises."""

    seed: int
    nodes: int
    seconds: float
    story: list[str]
    verdict: str

    def __str__(self) -> str:
        story = "; ".join(self.story)
        return f"{self.nodes} node(s), seed {self.seed}: kept, {self.seconds:.1f} s: {story}; {self.verdict}"


def replay_command(seed: int, nodes: int) -> str:
    return f"python -m headrace.testing.disk_histories --nodes {nodes} --seed {seed}"


def run(wanted: Plan, *, keep: Path | None = None) -> Outcome:
    """Run a history. Raises HistoryError, which says how to run it again; all files go to `keep` then."""
    begun, seed, nodes = time.monotonic(), wanted.seed, wanted.nodes
    with tempfile.TemporaryDirectory(prefix="headrace-disks-") as folder:
        history = History(wanted, Path(folder))
        try:
            history.play()
        except (TimeoutError, RuntimeError, HeadraceError, KafkaException) as error:
            history.complain(f"{type(error).__name__}: {error}")
        finally:
            history.close()
        if history.complaints:
            if keep is not None:
                shutil.copytree(folder, keep / f"{nodes}-nodes-seed-{seed}", dirs_exist_ok=True)
            told = "\n  ".join([*history.story, "BROKEN:", *history.complaints])
            raise HistoryError(
                f"{nodes} node(s), seed {seed}: FAILED, {time.monotonic() - begun:.1f} s\n  {told}\n"
                f"{history.stage.log_tail(12)}\nreplay it with: {replay_command(seed, nodes)}"
            )
        return Outcome(seed, nodes, time.monotonic() - begun, history.story, history.verdict)


def totals(plans: list[Plan]) -> Counter[str]:
    """How often each fault is dealt in these histories."""
    return Counter(str(blow.fault) for one in plans for blow in one.blows)
