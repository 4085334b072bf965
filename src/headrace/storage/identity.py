"""Whose log a directory holds, and whether it is the one that this broker knew.

Rules:
- A log carries the id of its topic and its index in the file `identity`, with a checksum, stored with the first sync.
  Older releases wrote the topic's id alone: `owner`, without a checksum, and `claim`, with one. They are still read.
- What the manifest knows (`manifest.Known`) is durable before the first record is. So a directory that says nothing of
  itself is known by its place; one that says something else, is not there, or is older than it was, is lost: a
  CorruptionError that tells what to do. Nothing is ever removed because of it.
- Removed is only what both the manifest and the directory itself call an older topic's. All else that does not fit is
  set aside.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID
from zlib import crc32

from headrace.core.errors import CorruptionError
from headrace.storage.checked_lines import parse, render

if TYPE_CHECKING:
    from headrace.core.ports import Files, TrackedFiles
    from headrace.storage.log import Log
    from headrace.storage.manifest import Known

logger = logging.getLogger(__name__)

IDENTITY: Final = "identity"
OWNER: Final = "owner"
CLAIM: Final = "claim"
ANY_INDEX: Final = -1
_ID_BYTES: Final = 16
_CHECK_BYTES: Final = 4
_FLIPPED_BITS: Final = 16  # ids are random: two that differ by so few bits are one that was damaged


class Verdict(Enum):
    """What to do with a place before a log is opened there."""

    OPEN = "open"  # what is there is ours, or nothing is there, and never was
    REMOVE = "remove"  # an older topic's
    SET_ASIDE = "set aside"


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose log it is, as its directory says."""

    topic_id: UUID
    index: int = ANY_INDEX  # older releases did not say
    is_checked: bool = True

    def fits(self, topic_id: UUID, index: int) -> bool:
        if self.index not in (index, ANY_INDEX):
            return False
        distance = (self.topic_id.int ^ topic_id.int).bit_count()
        return distance == 0 or (not self.is_checked and distance <= _FLIPPED_BITS)


def identity_of(files: Files, path: str) -> Identity | None:
    """None if the directory does not say, or nothing that can be read. Blocking."""
    content = files.load(f"{path}/{IDENTITY}")
    document = parse(content.rstrip(b"\n")) if content is not None else None
    if document is not None and len(document) >= 2:
        return Identity(UUID(document[0]), int(document[1]))
    claim = files.load(f"{path}/{CLAIM}") or b""
    body = claim[:-_CHECK_BYTES]
    if len(body) == _ID_BYTES and claim[-_CHECK_BYTES:] == crc32(body).to_bytes(_CHECK_BYTES, "big"):
        return Identity(UUID(bytes=body))
    owner = files.load(f"{path}/{OWNER}") or b""
    return Identity(UUID(bytes=owner), is_checked=False) if len(owner) == _ID_BYTES else None


def give_to(log: Log, topic_id: UUID, index: int) -> None:
    """Have the directory say whose log it is, from the next sync on."""
    content = render((str(topic_id), index))
    if log._files.load(f"{log.path}/{IDENTITY}") != content:
        log._backlog.chores.stores[f"{log.path}/{IDENTITY}"] = content


def judge(files: TrackedFiles, path: str, topic_id: UUID, index: int, known: Known | None, *, trust: Trust) -> Verdict:
    """What to do with what is at `path`. Changes nothing. Blocking. Raises CorruptionError if the log was lost."""
    is_there = files.exists(path)
    found = identity_of(files, path) if is_there else None
    if known is not None and known.topic_id == topic_id:
        if known.unsure:  # as the operator said: whatever is there, if it is not another's
            return Verdict.OPEN if found is None or found.fits(topic_id, index) else Verdict.SET_ASIDE
        _compare(files, path, topic_id, index, known, found)
        return Verdict.OPEN
    if not is_there:
        if known is None and trust.is_damaged:
            raise CorruptionError(
                f"{path} is missing, and the manifest of the data directory, which would tell whether it was ever "
                f"there, is damaged. {_remedy(path)}"
            )
        return Verdict.OPEN
    if found is not None and found.fits(topic_id, index):
        return Verdict.OPEN
    if known is not None:
        is_older = found is not None and found.is_checked and found.topic_id == known.topic_id
        return Verdict.REMOVE if is_older else Verdict.SET_ASIDE
    return Verdict.OPEN if found is None and (trust.adopts or _is_empty(files, path)) else Verdict.SET_ASIDE


class Trust(NamedTuple):
    """How far the manifest can be relied on; see there."""

    is_damaged: bool = False
    adopts: bool = False


def _compare(files: TrackedFiles, path: str, topic_id: UUID, index: int, known: Known, found: Identity | None) -> None:
    if not files.exists(path):
        raise CorruptionError(
            f"{path} is missing: this broker had it open, and it ended at offset {known.end_offset} or later. "
            f"{_remedy(path)}"
        )
    if found is not None and not found.fits(topic_id, index):
        raise CorruptionError(
            f"{path} holds the log of another partition (topic id {found.topic_id}, index {found.index}): it was "
            f"swapped. {_remedy(path)}"
        )
    fingerprint = files.fingerprint(path)
    is_same = not known.fingerprint or not fingerprint or fingerprint == known.fingerprint
    if found is None and not is_same:
        raise CorruptionError(
            f"{path} is not the directory that it was, and does not tell whose log it holds. {_remedy(path)}"
        )
    if not is_same and not known.is_exact:
        raise CorruptionError(
            f"{path} was put back from a copy, and since the broker had not stopped cleanly nobody can tell whether "
            f"the copy is the newest. {_remedy(path)}"
        )
    if found is not None and not found.is_checked and found.topic_id != topic_id:
        logger.warning("the owner file of a log is damaged; it is written anew", extra={"path": path})


def check_end(path: str, end_offset: int, known: Known) -> None:
    """Raises CorruptionError if a log is older than the one that was known."""
    if end_offset < known.end_offset and not known.unsure:
        raise CorruptionError(
            f"{path} ends at offset {end_offset}, but everything below {known.end_offset} (of leader epoch "
            f"{known.leader_epoch}) was durable here: it is an older copy, or was cut. {_remedy(path)}"
        )


def _remedy(path: str) -> str:
    place = path.rpartition("/")[2]
    topic, _, index = place.rpartition("-")
    return (
        "Stop the broker and put the newest directory back. If other replicas are in sync it is copied from them "
        f"without that; if none is, and it is lost for good, accept that: headrace log accept DIR {topic} {index}"
    )


def _is_empty(files: Files, path: str) -> bool:
    """Whether no record was ever in it: a crash came between its making and its being noted."""
    for name in files.names(path):
        file = files.open(f"{path}/{name}")
        size = file.size
        file.close()
        if size:
            return False
    return True


def remove(files: Files, path: str) -> None:
    """Remove a log that is not open, and all its files. Blocking."""
    if not files.exists(path):
        return
    doomed = f"{path}.deleted"  # no topic's log has such a name
    files.remove(doomed)
    files.rename(path, doomed)
    files.remove(doomed)
