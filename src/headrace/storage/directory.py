"""Whose data directory this is: cluster, node and directory id, and the lock.

Rules:
- The identity is written once, before anything else, and never changed; but that there is a manifest is noted in it
  when an older directory gets one. It carries its own checksum.
- Whatever does not fit is a refusal with a remedy: a broker never starts on a directory that is not its own, and
  never takes a damaged or half-emptied one for a new one.
- One process at a time.

What one directory cannot tell: whether it was emptied *completely* (it looks new; say so with `must_exist` or expect a
`cluster_id`). Whether it is a copy of itself is for `broker.directory_state` to find out.
"""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from headrace.core.ports import Files, Held

PATH: Final = "meta.json"
FORMAT: Final = 1
CLEAN: Final = "clean"  # there while no broker runs, if the last one ended cleanly
SYSTEM: Final = "system"  # the run of the operating system that holds what a broker here has written
STARTS: Final = "starts"
SIGNS_OF_LIFE: Final = ("topics", "metadata", "stray", "catalog.sqlite")  # only a broker leaves these


def random_id(random_bytes: Callable[[int], bytes] = lambda size: uuid.uuid4().bytes[:size]) -> str:
    """A new id in Kafka's form: 16 random bytes, URL-safe base64 without padding, no dash in front."""
    while True:
        text = base64.urlsafe_b64encode(random_bytes(16)).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class Directory:
    """A claimed data directory."""

    def __init__(self, held: Held, meta: dict[str, Any], *, is_new: bool) -> None:
        self._held = held
        self._meta = meta
        self.cluster_id: str = meta["cluster_id"]
        self.node_id: int = meta["node_id"]
        self.directory_id: str = meta["directory_id"]
        self.is_new = is_new

    @classmethod
    def claim(
        cls,
        files: Files,
        *,
        node_id: int,
        cluster_id: str | None = None,
        must_exist: bool = False,
        new_id: Callable[[], str] = random_id,
    ) -> Directory:
        """Lock the directory and check, or on the first start write, whose it is. Blocking.

        Raises ConfigError if the directory is another's (or in use), StorageError if it is damaged.
        """
        held = files.lock()
        if held is None:
            raise ConfigError(
                "the data directory is in use by another broker: stop that one, or give this one its own (--data-dir)"
            )
        try:
            content = files.load(PATH)
            if content is None:
                meta = _first_start(files, node_id, cluster_id, must_exist, new_id)
            else:
                meta = _parse(content)
                _compare(meta, node_id, cluster_id)
        except BaseException:
            held.release()
            raise
        return cls(held, meta, is_new=content is None)

    @property
    def has_manifest(self) -> bool:
        return bool(self._meta.get("manifest"))

    def note_manifest(self, files: Files) -> None:
        """From now on a manifest that is not there was lost. Blocking."""
        if not self.has_manifest:
            self._meta["manifest"] = True
            files.store(PATH, _render(self._meta))

    def release(self) -> None:
        self._held.release()


def last_start(files: Files) -> int:
    """The number of the last start of a broker here; 0 if there was none, or nobody knows. Blocking."""
    content = files.load(STARTS)
    return int(content) if content is not None and content.isdigit() else 0


def store_start(files: Files, number: int) -> None:
    """Count a start: higher than every one before. Digits alone, for older releases; the manifest has it checked."""
    files.store(STARTS, str(number).encode())


def take_clean_mark(files: Files, boot_id: str = "") -> bool:
    """Whether all that the last broker wrote is there; from now on that is not sure. Blocking.

    It ended cleanly; or it was killed, and the system that had taken its writes runs still (`boot_id`: `trust_system`).
    """
    clean = files.exists(CLEAN)
    kept = clean or (boot_id != "" and files.load(SYSTEM) == boot_id.encode())
    if kept:
        trust_system(files, boot_id)
    if clean:
        files.remove(CLEAN)
        files.sync_directory("")
    return kept


def trust_system(files: Files, boot_id: str) -> None:
    """Whoever finds us killed, in this run of the operating system, finds all that we wrote. Blocking.

    Not before it is known to the cluster what earlier ends have cost. `boot_id`: of this run; empty: not known.
    """
    if files.load(SYSTEM) != boot_id.encode():
        files.store(SYSTEM, boot_id.encode())


def distrust_system(files: Files) -> None:
    """A sync has failed: what it should have written may vanish at any time. Not synced, since only this run counts."""
    files.remove(SYSTEM)


def leave_clean_mark(files: Files) -> None:
    """Everything is closed and synced. Blocking."""
    files.store(CLEAN, b"")


def _first_start(
    files: Files, node_id: int, cluster_id: str | None, must_exist: bool, new_id: Callable[[], str]
) -> dict[str, Any]:
    found = [name for name in SIGNS_OF_LIFE if files.exists(name)]
    if found:
        raise StorageError(
            f"the data directory holds {', '.join(found)} but no {PATH}: it was partly emptied or restored. "
            f"Bring {PATH} back from a backup; or, to begin anew, move everything out of the directory"
        )
    if must_exist:
        raise StorageError(
            "the data directory is empty, and it must not be: is its disk mounted? "
            "Mount it or restore the directory; or, to begin anew, allow a new one"
        )
    meta = {
        "format": FORMAT,
        "cluster_id": cluster_id if cluster_id is not None else new_id(),
        "node_id": node_id,
        "directory_id": new_id(),
        "manifest": True,
    }
    files.store(PATH, _render(meta))
    return meta


def _compare(meta: dict[str, Any], node_id: int, cluster_id: str | None) -> None:
    if meta["node_id"] != node_id:
        raise ConfigError(
            f"the data directory belongs to node {meta['node_id']}, and this is node {node_id}: "
            f"start with node id {meta['node_id']}, or give this node its own directory (--data-dir)"
        )
    if cluster_id is not None and meta["cluster_id"] != cluster_id:
        raise ConfigError(
            f"the data directory belongs to cluster {meta['cluster_id']}, and this is cluster {cluster_id}: "
            "mount the right one, or give this node an empty directory (--data-dir)"
        )


def _render(meta: dict[str, Any]) -> bytes:
    return json.dumps({**meta, "checksum": _checksum(meta)}, indent=2).encode() + b"\n"


def _checksum(meta: dict[str, Any]) -> int:
    return zlib.crc32(json.dumps(meta, sort_keys=True).encode())


def _parse(content: bytes) -> dict[str, Any]:
    damaged = StorageError(
        f"{PATH} of the data directory is damaged: bring it back from a backup. The logs themselves are untouched"
    )
    try:
        meta = json.loads(content)
    except ValueError:
        raise damaged from None
    if not isinstance(meta, dict) or meta.pop("checksum", None) != _checksum(meta):
        raise damaged
    if not isinstance(meta.get("format"), int):
        raise damaged
    if meta["format"] > FORMAT:
        raise StorageError(
            f"the data directory was written by a newer Headrace (format {meta['format']}, this one knows {FORMAT}): "
            "start the newer version"
        )
    wanted = {"cluster_id": str, "node_id": int, "directory_id": str}
    if any(not isinstance(meta.get(name), kind) for name, kind in wanted.items()):
        raise damaged
    return meta
