"""Harm to the files of a node, and how it is undone.

Rules:
- Every harm keeps what it took. `undo` brings back what was there, and may be called while the node is down (or, for a
  flipped bit, while it runs).
- Bits flip in durable bytes only: well before the end of a segment, where no torn write explains them.
- What lies in the harmed folder is remembered: a broker may set logs aside, but never remove or shorten them.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

TOPICS: Final = "topics"
STRAY: Final = "stray"
INDEXES: Final = (".index", ".timeindex", ".producers")
DURABLE: Final = 0.7  # of a segment: behind every flipped bit there are whole batches
HEADER_BYTES: Final = 61
FEW: Final = 4


class Batch(NamedTuple):
    """Where a record batch lies."""

    position: int
    size: int
    base_offset: int
    next_offset: int


class Harm:
    """Something was done to files."""

    def __init__(self, says: str, undo: Callable[[], None], *, folders: list[Path] | None = None) -> None:
        self.says = says
        self.undo = undo
        self.batch: Batch | None = None  # in which a bit was flipped
        self.flipped: tuple[Path, int, int] | None = None  # file, position, and the byte that is there now
        self.place: tuple[str, int] | None = None  # topic and partition
        self.copies = False  # what `undo` brings back are copies
        self._logs = {
            (folder.name, log.name): log.read_bytes() for folder in folders or [] for log in folder.glob("*.log")
        }

    def is_in_place(self) -> bool:
        """Whether a flipped bit is there still."""
        if self.flipped is None:
            return False
        path, position, byte = self.flipped
        try:
            with path.open("rb") as file:
                file.seek(position)
                return file.read(1) == bytes([byte])
        except FileNotFoundError:
            return False

    def removed(self, data: Path) -> list[str]:
        """Logs of the harmed folders that are no longer there, neither in place nor set aside, as they were."""
        gone = []
        for (folder, name), content in self._logs.items():
            places = [data / TOPICS / folder / name]
            places += [found / name for found in (data / STRAY).glob(f"{folder}*")]
            if not any(path.exists() and path.read_bytes().startswith(content) for path in places):
                gone.append(f"{folder}/{name}")
        return gone


def partitions(data: Path) -> list[Path]:
    """Folders of partitions that hold something; those of users count thrice."""
    found = sorted(path for path in (data / TOPICS).iterdir() if not path.name.endswith(".deleted"))
    filled = [path for path in found if any(log.stat().st_size for log in path.glob("*.log"))]
    return [path for path in filled for _ in range(1 if path.name.startswith("__") else 3)]


def place_of(folder: Path) -> tuple[str, int]:
    topic, _, index = folder.name.rpartition("-")
    return topic, int(index)


def batches(log: Path) -> Iterator[Batch]:
    """The whole batches of a segment, by their headers alone."""
    content = log.read_bytes()
    position = 0
    while position + HEADER_BYTES <= len(content):
        size = 12 + int.from_bytes(content[position + 8 : position + 12], "big")
        if position + size > len(content) or size < HEADER_BYTES:
            return
        base = int.from_bytes(content[position : position + 8], "big")
        count = int.from_bytes(content[position + 23 : position + 27], "big") + 1
        yield Batch(position, size, base, base + count)
        position += size


# -- harm ------------------------------------------------------------------------------------------------------------


def remove_folder(folder: Path, stash: Path, *, copy: bool = False) -> Harm:
    """`copy`: what comes back is a copy, as from a backup."""
    kept = _free(stash, folder.name)
    folder.rename(kept)

    def undo() -> None:
        _clear(folder, stash)
        if copy:
            shutil.copytree(kept, folder)
        else:
            kept.rename(folder)

    harm = _of(Harm(f"{folder.name} was removed", undo), folder)
    harm.copies = copy
    return harm


def put_back_folder(folder: Path, copy: Path, stash: Path) -> Harm:
    """An older copy takes the place of a folder."""
    kept = _free(stash, folder.name)
    folder.rename(kept)
    shutil.copytree(copy, folder)

    def undo() -> None:
        _clear(folder, stash)
        kept.rename(folder)

    return _of(Harm(f"{folder.name} was put back from an older copy", undo, folders=[folder]), folder)


def swap_folders(one: Path, other: Path, stash: Path) -> Harm:
    numbers = {folder: folder.stat().st_ino for folder in (one, other)}
    aside = _free(stash, one.name)
    one.rename(aside)
    other.rename(one)
    aside.rename(other)

    def undo() -> None:
        """Move the folders themselves: a copy is not what was there. They may have been set aside."""
        data = one.parents[1]
        there = {path.stat().st_ino: path for path in (*(data / TOPICS).iterdir(), *(data / STRAY).glob("*"))}
        kept = {folder: _free(stash, folder.name) for folder in numbers}
        for folder, number in numbers.items():
            there[number].rename(kept[folder])
        for folder, path in kept.items():
            _clear(folder, stash)
            path.rename(folder)

    return _of(Harm(f"{one.name} and {other.name} were swapped", undo, folders=[one, other]), one)


def replace_directory(data: Path, copy: Path | None, stash: Path) -> Harm:
    """An older copy, or an empty directory, takes the place of all of a node's files."""
    kept = _free(stash, data.name)
    data.rename(kept)
    if copy is not None:
        shutil.copytree(copy, data)

    def undo() -> None:
        _clear(data, stash)
        kept.rename(data)

    return Harm(
        "the data directory was put back from an older copy" if copy else "the data directory was emptied", undo
    )


