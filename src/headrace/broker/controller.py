"""Who decides: turns proposals into committed records and committed records into the next image.

It is the application of the quorum's log (`broker/quorum.py`): on every node it holds the image; on the leader it also
takes proposals.

Rules:
- One log entry is one proposal, so a proposal is whole or absent, whatever happens.
- Decide against `proposed` and call `propose` without awaiting in between: nothing can slip in. `proposed` is the
  image as it will be once everything under way is committed; clients are shown `image` only.
- Only the leader proposes; anywhere else `propose` ends in NOT_CONTROLLER. A leader that loses its place answers the
  same for all that is under way: what becomes of it, the next leader's log tells.
- Nothing is applied, answered or told to subscribers before it is committed: synced by a majority.
- Subscribers are called on the loop, in the log's order, with the image before and after. They must not raise. What
  they set going behind (logs to open) is waited for before a proposal returns, through their `settled`.
- A full disk refuses a proposal and changes nothing. Any other failure is final: the controller is offline, every
  proposal ends in KAFKA_STORAGE_ERROR, and the node is told (`on_fault`), which then serves nobody.
- A caller that goes away does not take its proposal along: once appended, it may be applied.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from headrace.broker.image import BrokerRecord, Image, MetadataRecord, apply, records_of
from headrace.broker.levels import check_readable
from headrace.broker.quorum import TICK_S, Consensus, Place, Send
from headrace.core.errors import ApiError, CorruptionError, ErrorCode, PassingError
from headrace.raft.ready import RoleName, Standing

if TYPE_CHECKING:
    from headrace.broker.raft_storage import DurableStorage
    from headrace.core.ports import Workers
    from headrace.raft.log import Storage
    from headrace.raft.options import Dice, RaftOptions
    from headrace.raft.records import Entry, Snapshot

SNAPSHOT_AFTER = 10_000  # records that the log may hold beyond twice the last snapshot
FORMAT = 1

OnChange = Callable[[Image, Image], None]
Settled = Callable[[], Awaitable[None]]
OnStanding = Callable[[Standing], None]


class Proposal(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the metadata log, or a snapshot of all that entries have made."""

    format: int
    snapshot: bool
    records: list[MetadataRecord]


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Proposal)


class _Pending(NamedTuple):
    place: Place
    image: Image  # after this proposal
    records: int
    answer: asyncio.Future[Image]


