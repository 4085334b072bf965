"""What a pipeline's folder says of its run: who runs it, how it goes, and the wish that it stop.

Rules:
- Everything lies in `.headrace/` of the folder. The status is one JSON file, replaced as a whole.
- Who runs holds a lock on a file; a lock ends with its process, so a status that claims "running" without one is
  known to be stale.
- Stopping is a file too: it works for whoever may write to the folder, on whatever machine.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

from headrace.core.errors import HeadraceError

FOLDER: Final = ".headrace"
ATTEMPTS: Final = 10
PAUSE_SECONDS: Final = 0.1
RUNNING, STOPPED, FINISHED, FAILED, NEVER, DEAD = "running", "stopped", "finished", "failed", "never run", "dead"


class RunningError(HeadraceError):
    """Someone runs this pipeline already."""


class State:
    """The state of one folder."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder) / FOLDER

    @property
    def log_file(self) -> Path:
        return self._folder / "spark.log"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Be the one who runs. Raises RunningError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("a+") as lock:
            self._seize(lock)
            self._stop_file.unlink(missing_ok=True)
            yield

    def _seize(self, lock: TextIO) -> None:
        for attempt in range(ATTEMPTS):  # somebody may just be asking whether it is held
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                if attempt == ATTEMPTS - 1:
                    raise self._taken() from None
                time.sleep(PAUSE_SECONDS)

    def check_free(self) -> None:
        """Raises RunningError if someone runs this pipeline; cheap, to be asked before Spark is started."""
        if self.is_held():
            raise self._taken()

    def _taken(self) -> RunningError:
        found = self.read()
        return RunningError(
            f"this pipeline runs already (process {found.get('pid', '?')} on {found.get('host', '?')}); "
            "stop it with: headrace pipeline stop"
        )

    def is_held(self) -> bool:
        try:
            with (self._folder / "lock").open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # two who ask are not in each other's way
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def write(self, **fields: Any) -> None:
        """Replace the status."""
        self._folder.mkdir(parents=True, exist_ok=True)
        document = {"pid": os.getpid(), "host": socket.gethostname(), "written_at": time.time(), **fields}
        half = self._folder / f"status.{os.getpid()}.tmp"
        half.write_text(json.dumps(document, indent=1), encoding="utf-8")
        half.replace(self._folder / "status.json")

    def read(self) -> dict[str, Any]:
        """The status as it was last written; `state` is right even if the runner died."""
        try:
            found: dict[str, Any] = json.loads((self._folder / "status.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"state": NEVER, "queries": {}}
        if found.get("state") == RUNNING and found.get("host") == socket.gethostname() and not self.is_held():
            found["state"] = DEAD
        return found

    def bury(self) -> bool:
        """Say of a runner that was killed that it is stopped; False if there is none."""
        found = self.read()
        if found["state"] != DEAD:
            return False
        self.write(**{**found, "state": STOPPED})
        return True

    @property
    def _stop_file(self) -> Path:
        return self._folder / "stop"

    def ask_to_stop(self) -> None:
        self._stop_file.touch()

    def should_stop(self) -> bool:
        return self._stop_file.exists()