def change_file(path: Path, change: Callable[[bytes], bytes | None], says: str) -> Harm:
    """A small file gets another content, or goes away (None)."""
    before = path.read_bytes()
    after = change(before)

    def undo() -> None:
        """Unless the broker has written it anew."""
        if (path.read_bytes() if path.exists() else None) == after:
            path.write_bytes(before)

    is_partition = path.parent.parent.name == TOPICS
    harm = Harm(f"{path.parent.name}/{path.name} {says}", undo, folders=[path.parent] if is_partition else [])
    if after is None:
        path.unlink()
    else:
        path.write_bytes(after)
    return _of(harm, path.parent) if is_partition else harm


def flip_segment(log: Path, where: float, bit: int, *, evict: bool) -> Harm | None:
    """A bit flips in a batch that was durable. None if the segment is too short for that."""
    found = list(batches(log))
    durable = found[: int(len(found) * DURABLE)]
    if not durable:
        return None
    position = int(where * (durable[-1].position + durable[-1].size))
    batch = next(each for each in durable if position < each.position + each.size)
    byte = log.read_bytes()[position]
    says = f"bit {bit} of byte {position - batch.position} of the batch at offset {batch.base_offset} was flipped"

    def undo() -> None:
        for path in (log, *(log.parents[2] / STRAY).glob(f"{log.parent.name}*/{log.name}")):
            if path.exists() and path.read_bytes()[position : position + 1] == bytes([byte ^ 1 << bit]):
                _write(path, position, byte, evict=evict)

    harm = Harm(f"{log.parent.name}/{log.name}: {says}", undo)
    harm.batch, harm.flipped = batch, (log, position, byte ^ 1 << bit)
    _write(log, position, byte ^ 1 << bit, evict=evict)
    return _of(harm, log.parent)


def append_garbage(folder: Path, *, zeros: bool, dice: random.Random) -> Harm:
    """A torn write behind the last batch of the active segment."""
    log = max(folder.glob("*.log"))
    size = dice.randint(1, 4000)
    before = log.stat().st_size
    with log.open("ab") as file:
        file.write(bytes(size) if zeros else dice.randbytes(size))

    def undo() -> None:
        os.truncate(log, before)

    return _of(Harm(f"{size} bytes of {'zeros' if zeros else 'garbage'} behind {folder.name}/{log.name}", undo), folder)


# -- targets ---------------------------------------------------------------------------------------------------------


def segments(folder: Path) -> list[Path]:
    """Segments with some batches in them; if there are none, the largest one."""
    found = sorted(folder.glob("*.log"))
    filled = [log for log in found if len(list(batches(log))) >= FEW]
    return filled or [max(found, key=lambda log: log.stat().st_size)]


def small_files(folder: Path) -> list[Path]:
    """What a partition's folder holds besides segments and what belongs to them."""
    return sorted(path for path in folder.iterdir() if path.suffix not in (".log", *INDEXES) and path.is_file())


def index_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in INDEXES and path.stat().st_size)


def node_files(data: Path) -> list[Path]:
    """Files of a node that no partition owns, and that are not caches."""
    found = [path for path in data.iterdir() if path.is_file() and path.stat().st_size]
    found += [path for path in (data / "metadata").iterdir() if path.is_file() and path.stat().st_size]
    return sorted(path for path in found if not path.name.startswith((".lock", "catalog")))


def flipped(where: float, bit: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        position = min(int(where * len(content)), len(content) - 1)
        return content[:position] + bytes([content[position] ^ 1 << bit]) + content[position + 1 :]

    return change


def cut(where: float) -> Callable[[bytes], bytes]:
    return lambda content: content[: int(where * len(content))]


def _of(harm: Harm, folder: Path) -> Harm:
    harm.place = place_of(folder)
    return harm


def _write(path: Path, position: int, byte: int, *, evict: bool) -> None:
    with path.open("r+b", buffering=0) as file:
        os.pwrite(file.fileno(), bytes([byte]), position)
        os.fsync(file.fileno())
        if evict:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _clear(folder: Path, stash: Path) -> None:
    """Whatever took the place of a folder goes out of the way."""
    if folder.exists():
        folder.rename(_free(stash, f"{folder.name}.replaced"))


def _free(stash: Path, name: str) -> Path:
    stash.mkdir(exist_ok=True)
    return next(path for number in range(1000) if not (path := stash / f"{name}.{number}").exists())