class Controller:
    """See the module. `load` it, and `start` it where a loop runs and others may call."""

    def __init__(
        self,
        storage: DurableStorage,
        *,
        workers: Workers,
        dice: Dice,
        node_id: int = 1,
        options: RaftOptions | None = None,
        tick_s: float = TICK_S,
        snapshot_after: int = SNAPSHOT_AFTER,
        send: Send | None = None,
    ) -> None:
        self.quorum = Consensus(
            node_id, storage, self, workers=workers, dice=dice, options=options, tick_s=tick_s, send=send
        )
        self.applied_index = 0
        self._storage = storage
        self._workers = workers
        self._snapshot_after = snapshot_after
        self._snapshot_records = 0
        self._log_records = 0
        self._snapshotting: asyncio.Task[None] | None = None
        self._image = Image()
        self._proposed = self._image
        self._subscribers: list[OnChange] = []
        self._settled: list[Settled] = []
        self._watchers: list[OnStanding] = []
        self._pending: deque[_Pending] = deque()
        self._arrivals: dict[asyncio.Future[None], int] = {}
        self._fault: Exception | None = None
        self.on_fault: Callable[[Exception], None] | None = None  # told once, on the loop

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

    @property
    def leads(self) -> bool:
        """Whether proposals are taken here."""
        return self.quorum.leads

    def subscribe(self, on_change: OnChange, settled: Settled | None = None) -> None:
        """Have `on_change(old, new)` called for every later change; `settled` waits until it has taken effect."""
        self._subscribers.append(on_change)
        if settled is not None:
            self._settled.append(settled)

    def watch(self, on_standing: OnStanding) -> None:
        """Have `on_standing` called whenever this node begins or ends to lead, or hears of another leader."""
        self._watchers.append(on_standing)

    def load(self, *, found: bool = True) -> Image:
        """Take up what is saved, or with `found` begin a cluster of one. Blocking. Raises StorageError.

        A node that is alone has everything in its image then, and leads. Others have what their snapshot holds, and
        learn the rest from their leader (`caught_up`).
        """
        self.quorum.load(found=found)
        return self._image

    def start(self) -> None:
        """Take part in the quorum."""
        self.quorum.start()

    @property
    def durable_place(self) -> tuple[int, int] | None:
        """Index and term of the last applied entry, if it is durable here: from then on it always will be."""
        term = self.quorum.applied_term
        is_durable = self.applied_index > 0 and self._storage.term(self.applied_index) == term
        return (self.applied_index, term) if is_durable else None

    async def close(self) -> None:
        """Wait until everything that this node can commit alone is committed, and stop taking part."""
        while self._snapshotting is not None:
            await asyncio.wait([self._snapshotting])
        await self.quorum.stop()
        error = ApiError(ErrorCode.not_controller, "this node is stopping")
        self._drop_pending(error)
        self._drop_arrivals(error)

    async def propose(self, records: Sequence[MetadataRecord]) -> Image:
        """Make `records` durable and apply them, as one; returns the image that holds them.

        Without records: wait until everything proposed so far is committed. Raises ApiError (kafka_storage_error,
        not_controller).
        """
        image = await self.commit(records)
        for settled in self._settled:
            await settled()
        return image

    async def commit(self, records: Sequence[MetadataRecord]) -> Image:
        """`propose`, without waiting until it has taken effect. `applied_index` is at, or above, its entry then."""
        if self._fault is not None:
            raise self._offline(self._fault)
        if not self.quorum.leads:
            raise ApiError(ErrorCode.not_controller)
        image = self._image
        if records or self._pending:
            image = await self._enqueue(records)
        return image

    async def applied(self, index: int) -> None:
        """Wait until the entry at `index` is applied here, and has taken effect. Raises ApiError if it never will."""
        if self.applied_index < index:
            if self._fault is not None:
                raise self._offline(self._fault)
            arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._arrivals[arrival] = index
            try:
                await arrival
            finally:
                self._arrivals.pop(arrival, None)
        for settled in self._settled:
            await settled()

    def known_addresses(self) -> dict[int, tuple[str, int]]:
        """Where the nodes were, as far as this node's log knows, committed or not: enough to find the others."""
        found = {node.node_id: (node.host, node.port) for node in self._image.brokers.values()}
        for records in _records_after(self._storage, self.applied_index):
            found.update((r.node_id, (r.host, r.port)) for r in records if isinstance(r, BrokerRecord))
        return found

    def _enqueue(self, records: Sequence[MetadataRecord]) -> asyncio.Future[Image]:
        answer: asyncio.Future[Image] = asyncio.get_running_loop().create_future()
        if records:
            check_readable(self._proposed, records)
            image = apply(self._proposed, records)  # raises before anything is written
            try:
                place = self.quorum.propose(_ENCODER.encode(Proposal(FORMAT, False, list(records))))
            except PassingError as error:
                raise self._offline(error) from error
            self._proposed = image
            self._pending.append(_Pending(place, image, len(records), answer))
            self.quorum.pump()
        else:
            last = self._pending[-1]
            self._pending.append(_Pending(last.place, last.image, 0, answer))
        return answer

    # -- the quorum's side

    def restore(self, snapshot: Snapshot) -> None:
        records = _decoded(snapshot.payload, snapshot.index) if snapshot.payload else []
        self._snapshot_records = self._log_records = len(records)
        self.applied_index = snapshot.index
        try:
            image = apply(Image(), records)
        except (KeyError, AssertionError) as error:
            raise _unreadable(snapshot.index, error) from error
        self._show(image)

    def apply(self, entry: Entry) -> None:
        place = Place(entry.term, entry.index)
        pending = self._pending[0] if self._pending else None
        image = self._image
        if entry.payload:
            if pending is not None and pending.place == place:
                image = pending.image
                self._log_records += pending.records
            else:
                records = _decoded(entry.payload, entry.index)
                self._log_records += len(records)
                try:
                    image = apply(image, records)
                except (KeyError, AssertionError) as error:
                    raise _unreadable(entry.index, error) from error
        self.applied_index = entry.index
        self._show(image)
        while self._pending and self._pending[0].place.index <= entry.index:
            done = self._pending.popleft()
            if done.answer.done():
                continue
            if done.place == place:
                done.answer.set_result(done.image)
            else:
                done.answer.set_exception(ApiError(ErrorCode.not_controller, "another leader has decided otherwise"))
        self._snapshot_if_due()

    def stand(self, standing: Standing) -> None:
        if standing.role is not RoleName.LEADER:
            self._drop_pending(ApiError(ErrorCode.not_controller, "another node leads now"))
        for on_standing in self._watchers:
            on_standing(standing)

    def failed(self, error: Exception) -> None:
        """Go offline: nobody may believe that what is pending was decided."""
        first, self._fault = self._fault is None, self._fault or error
        self._drop_pending(self._offline(error))
        self._drop_arrivals(self._offline(error))
        if first and self.on_fault is not None:
            self.on_fault(error)

    def _show(self, image: Image) -> None:
        old, self._image = self._image, image
        if not self._pending:
            self._proposed = image
        if image is not old:
            for on_change in self._subscribers:
                on_change(old, image)
        for arrival, index in list(self._arrivals.items()):
            if index <= self.applied_index and not arrival.done():
                arrival.set_result(None)

    def _drop_pending(self, error: ApiError) -> None:
        pending, self._pending = self._pending, deque()
        self._proposed = self._image
        for lost in pending:
            if not lost.answer.done():
                lost.answer.set_exception(error)

    def _drop_arrivals(self, error: ApiError) -> None:
        for arrival in self._arrivals:
            if not arrival.done():
                arrival.set_exception(error)

    # -- snapshots

    def _snapshot_if_due(self) -> None:
        due = self._snapshot_after + 2 * self._snapshot_records
        if self._log_records <= due or self._snapshotting is not None:
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # at start-up: there is time later
        self._snapshotting = loop.create_task(self._snapshot(self._image, self.applied_index), name="snapshot")

    async def _snapshot(self, image: Image, index: int) -> None:
        """Building it takes long where there is much: not on the loop."""
        try:
            records, payload = await self._workers.run(lambda: _snapshot_of(image))
            self._log_records = 0
            self._snapshot_records = records
            self.quorum.compact(index, payload)
        finally:
            self._snapshotting = None

    def _offline(self, error: Exception) -> ApiError:
        return ApiError(ErrorCode.kafka_storage_error, f"the metadata log cannot be written: {error}")


