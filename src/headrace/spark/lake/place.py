"""Where a table lies: a directory, or a URI that pyarrow can open (s3://, gs://, hdfs://).

Rule: on a cluster every executor and the driver must see the same files under it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from pyarrow import fs

from headrace.core.errors import ConfigError


@dataclass(frozen=True)
class Place:
    """A table's root: `uri` for Delta and Spark, `files` and `root` for pyarrow."""

    uri: str
    files: Any
    root: str

    @classmethod
    def of(cls, path: str | os.PathLike[str]) -> Place:
        text = os.fspath(path)
        if not text.strip():
            raise ConfigError("the table's path is empty")
        if text.startswith("file://"):
            text = text.removeprefix("file://")
        if "://" in text:
            try:
                files, root = fs.FileSystem.from_uri(text.rstrip("/"))
            except (ValueError, OSError) as error:
                raise ConfigError(f"cannot open {text}: {error}") from None
            return cls(text.rstrip("/"), files, root)
        root = os.path.abspath(os.path.expanduser(text))
        return cls(root, fs.LocalFileSystem(), root)

    def path(self, relative: str) -> str:
        """What pyarrow calls a file of the table."""
        return f"{self.root}/{relative}"

    def size(self, relative: str) -> int | None:
        """Bytes of a file; None if it is not there."""
        found = self.files.get_file_info(self.path(relative))
        return int(found.size) if found.type == fs.FileType.File else None

    def names(self, relative: str) -> list[str]:
        """The files directly in a directory, sorted; none if it is not there."""
        found = self.files.get_file_info(fs.FileSelector(self.path(relative), allow_not_found=True))
        return sorted(each.base_name for each in found if each.type == fs.FileType.File)

    def read(self, relative: str) -> bytes:
        with self.files.open_input_stream(self.path(relative)) as source:
            return bytes(source.read())

    def write(self, relative: str, content: bytes) -> None:
        """Write a file so that it is there as a whole or not at all."""
        path = self.path(relative)
        self.files.create_dir(path.rpartition("/")[0], recursive=True)
        half = f"{path}.{os.getpid()}.tmp"
        with self.files.open_output_stream(half) as sink:
            sink.write(content)
        self.files.move(half, path)

    def delete(self, relative: str) -> None:
        self.files.delete_file(self.path(relative))
