"""Where `produce` takes messages from: arguments, stdin, files; lines, whole files, JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from headrace.cli.payload import HeaderList, Outgoing, from_json
from headrace.cli.report import UsageError


@dataclass(frozen=True, slots=True)
class Shape:
    """How text becomes messages: what all of them have in common."""

    key: bytes | None = None
    key_separator: bytes | None = None
    headers: HeaderList = field(default_factory=list)
    partition: int = -1
    timestamp_ms: int = 0
    json_lines: bool = False

    def message(self, text: bytes, where: str) -> Outgoing:
        """Raises UsageError that names `where`."""
        if self.json_lines:
            try:
                message = from_json(text)
            except ValueError as error:
                raise UsageError(f"{where} {error}") from None
            message.key = self.key if message.key is None else message.key
            message.headers = [*self.headers, *message.headers]
            message.partition = self.partition
            message.timestamp_ms = self.timestamp_ms or message.timestamp_ms
            return message
        key, value = self.key, text
        if self.key_separator:
            before, found, after = text.partition(self.key_separator)
            if found:
                key, value = before, after
        return self.plain(value, key)

    def plain(self, value: bytes | None, key: bytes | None) -> Outgoing:
        return Outgoing(key, value, self.headers, self.partition, self.timestamp_ms)


def from_arguments(values: Iterable[str], shape: Shape) -> Iterator[Outgoing]:
    for index, value in enumerate(values, 1):
        yield shape.message(value.encode(errors="surrogateescape"), f"argument {index}")


def from_lines(stream: BinaryIO, name: str, shape: Shape, advance: Callable[[int], None]) -> Iterator[Outgoing]:
    """One message per line; `advance` hears how many bytes were read."""
    for index, line in enumerate(stream, 1):
        advance(len(line))
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if text or not shape.json_lines:
            yield shape.message(text, f"{name} line {index}")


def from_files(
    paths: Iterable[str], shape: Shape, *, whole: bool, advance: Callable[[int], None]
) -> Iterator[Outgoing]:
    """Lines of files, or each file as one message. "-" is stdin."""
    for path in paths:
        if path == "-":
            stream = sys.stdin.buffer
            if whole:
                yield shape.plain(stream.read(), shape.key)
            else:
                yield from from_lines(stream, "stdin", shape, advance)
        elif whole:
            content = Path(path).read_bytes()
            advance(len(content))
            yield shape.plain(content, shape.key)
        else:
            with open(path, "rb") as file:
                yield from from_lines(file, path, shape, advance)


def total_bytes(paths: Iterable[str]) -> int | None:
    """Bytes of all files, or None if one of them has no size. Raises OSError for a file that is not there."""
    total = 0
    for path in paths:
        if path == "-" or not Path(path).is_file():
            Path(path).stat() if path != "-" else None
            return None
        total += Path(path).stat().st_size
    return total
