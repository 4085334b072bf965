"""What a disk holds: bytes and names, and which of them survive a power cut.

Rules:
- The model is as mean as POSIX allows; `testing.files` says how. Every choice comes from the caller's generator.
- A lie is a bit that reads show turned, for a while, although the platter has it right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count, pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

SECTOR_BYTES: Final = 512  # what a disk writes whole; file systems deal in larger pages
_inodes = count(1)


def number_inodes_anew() -> None:
    """So that a history has the same numbers, whatever was before it in this process."""
    global _inodes
    _inodes = count(1)


@dataclass(slots=True, eq=False)
class Content:
    """A file's bytes, and what of them is on the platter: `current[:firm] + cut_off`."""

    current: bytearray = field(default_factory=bytearray)
    firm: int = 0
    cut_off: bytes = b""  # durable bytes that a truncate has dropped, while no sync has covered the truncate
    lost: list[tuple[int, int]] = field(default_factory=list)  # ranges that a failed sync has given up
    inode: int = field(default_factory=lambda: next(_inodes))
    lies: dict[int, int] = field(default_factory=dict)  # by position: the bits that reads show turned
    unreadable: bool = False  # reads end in EIO
    evicted: bool = False  # its pages are not in the page cache, until it is read

    def truncate(self, size: int) -> None:
        if size < self.firm:
            self.cut_off = bytes(self.current[size : self.firm]) + self.cut_off
            self.firm = size
        del self.current[size:]

    def read(self, start: int, end: int) -> bytes:
        """What a reader is shown."""
        shown = self.current[start:end]
        for position, mask in self.lies.items():
            if start <= position < start + len(shown):
                shown[position - start] ^= mask
        return bytes(shown)

    def make_firm(self) -> None:
        self.firm = len(self.current)
        self.cut_off = b""

    def give_up(self) -> None:
        if self.firm < len(self.current):
            self.lost.append((self.firm, len(self.current)))

    def after_cut(self, rng: Random) -> bytearray:
        survivor = self.current[: self.firm]
        if self.cut_off and rng.random() < 0.5:
            survivor += self.cut_off
        elif self.firm < len(self.current):
            survivor += _torn(bytes(self.current[self.firm :]), self.firm, rng)
        for start, end in self.lost:
            end = min(end, len(survivor))
            if start < end:
                survivor[start:end] = bytes(end - start)
        return survivor


def _torn(fresh: bytes, position: int, rng: Random) -> bytes:
    """What may be left of bytes that were written at `position` and not synced. A sector is written or it is not."""
    fate = rng.choice(("gone", "whole", "torn", "zeros", "garbage", "holes"))
    cut = rng.randrange(len(fresh) + 1)
    sector = max(0, cut - (position + cut) % SECTOR_BYTES)
    if fate == "gone":
        return b""
    if fate == "whole":
        return fresh
    if fate == "torn":
        return fresh[:cut]
    if fate == "zeros":
        return fresh[:sector] + bytes(len(fresh) - sector)
    if fate == "garbage":
        return fresh[:sector] + rng.randbytes(len(fresh) - sector)
    edges = [0, *range(SECTOR_BYTES - position % SECTOR_BYTES, len(fresh), SECTOR_BYTES), len(fresh)]
    return b"".join(
        fresh[start:end] if rng.random() < 0.5 else bytes(end - start) for start, end in pairwise(edges) if start < end
    )


@dataclass(slots=True, eq=False)
class Folder:
    """A directory's names, and the names on the platter."""

    entries: dict[str, Content | Folder] = field(default_factory=dict)
    firm: dict[str, Content | Folder] = field(default_factory=dict)
    inode: int = field(default_factory=lambda: next(_inodes))

    def after_cut(self, rng: Random) -> Folder:
        kept = Folder(inode=self.inode)
        for name in sorted({*self.entries, *self.firm}):
            now, before = self.entries.get(name), self.firm.get(name)
            survivor = now if now is before or rng.random() < 0.5 else before
            if survivor is None:
                continue
            if isinstance(survivor, Folder):
                kept.entries[name] = survivor.after_cut(rng)
            else:
                content = survivor.after_cut(rng)
                kept.entries[name] = Content(content, len(content), inode=survivor.inode)
        kept.firm = dict(kept.entries)
        return kept


def walk(folder: Folder, prefix: str) -> list[str]:
    found: list[str] = []
    for name, node in folder.entries.items():
        found += walk(node, f"{prefix}{name}/") if isinstance(node, Folder) else [prefix + name]
    return found


def bytes_in(node: Content | Folder) -> int:
    if isinstance(node, Folder):
        return sum(map(bytes_in, node.entries.values()))
    return len(node.current)


def copy_of(node: Content | Folder, *, anew: bool) -> Content | Folder:
    """The same bytes and names, all durable. `anew`: with inodes of their own."""
    if isinstance(node, Folder):
        return folder_copy(node, anew=anew)
    after = Content(bytearray(node.current), len(node.current))
    after.inode = after.inode if anew else node.inode
    return after


def folder_copy(folder: Folder, *, anew: bool) -> Folder:
    after = Folder({name: copy_of(node, anew=anew) for name, node in folder.entries.items()})
    after.inode = after.inode if anew else folder.inode
    after.firm = dict(after.entries)
    return after


def contents_in(node: Content | Folder) -> list[Content]:
    """Every file below."""
    if isinstance(node, Content):
        return [node]
    return [content for child in node.entries.values() for content in contents_in(child)]
