"""Opens the logs of this node's partitions, and decides what becomes of a directory that is in their place.

Rules:
- What `storage.identity` calls lost stays where it is: an error comes back, and the partition is offline. What does not
  fit is set aside under `stray/`, under a name of its own. Only an older topic's log is removed.
- Everything here is blocking, and touches no shared state: it runs at start-up, or in a worker.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

from headrace.core.errors import StorageError
from headrace.storage import identity
from headrace.storage.identity import Trust, Verdict
from headrace.storage.log import Log

if TYPE_CHECKING:
    from headrace.core.ports import Clock, Files, TrackedFiles
    from headrace.storage.manifest import Known
    from headrace.storage.topic_config import TopicConfig

logger = logging.getLogger(__name__)

TOPICS = "topics"


def log_path(topic: str, index: int) -> str:
    """Where a partition lies in the data directory. `topic` is a validated name."""
    return f"{TOPICS}/{topic}-{index}"


@dataclass(frozen=True, slots=True)
class Opening:
    """One log that shall be opened."""

    topic: str
    index: int
    topic_id: UUID
    config: TopicConfig
    known: Known | None  # what the manifest has for this place: of this topic, or an older one of the name
    anew: bool = False  # set aside what is there

    @property
    def on_disk(self) -> bool:
        return self.config.storage != "memory"

    @property
    def is_new(self) -> bool:
        """Whether the manifest does not know the directory that will be there."""
        return self.on_disk and (self.anew or self.known is None or self.known.topic_id != self.topic_id)


class LogOpening:
    """The two trees that logs live in, and how to open one."""

    def __init__(self, disk: TrackedFiles, memory: TrackedFiles, clock: Clock, *, producer_expiry_ms: int) -> None:
        self._disk = disk
        self._memory = memory
        self._clock = clock
        self._producer_expiry_ms = producer_expiry_ms

    def open_all(self, wanted: Collection[Opening], trust: Trust) -> list[Log | StorageError]:
        """Logs, or why there is none, in order. The names of those on the disk are durable."""
        opened = [self._open(each, trust) for each in wanted]
        fresh = [log for each, log in zip(wanted, opened, strict=True) if each.is_new and isinstance(log, Log)]
        if fresh:
            try:
                self._disk.sync_directory(TOPICS)
            except StorageError as error:
                for log in fresh:
                    log.close(clean=False)
                return [error if log in fresh else log for log in opened]
        return opened

    def fingerprint(self, topic: str, index: int) -> int:
        return self._disk.fingerprint(log_path(topic, index))

    def _open(self, wanted: Opening, trust: Trust) -> Log | StorageError:
        topic_id, index, known = wanted.topic_id, wanted.index, wanted.known
        path = log_path(wanted.topic, index)
        files = self._disk if wanted.on_disk else self._memory
        try:
            if wanted.anew:
                logger.warning("a damaged or lost log is set aside, to be copied from its leader", extra={"path": path})
                _set_aside(files, path)
                known = None
            else:
                verdict = identity.judge(files, path, topic_id, index, known, trust=trust)
                if verdict is Verdict.REMOVE:
                    logger.warning("a log is of an older topic of the same name; it is removed", extra={"path": path})
                    identity.remove(files, path)
                elif verdict is Verdict.SET_ASIDE:
                    logger.warning(
                        "a directory holds another log than its place says; it is set aside", extra={"path": path}
                    )
                    _set_aside(files, path)
            log = Log.open(
                files,
                path,
                wanted.config,
                now_ms=self._clock.now_ms(),
                producer_expiry_ms=self._producer_expiry_ms,
                known=known if known is not None and known.topic_id == topic_id else None,
            )
            identity.give_to(log, topic_id, index)
            return log
        except StorageError as error:
            return error

    def clear_strangers(self, expected: Collection[str]) -> None:
        """Remove what a deletion that was cut short has left behind; set aside what nobody knows."""
        for name in self._disk.names(TOPICS):
            if name.endswith(".deleted"):
                self._disk.remove(f"{TOPICS}/{name}")
            elif f"{TOPICS}/{name}" not in expected:
                logger.warning("a directory belongs to no topic; it is set aside", extra={"directory": name})
                _set_aside(self._disk, f"{TOPICS}/{name}")


def _set_aside(files: Files, path: str) -> None:
    """Under a name that nothing has yet: what is set aside never replaces what was."""
    if files.exists(path):
        aside = f"stray/{path.rpartition('/')[2]}"
        names = itertools.chain([aside], (f"{aside}.{number}" for number in itertools.count(2)))
        files.rename(path, next(each for each in names if not files.exists(each)))
