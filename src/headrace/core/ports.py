"""The seams between Headrace and the world. `runtime/` implements them for real, `testing/` with faults.

Rules:
- A `File` and a `Files` never interpret what they store.
- Paths are relative, use "/", and are built from validated names only.
- Methods marked *blocking* may take as long as the disk takes: call them at start-up or through `Workers`.
- Errors are `StorageError`s: `PassingError` where there is no space (`DiskFullError`), no descriptor or no memory,
  `DiskFailedError` for all else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")
Address = tuple[str, int]  # host and port
Buffer = bytes | bytearray | memoryview


class Clock(Protocol):
    """Wall time for timestamps and time retention; monotonic seconds for measuring. Timeouts use the loop's time."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...


class Dice(Protocol):
    """Chance: ids, nonces, jitter. What a simulation seeds; outside it, the system's own generator, fit for secrets."""

    def random(self) -> float:
        """From 0 to 1, without 1."""

    def randrange(self, stop: int, /) -> int:
        """From 0 to below `stop`."""

    def randbytes(self, n: int, /) -> bytes: ...


class Workers(Protocol):
    """Threads for blocking work (fsync, cold reads). The awaitable resolves on the loop."""

    def run(self, work: Callable[[], T]) -> Awaitable[T]: ...


class File(Protocol):
    """One append-only file. `append`, `truncate` and `size` are for the owner (the loop's thread)."""

    def append(self, parts: Sequence[Buffer]) -> None:
        """Write all parts at the end, in one call where the system allows it.

        After an error the file may hold part of the bytes; `size` still tells the size before the call, and the
        next append or truncate starts from there.
        """

    def read_now(self, position: int, length: int) -> bytes | bytearray | None:
        """Read without waiting for a disk; None if that is not possible now. Short at the end of the file."""

    def read(self, position: int, length: int) -> bytes:
        """Blocking, thread-safe. Short at the end of the file."""

    def sync(self) -> None:
        """Blocking, thread-safe. Make everything appended so far survive a power cut (fdatasync)."""

    def truncate(self, size: int) -> None:
        """Cut the file to `size` bytes."""

    @property
    def size(self) -> int:
        """Bytes in the file."""

    def close(self) -> None:
        """Close without syncing. Safe while a read or a sync is under way in a worker: they finish or fail cleanly."""


class Held(Protocol):
    """A lock that is held until `release`, or until the process ends."""

    def release(self) -> None: ...


class Files(Protocol):
    """A directory tree. Its methods may be called from any thread."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for append and read; with `create`, parents are made too."""

    def names(self, path: str) -> list[str]:
        """Entries of a directory, sorted; empty if there is none."""

    def exists(self, path: str) -> bool: ...

    def load(self, path: str) -> bytes | None:
        """Whole content of a small file, or None if it does not exist. Blocking."""

    def store(self, path: str, content: bytes) -> None:
        """Replace a small file atomically and durably (write aside, sync, rename, sync the directory). Blocking."""

    def rename(self, old: str, new: str) -> None:
        """Atomic and durable; works on files and directories. Blocking."""

    def remove(self, path: str) -> None:
        """Remove a file or a whole directory tree; a missing one is no error. Blocking."""

    def sync_directory(self, path: str) -> None:
        """Make names created in `path` survive a power cut. Blocking."""

    def free_bytes(self) -> int:
        """Space left for us."""

    def lock(self) -> Held | None:
        """Claim the tree for this process; None if somebody else holds it."""


class TrackedFiles(Files, Protocol):
    """A tree that can tell a file from a copy of it."""

    def fingerprint(self, path: str) -> int:
        """The same for as long as a file or directory lives, through changes and renames; another for every copy.

        0 if it does not exist, or cannot be told from a copy.
        """


class Listening(Protocol):
    """A port that was taken. Nobody is answered before `start`."""

    @property
    def port(self) -> int: ...

    async def start(self) -> None: ...

    def close(self) -> None:
        """Take no more connections; those that are there go on."""

    async def wait_closed(self) -> None: ...


class Datagrams(Protocol):
    """A port for packets that may be lost, doubled or late."""

    def send(self, packet: bytes, to: Address) -> None:
        """Send, or lose. Never raises for what the network does."""

    def close(self) -> None: ...


class Network(Protocol):
    """Sockets. Everything that leaves is bound to the node's own address, so that a node can be cut off by it."""

    @property
    def most_connections(self) -> int | None:
        """Connections that the system lets us have besides files and all else; None: it sets no limit."""

    async def listen(self, host: str, port: int, new_protocol: Callable[[], asyncio.Protocol]) -> Listening:
        """Take a port (0: a free one). Raises OSError."""

    async def connect(self, address: Address, new_protocol: Callable[[], asyncio.Protocol]) -> asyncio.Transport:
        """A stream to another node; its protocol has been told of it. Raises OSError."""

    async def datagrams(self, host: str, port: int, receive: Callable[[bytes, Address], None]) -> Datagrams:
        """Take a datagram port. Raises OSError."""


class Contact(Enum):
    """What a connection to another node tells of it."""

    MADE = "made"
    LOST = "lost"  # the other side ended it
    REFUSED = "refused"  # its machine says that nobody listens there


class Links(Protocol):
    """Requests to other nodes: Kafka frames, without the length, over authenticated connections.

    Requests of one lane are answered in their order; lanes do not wait for each other.
    """

    async def call(self, node_id: int, frame: bytes, *, lane: str, timeout_s: float) -> bytes:
        """The answer's frame, of the same correlation id. Raises LinkError: what became of the request is not known."""

    def version(self, node_id: int) -> int:
        """What a node and we understand, of what nodes say to each other; the oldest, as long as that is not known."""
