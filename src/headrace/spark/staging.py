"""What a task has to say to the driver: rows as Arrow, compressed; large ones wait in a file that both can reach.

Rules:
- A file belongs to one attempt of one task: its name is never used again, and nobody deletes it but the driver, after
  its batch was committed. What a killed attempt left is deleted with the next batch.
- A part is complete before it is named to anybody.
"""

from __future__ import annotations

import io
import os
import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa

_CODEC: Final = "zstd"


@dataclass(frozen=True, slots=True)
class Part:
    """The rows of one task: in `content`, or in the file `path`."""

    rows: int = 0
    content: bytes = b""
    path: str = ""


class Staging:
    """A directory under a checkpoint, on any file system that Arrow knows. Empty `location`: everything travels."""

    def __init__(self, location: str, stage_above_bytes: int) -> None:
        self._location = location
        self._stage_above_bytes = stage_above_bytes

    def pack(self, batches: Iterable[pa.RecordBatch], name: str) -> Part:
        """Rows become a part; `name` begins the file's name and sorts by batch."""
        import pyarrow as pa

        spill = _Spill(self, f"{name}-{uuid.uuid4().hex}.arrows", self._stage_above_bytes if self._location else None)
        writer: Any = None
        rows = 0
        try:
            for batch in batches:
                if not batch.num_rows:
                    continue
                if writer is None:
                    settings = pa.ipc.IpcWriteOptions(compression=_CODEC)
                    writer = pa.ipc.new_stream(pa.PythonFile(spill, "w"), batch.schema, options=settings)
                writer.write_batch(batch)
                rows += batch.num_rows
        finally:
            if writer is not None:
                writer.close()
            spill.finish()
        return Part(rows, spill.content(), spill.path)

    def unpack(self, part: Part) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        if not part.rows:
            return
        if not part.path:
            yield from pa.ipc.open_stream(part.content)
            return
        files, path = file_system(part.path)
        try:
            stream = files.open_input_stream(path)
        except FileNotFoundError:
            raise ConfigError(
                f"part {part.path} of a batch is not where the driver can read it; "
                "set the option 'stagingLocation' to a place that driver and executors share"
            ) from None
        with stream:
            yield from pa.ipc.open_stream(stream)

    def create(self, name: str) -> tuple[Any, str]:
        files, path = file_system(self._location)
        files.create_dir(path, recursive=True)
        return files.open_output_stream(f"{path}/{name}", compression=None), f"{self._location.rstrip('/')}/{name}"

    def clean(self, up_to: str) -> None:
        """Delete all parts whose names sort before or begin with `up_to`."""
        if not self._location:
            return
        from pyarrow import fs

        files, path = file_system(self._location)
        for found in files.get_file_info(fs.FileSelector(path, allow_not_found=True)):
            if found.base_name < up_to or found.base_name.startswith(up_to):
                try:
                    files.delete_file(found.path)
                except OSError:
                    continue  # the next batch tries again


class _Spill(io.RawIOBase):
    """A file in memory that moves to the staging directory when it grows."""

    def __init__(self, staging: Staging, name: str, limit_bytes: int | None) -> None:
        super().__init__()
        self._staging = staging
        self._name = name
        self._limit_bytes = limit_bytes
        self._memory = io.BytesIO()
        self._file: Any = None
        self.path = ""

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        if self._file is not None:
            self._file.write(content)
            return len(content)
        size = self._memory.write(content)
        if self._limit_bytes is not None and self._memory.tell() > self._limit_bytes:
            self._file, self.path = self._staging.create(self._name)
            self._file.write(self._memory.getbuffer())
            self._memory = io.BytesIO()
        return size

    def finish(self) -> None:
        if self._file is not None:
            self._file.close()

    def content(self) -> bytes:
        return self._memory.getvalue()


def absolute(location: str) -> str:
    """The same for driver and executors, which run in different directories."""
    if not location or re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", location):
        return location
    return os.path.abspath(location)


def file_system(location: str) -> tuple[Any, str]:
    from pyarrow import fs

    local = re.match(r"file:(?://)?(?=/)(.*)", location)
    if local is not None or ":" not in location.split("/")[0]:
        return fs.LocalFileSystem(), local[1] if local is not None else os.path.abspath(location)
    files, path = fs.FileSystem.from_uri(location)
    return files, path
