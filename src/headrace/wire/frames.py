"""The Kafka wire as frames: a 4-byte big-endian length, then so many bytes.

Rules:
- Bytes in, whole frames out; no sockets.
- A length that is negative, zero or over the limit is a ProtocolError before anything is allocated. HTTP and TLS
  greetings read as a length are over any limit.
- A frame that does not come in one piece is announced (`on_begun`) as soon as its first four bytes are there: API key
  and version, so that it can be refused before the rest has come.
- Memory follows the bytes that have arrived, never the length that was announced.
- A frame is copied once (twice where it trickles in), however it was cut up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from headrace.core.errors import ProtocolError
from headrace.core.limits import FRAME_BYTES_BEFORE_AUTH

_PREFIX_BYTES: Final = 4
_HEAD_BYTES: Final = 4
_SMALL_PIECE_BYTES: Final = (
    4096  # smaller pieces are gathered: a list of tiny objects would cost many times their bytes
)


class FrameSplitter:
    """Cuts a stream of bytes into frames. After a ProtocolError it must not be fed again."""

    __slots__ = ("_head", "_missing", "_on_begun", "_pieces", "_prefix", "max_frame_bytes", "pending_bytes")

    def __init__(
        self,
        max_frame_bytes: int = FRAME_BYTES_BEFORE_AUTH,
        on_begun: Callable[[bytes, int], None] | None = None,
    ) -> None:
        """`on_begun` is called with the first four bytes of a frame and its length, and may raise ProtocolError."""
        self.max_frame_bytes = max_frame_bytes
        self.pending_bytes = 0  # held of a frame, or of a length, that is not whole yet
        self._on_begun = on_begun
        self._prefix = b""  # of a length that is not whole yet
        self._head: bytes | None = None  # of a frame under way, as long as it is too short to be announced
        self._pieces: list[bytes | bytearray] = []  # of a frame that is not whole yet
        self._missing = 0  # bytes until that frame is whole; 0: between frames

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that became whole with `data`, without their lengths, in order."""
        frames: list[bytes] = []
        position = 0
        if self._missing:
            position = self._continue(data, frames)
        elif self._prefix:
            data = self._prefix + data
            self._prefix = b""
            self.pending_bytes = 0
        end = len(data)
        limit = self.max_frame_bytes
        while end - position >= _PREFIX_BYTES:
            start = position + _PREFIX_BYTES
            length = int.from_bytes(data[position:start], "big")
            if not 0 < length <= limit:
                raise _bad_length(data[position:start], limit)
            position = start + length
            if position > end:
                self._missing = position - end
                self._head = b""
                self._keep(data[start:])
                return frames
            frames.append(data[start:position])
        if position < end:
            self._prefix = data[position:]
            self.pending_bytes = end - position
        return frames

    def clear(self) -> None:
        """Drop what is not whole; it must not be fed again."""
        self._pieces.clear()
        self._prefix = b""
        self.pending_bytes = 0

    def _continue(self, data: bytes, frames: list[bytes]) -> int:
        """Add to the frame under way; the position in `data` that follows it."""
        missing = self._missing
        if len(data) < missing:
            self._missing = missing - len(data)
            self._keep(data)
            return len(data)
        self._pieces.append(data if len(data) == missing else data[:missing])
        frames.append(b"".join(self._pieces))
        self._pieces.clear()
        self._missing = 0
        self.pending_bytes = 0
        return missing

    def _keep(self, piece: bytes) -> None:
        self.pending_bytes += len(piece)
        if self._head is not None and self._on_begun is not None:
            self._announce(piece, self._on_begun)
        if len(piece) >= _SMALL_PIECE_BYTES:
            self._pieces.append(piece)
        elif self._pieces and isinstance(tail := self._pieces[-1], bytearray):
            tail += piece
        elif piece:
            self._pieces.append(bytearray(piece))

    def _announce(self, piece: bytes, on_begun: Callable[[bytes, int], None]) -> None:
        self._head = head = (self._head or b"") + piece[:_HEAD_BYTES]
        if len(head) >= _HEAD_BYTES:
            self._head = None
            on_begun(head[:_HEAD_BYTES], self.pending_bytes + self._missing)


def _bad_length(prefix: bytes, limit: int) -> ProtocolError:
    length = int.from_bytes(prefix, "big", signed=True)
    if prefix[:2] == b"\x16\x03":
        return ProtocolError("TLS bytes on a port that speaks plain Kafka")
    if prefix in (b"GET ", b"POST", b"PUT ", b"HEAD", b"OPTI", b"DELE", b"PATC", b"CONN", b"PRI "):
        return ProtocolError("HTTP bytes on a port that speaks Kafka")
    return ProtocolError(f"a frame of {length} bytes; 1 to {limit} are allowed")
