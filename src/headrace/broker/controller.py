"""Who decides: turns proposals into committed records and committed records into the next image.

This driver is for one node. Raft takes its place later; everything else sees only `propose`, `image` and `proposed`.

Rules:
- One log entry is one proposal, so a proposal is whole or absent, whatever happens.
- Decide against `proposed` and call `propose` without awaiting in between: nothing can slip in. `proposed` is the
  image as it will be once everything under way is durable; clients are shown `image` only.
- Nothing is applied, answered or told to subscribers before it is synced, in whatever flush mode the topics are.
- Subscribers are called on the loop, in the log's order, with the image before and after. They must not raise. What
  they set going behind (logs to open) is waited for before a proposal returns, through their `settled`.
- A full disk refuses a proposal and changes nothing. Any other failure is final: the controller is offline, and every
  proposal ends in KAFKA_STORAGE_ERROR.
- A caller that goes away does not take its proposal along: once appended, it will be applied.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from headrace.broker.image import Image, MetadataRecord, apply, records_of
from headrace.core.errors import ApiError, CorruptionError, DiskFullError, ErrorCode

SNAPSHOT_AFTER = 10_000  # records that the log may hold beyond twice the last snapshot
FORMAT = 1

OnChange = Callable[[Image, Image], None]
Settled = Callable[[], Awaitable[None]]


class MetadataLog(Protocol):
    """Where proposals are kept, in order."""

    def append(self, entry: bytes) -> int:
        """Add an entry; returns its offset. Raises StorageError: then nothing was added."""

    def synced(self, offset: int) -> Awaitable[None]:
        """Wait until the entry at `offset`, and all before it, survive a power cut. Raises StorageError."""

    def read_all(self) -> Iterable[tuple[int, bytes]]:
        """Every (offset, entry) that is left, in order. Blocking. Raises StorageError."""

    def delete_before(self, offset: int) -> None:
        """Forget entries below `offset`, now or some time later."""


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the metadata log. A snapshot starts again from nothing."""

    format: int
    snapshot: bool
    records: list[MetadataRecord]


class _Pending(NamedTuple):
    offset: int
    image: Image  # after this proposal
    snapshot: bool
    answer: asyncio.Future[Image] | None


class Controller:
    """See the module."""

    def __init__(self, log: MetadataLog, *, snapshot_after: int = SNAPSHOT_AFTER) -> None:
        self._log = log
        self._snapshot_after = snapshot_after
        self._snapshot_records = 0
        self._log_records = 0
        self._image = Image()
        self._proposed = self._image
        self._subscribers: list[OnChange] = []
        self._settled: list[Settled] = []
        self._pending: deque[_Pending] = deque()
        self._running: asyncio.Task[None] | None = None
        self._fault: Exception | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(Proposal)

    @property
    def image(self) -> Image:
        """What is committed and applied."""
        return self._image

    @property
    def proposed(self) -> Image:
        """What will be committed if nothing fails. For decisions, never for answers."""
        return self._proposed

    @property
    def fault(self) -> Exception | None:
        """Why the controller is offline, or None."""
        return self._fault

    def subscribe(self, on_change: OnChange, settled: Settled | None = None) -> None:
        """Have `on_change(old, new)` called for every later change; `settled` waits until it has taken effect."""
        self._subscribers.append(on_change)
        if settled is not None:
            self._settled.append(settled)

    def load(self) -> Image:
        """Replay the log at start-up. Blocking. Raises StorageError with a message for the operator."""
        image = Image()
        for offset, entry in self._log.read_all():
            try:
                proposal = self._decoder.decode(entry)
                if proposal.format != FORMAT:
                    raise ValueError(f"it has format {proposal.format}, this release reads format {FORMAT}")
                image = apply(Image() if proposal.snapshot else image, proposal.records)
            except (msgspec.MsgspecError, ValueError, KeyError, AssertionError) as error:
                raise CorruptionError(
                    f"the metadata log cannot be replayed: entry {offset}: {error}; "
                    "nothing was changed: restore the data directory from a backup"
                ) from error
            count = len(proposal.records)
            self._log_records = count if proposal.snapshot else self._log_records + count
            if proposal.snapshot:
                self._snapshot_records = count
        self._image = self._proposed = image
        return image

    async def propose(self, records: Sequence[MetadataRecord]) -> Image:
        """Make `records` durable and apply them, as one; returns the image that holds them.

        Without records: wait until everything proposed so far is committed. Raises ApiError(kafka_storage_error).
        """
        if self._fault is not None:
            raise self._offline(self._fault)
        image = self._image
        if records or self._pending:
            image = await self._enqueue(records)
        for settled in self._settled:
            await settled()
        return image

    def _enqueue(self, records: Sequence[MetadataRecord]) -> asyncio.Future[Image]:
        answer: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        if records:
            self._append(records, snapshot=False, answer=answer)
        else:
            last = self._pending[-1]
            self._pending.append(_Pending(last.offset, last.image, snapshot=False, answer=answer))
        if self._running is None:
            self._running = asyncio.get_running_loop().create_task(self._commit_all(), name="controller")
        return answer

    async def close(self) -> None:
        """Wait until everything proposed is committed, or has failed."""
        while self._running is not None:
            await asyncio.wait([self._running])

    def _append(
        self, records: Sequence[MetadataRecord], *, snapshot: bool, answer: asyncio.Future[Image] | None
    ) -> None:
        """Append and move `proposed`. A record that cannot be applied raises before anything is written."""
        image = self._proposed if snapshot else apply(self._proposed, records)
        entry = self._encoder.encode(Proposal(FORMAT, snapshot, list(records)))
        try:
            offset = self._log.append(entry)
        except DiskFullError as error:
            raise self._offline(error) from error
        except Exception as error:
            self._stop(error)
            raise self._offline(error) from error
        self._proposed = image
        self._log_records += len(records)
        self._pending.append(_Pending(offset, image, snapshot, answer))

    async def _commit_all(self) -> None:
        """Sync and apply, in groups, until nothing is pending."""
        try:
            while self._pending and self._fault is None:
                offset = self._pending[-1].offset
                await self._log.synced(offset)
                self._commit(offset)
                self._snapshot_if_due()
        except Exception as error:
            self._stop(error)
        finally:
            self._running = None

    def _commit(self, offset: int) -> None:
        pending = self._pending
        while pending and pending[0].offset <= offset:
            done = pending[0]
            old, self._image = self._image, done.image
            if done.snapshot:
                self._log.delete_before(done.offset)
            elif old is not done.image:
                for on_change in self._subscribers:
                    on_change(old, done.image)
            pending.popleft()
            if done.answer is not None and not done.answer.done():
                done.answer.set_result(done.image)

    def _snapshot_if_due(self) -> None:
        if self._log_records <= self._snapshot_after + 2 * self._snapshot_records:
            return
        records = records_of(self._proposed)
        self._log_records = 0
        self._snapshot_records = len(records)
        try:
            self._append(records, snapshot=True, answer=None)
        except ApiError:
            # A full disk: the log stays as it is, and the next snapshot is due after as many records again.
            pass

    def _stop(self, error: Exception) -> None:
        """Go offline: nobody may believe that what is pending was decided."""
        self._fault = self._fault or error
        self._proposed = self._image
        pending, self._pending = self._pending, deque()
        for lost in pending:
            if lost.answer is not None and not lost.answer.done():
                lost.answer.set_exception(self._offline(error))

    def _offline(self, error: Exception) -> ApiError:
        return ApiError(ErrorCode.kafka_storage_error, f"the metadata log cannot be written: {error}")
