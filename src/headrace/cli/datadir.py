"""A data directory, looked at from outside: read only, no lock taken, no broker needed.

Rules:
- Nothing is ever written; every method of `ReadOnlyFiles` that would write raises.
- A broker may be at work in the directory: what is read is a moment's picture, and a log's end may be half written.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from headrace.cli.report import UsageError
from headrace.core.errors import DiskFailedError, HeadraceError

if TYPE_CHECKING:
    from headrace.broker.image import Image
    from headrace.core.ports import Buffer
    from headrace.storage.topic_config import TopicConfig


class ReadOnlyFile:
    """A file as long as it was at first sight. It is open only while it is read: a directory may hold thousands."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = path.stat().st_size

    def read(self, position: int, length: int) -> bytes:
        try:
            with self._path.open("rb") as stream:
                stream.seek(position)
                return stream.read(max(0, min(length, self._size - position)))
        except OSError as error:
            raise DiskFailedError(f"{self._path}: {error.strerror}") from error

    def read_now(self, position: int, length: int) -> bytes | None:
        return self.read(position, length)

    @property
    def size(self) -> int:
        return self._size

    def close(self) -> None:
        """Nothing is open between reads."""

    def append(self, parts: Sequence[Buffer]) -> None:
        _refuse()

    def sync(self) -> None:
        _refuse()

    def truncate(self, size: int) -> None:
        _refuse()


class ReadOnlyFiles:
    """The port `Files` without its writing half."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self, path: str, *, create: bool = False) -> ReadOnlyFile:
        try:
            return ReadOnlyFile(self.root / path)
        except OSError as error:
            raise DiskFailedError(f"{self.root / path}: {error.strerror}") from error

    def names(self, path: str) -> list[str]:
        folder = self.root / path
        return sorted(each.name for each in folder.iterdir()) if folder.is_dir() else []

    def exists(self, path: str) -> bool:
        return (self.root / path).exists()

    def load(self, path: str) -> bytes | None:
        try:
            return (self.root / path).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DiskFailedError(f"{self.root / path}: {error.strerror}") from error

    def free_bytes(self) -> int:
        return 0

    def store(self, path: str, content: bytes) -> None:
        _refuse()

    def rename(self, old: str, new: str) -> None:
        _refuse()

    def remove(self, path: str) -> None:
        _refuse()

    def sync_directory(self, path: str) -> None:
        _refuse()

    def lock(self) -> None:
        _refuse()


def _refuse() -> NoReturn:
    raise DiskFailedError("this data directory is open for reading only")


@dataclass(frozen=True, slots=True)
class LogPlace:
    """One partition's log in the directory."""

    topic: str
    partition: int
    path: str


class OfflineDirectory:
    """See the module. Raises UsageError if it is none."""

    def __init__(self, root: str) -> None:
        self.root = Path(root)
        self.files = ReadOnlyFiles(self.root)
        if not self.root.is_dir():
            raise UsageError(f"{root}: no such directory")
        if not (self.root / "topics").is_dir() and not (self.root / "meta.json").is_file():
            raise UsageError(f"{root} is not a data directory: it has neither `topics` nor `meta.json`")
        self._image: Image | None = None

    def logs(self, topic: str | None = None, partition: int | None = None) -> list[LogPlace]:
        """All logs of topics, or those of one topic. Raises UsageError if there is none by that name."""
        places = []
        for name in self.files.names("topics"):
            owner, _, number = name.rpartition("-")
            if owner and number.isdigit():
                places.append(LogPlace(owner, int(number), f"topics/{name}"))
        chosen = [
            place
            for place in sorted(places, key=lambda place: (place.topic, place.partition))
            if topic in (None, place.topic) and partition in (None, place.partition)
        ]
        if not chosen and topic is not None:
            known = ", ".join(dict.fromkeys(place.topic for place in places)) or "none"
            what = topic if partition is None else f"{topic}-{partition}"
            raise UsageError(f"{self.root} has no log {what}; topics: {known}")
        return chosen

    def config(self, place: LogPlace) -> TopicConfig:
        """The topic's config as the metadata log has it; the defaults if that cannot be read."""
        from headrace.storage.settings import StorageSettings
        from headrace.storage.topic_config import TopicConfig

        topic = self._topics().topics.get(place.topic)
        configs = dict(topic.configs) if topic is not None else {}
        if place.topic.startswith("__"):
            configs.setdefault("cleanup.policy", "compact")
        return TopicConfig.of(configs, StorageSettings())

    def is_in_use(self) -> bool:
        """Whether a broker holds the lock. Trying to take it could stop a broker from starting: look from outside."""
        try:
            status = (self.root / ".lock").stat()
            held = Path("/proc/locks").read_text(encoding="ascii")
        except OSError:
            return False
        name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        return any(name in line.split() and "->" not in line for line in held.splitlines())

    def _topics(self) -> Image:
        if self._image is None:
            from headrace.broker.controller import image_of
            from headrace.broker.image import Image
            from headrace.broker.raft_storage import read

            try:
                self._image = image_of(read(self.files)[0])
            except HeadraceError:
                self._image = Image()
        return self._image