def image_of(storage: Storage) -> Image:
    """What a log would make if all of it were committed: for tools that look at a directory. Raises CorruptionError."""
    snapshot = storage.snapshot()
    image = apply(Image(), _decoded(snapshot.payload, snapshot.index)) if snapshot.payload else Image()
    for records in _records_after(storage, snapshot.index):
        image = apply(image, records)
    return image


def _records_after(storage: Storage, index: int) -> Iterable[list[MetadataRecord]]:
    first = max(index + 1, storage.first_index())
    if first <= storage.last_index():
        for entry in storage.entries(first, storage.last_index() + 1, 2**62):
            if entry.payload:
                yield _decoded(entry.payload, entry.index)


def _snapshot_of(image: Image) -> tuple[int, bytes]:
    records = records_of(image)
    return len(records), _ENCODER.encode(Proposal(FORMAT, True, records))


def _decoded(payload: bytes, index: int) -> list[MetadataRecord]:
    try:
        proposal = _DECODER.decode(payload)
        if proposal.format != FORMAT:
            raise ValueError(f"it has format {proposal.format}, this release reads format {FORMAT}")
    except msgspec.ValidationError as error:
        raise CorruptionError(
            f"the metadata log cannot be replayed: entry {index}: {error}; nothing was changed: if it was written by a "
            "newer release, start this node with that, or else restore the data directory from a backup"
        ) from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise _unreadable(index, error) from error
    return proposal.records


def _unreadable(index: int, error: Exception) -> CorruptionError:
    return CorruptionError(
        f"the metadata log cannot be replayed: entry {index}: {error}; "
        "nothing was changed: restore the data directory from a backup"
    )
