"""What a transformer writes down for those who watch it, line by line, in a file that outlives its process.

Rules:
- A line is written before the step that it names (`begin`, `committing`) or after it has succeeded (`committed`,
  `aborted`, `fenced`). So a transaction that is `committed` must be visible, and an `aborted` one must never be.
- A reader takes whole lines only; a process may be killed in the middle of one.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    step: str
    label: str = ""


class Journal:
    """The writing end."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, step: str, label: str = "") -> None:
        self._file.write(json.dumps([step, label]) + "\n")


class JournalReader:
    """Follows all journals of a folder. `counts` has the lines so far, by step; `steps` those of one incarnation."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: dict[Path, int] = {}
        self.labels: dict[str, list[str]] = {}
        self.counts: Counter[str] = Counter()
        self.steps: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def read(self) -> None:
        """Take what came since the last call."""
        for path in sorted(self._folder.glob("*.journal")):
            for line in self._new_lines(path):
                self.counts[line.step] += 1
                self.steps[path.stem][line.step] += 1
                self.labels.setdefault(line.step, []).append(line.label)

    def _new_lines(self, path: Path) -> Iterator[Line]:
        with path.open("rb") as file:
            file.seek(self._positions.get(path, 0))
            found = file.read()
        end = found.rfind(b"\n") + 1
        self._positions[path] = self._positions.get(path, 0) + end
        for line in found[:end].splitlines():
            yield Line(*json.loads(line))
