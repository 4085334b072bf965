"""Drives the Raft machine: ticks, saves, sends, applies. One node or many, the path is the same.

Rules:
- Saves are made in workers, one at a time and in order; those that wait share the next one. What may leave only after a
  save leaves when it, and all before it, are durable. Nothing else waits for the disk.
- The application is called on the loop, in the log's order: `restore`, `apply`, `stand`. If it raises, the node is
  offline: its state is not to be trusted any more.
- A full disk delays a save until there is room; any other failure of the disk, or an acknowledged entry that is lost,
  is final. Then nothing is sent, granted or applied any more: to the others this node is dead.
- A node that is alone has nothing to wait for: it does not tick, and it leads when `load` returns.
- Messages are sent and forgotten; `Post` (see `broker/post.py`) carries them, or loses them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from headrace.core.errors import ApiError, ErrorCode, PassingError
from headrace.raft.machine import Raft
from headrace.raft.membership import Change, founding
from headrace.raft.messages import InstallSnapshot, Message
from headrace.raft.options import Dice, RaftOptions
from headrace.raft.outcome import Dropped, Proposed, Reason
from headrace.raft.ready import Ready, RoleName, Save, Standing
from headrace.raft.records import Entry, Membership, Snapshot

if TYPE_CHECKING:
    from headrace.broker.raft_storage import DurableStorage
    from headrace.core.ports import Workers
    from headrace.raft.progress import Progress

logger = logging.getLogger(__name__)

TICK_S = 0.05
FULL_DISK_RETRY_S = 0.2
WAITING_FOR_LEADER = (Reason.NO_LEADER, Reason.NOT_LEADER, Reason.TRANSFERRING)

Send = Callable[[int, Sequence[Message]], None]


class Application(Protocol):
    """Whose state the log makes."""

    def restore(self, snapshot: Snapshot) -> None:
        """Begin again from a snapshot."""

    def apply(self, entry: Entry) -> None:
        """The next entry is committed."""

    def stand(self, standing: Standing) -> None:
        """This node stands elsewhere now: it leads, follows, or looks for a leader."""

    def failed(self, error: Exception) -> None:
        """The node is offline."""


@dataclass(frozen=True, slots=True)
class Place:
    """Of a proposal in the log. It is committed if an entry of this term is applied at this index."""

    term: int
    index: int


class Consensus:
    """See the module. `load`, then `start` where a loop runs; `stop` at the end."""

    def __init__(
        self,
        node_id: int,
        storage: DurableStorage,
        application: Application,
        *,
        workers: Workers,
        dice: Dice,
        options: RaftOptions | None = None,
        tick_s: float = TICK_S,
        send: Send | None = None,
    ) -> None:
        self.node_id = node_id
        self.fault: Exception | None = None
        self.send: Send = send or (lambda node, messages: None)
        self._storage = storage
        self._application = application
        self._workers = workers
        self._dice = dice
        self._options = options or RaftOptions()
        self._tick_s = tick_s
        self._machine: Raft | None = None
        self.applied_term = 0
        self._saving: deque[Ready | Snapshot] = deque()
        self._saver: asyncio.Task[None] | None = None
        self._pumping = False
        self._ticker: asyncio.TimerHandle | None = None
        self._started = False
        self._stopping = False
        self._changes: dict[int, tuple[int, asyncio.Future[None]]] = {}
        self._reads: dict[int, asyncio.Future[int]] = {}
        self._next_read = 0

    # What can be seen

    @property
    def raft(self) -> Raft:
        assert self._machine is not None, "it is not loaded"
        return self._machine

    @property
    def leader(self) -> int | None:
        return None if self.fault is not None else self.raft.standing.leader

    @property
    def leads(self) -> bool:
        """Whether this node leads, and has applied all that was decided before it did."""
        standing = self.raft.standing
        return self.fault is None and standing.role is RoleName.LEADER and self.applied_term == standing.term

    @property
    def term(self) -> int:
        return self.raft.standing.term

    @property
    def commit_index(self) -> int:
        return self.raft.commit_index

    @property
    def last_index(self) -> int:
        return self.raft.last_index

    @property
    def membership(self) -> Membership:
        return self.raft.membership

    @property
    def followers(self) -> dict[int, Progress]:
        """What a leader knows of the others."""
        return dict(self.raft.followers)

    @property
    def is_alone(self) -> bool:
        return self.membership.members == (self.node_id,)

    @property
    def belongs(self) -> bool:
        """Whether this node is a member of a cluster, as far as it knows."""
        return self.node_id in self.membership.members

    # Life

    def load(self, *, found: bool = False) -> None:
        """Take up what is saved; with `found`, and if nothing is, found a cluster of this node. Blocking.

        Raises StorageError. A node that is alone leads when this returns.
        """
        storage = self._storage
        if found and storage.last_index() == 0:
            self._write_now(founding([self.node_id]))
        self._machine = Raft(self.node_id, storage, self._options, self._dice)
        if storage.snapshot().index:
            self._application.restore(storage.snapshot())
        if self.membership.voters == (self.node_id,):
            self._lead_alone()

    def _lead_alone(self) -> None:
        """The only vote is this node's own: no need to wait for anybody."""
        raft = self.raft
        while raft.standing.role is RoleName.FOLLOWER:
            raft.tick()
        while (ready := raft.ready()) is not None:
            self._act(ready, send=False)
            if ready.save:
                self._write_now(ready.save)
            raft.advance(ready)
        if self.fault is not None:
            raise self.fault

    def _write_now(self, save: Save) -> None:
        self._storage.write([save])
        self._storage.save(save)

    def start(self) -> None:
        """Take part: time passes from here on."""
        self._started = True
        self._arm()

    async def stop(self) -> None:
        """Finish what is being saved; say nothing more."""
        self._started, self._stopping = False, True
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        while self._saver is not None:
            await asyncio.wait([self._saver])
        error = ApiError(ErrorCode.not_controller, "this node is stopping")
        self._abandon(error)

    # What happens to it

    def receive(self, messages: Sequence[Message]) -> None:
        """From other nodes."""
        if self.fault is not None or not self._started:
            return
        try:
            for message in messages:
                if message.to == self.node_id:
                    self.raft.step(message)
        except Exception as error:
            self._fail(error)
            return
        self.pump()

    def unreachable(self, node: int, lost: Sequence[Message] = ()) -> None:
        """What was sent to a node did not arrive."""
        if self.fault is None:
            self.raft.unreachable(node)
            if any(isinstance(message, InstallSnapshot) for message in lost):
                self.raft.snapshot_ended(node, arrived=False)
            self.pump()

    def doubt(self, node: int) -> None:
        """Nobody listens where a node should be."""
        if self.fault is None:
            self.raft.doubt(node)
            self.pump()

    def tick(self) -> None:
        """Time has passed."""
        if self.fault is None:
            self.raft.tick()
            self.pump()

    def propose(self, payload: bytes) -> Place:
        """Append a command. `pump` must follow. Raises ApiError, or DiskFullError: then nothing was appended."""
        self._storage.room_for(len(payload))
        return self._place(self.raft.propose([payload]))

    async def change(self, change: Change) -> None:
        """Change who belongs to the quorum; returns when that is committed. Raises ApiError."""
        place = self._place(self.raft.change(change))
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes[place.index] = (place.term, done)
        self.pump()
        await done

    def transfer(self, node: int) -> None:
        """Try to hand the leadership over."""
        self.raft.transfer(node)
        self.pump()

    async def read(self) -> int:
        """Wait until this node has applied all that was decided before the call; returns the index. Raises ApiError."""
        self._check()
        number = self._next_read
        self._next_read += 1
        dropped = self.raft.read(number)
        if dropped is not None:
            raise _refusal(dropped)
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._reads[number] = found
        self.pump()
        try:
            return await found
        finally:
            self._reads.pop(number, None)

    def compact(self, index: int, payload: bytes) -> None:
        """Keep a snapshot of what was applied at `index`, in place of the entries below."""
        if self.fault is None:
            snapshot = self.raft.snapshot_at(index, payload)
            if snapshot is not None:
                self._saving.append(snapshot)
                self._keep_saving()

    def _place(self, outcome: Proposed | Dropped) -> Place:
        self._check()
        if isinstance(outcome, Dropped):
            raise _refusal(outcome)
        return Place(outcome.term, outcome.last_index)

    def _check(self) -> None:
        if self.fault is not None:
            raise ApiError(ErrorCode.kafka_storage_error, f"the metadata log cannot be written: {self.fault}")

    # What it asks for

    def pump(self) -> None:
        """Do all that the machine asks for now."""
        if self._pumping or self.fault is not None:
            return
        self._pumping = True
        try:
            while (ready := self.raft.ready()) is not None:
                self._act(ready)
                if ready.save or self._saving or self._saver is not None:
                    self._saving.append(ready)
                else:
                    self._advance(ready)
        except Exception as error:
            self._fail(error)
            return
        finally:
            self._pumping = False
        self._keep_saving()
        self._arm()

    def _act(self, ready: Ready, *, send: bool = True) -> None:
        if send:
            self._transmit(ready.send)
        for entry in ready.commit:
            self.applied_term = entry.term
            self._application.apply(entry)
            self._settle_change(entry)
        if ready.standing is not None:
            self._stand(ready.standing)
        for read in ready.reads:
            waiting = self._reads.get(read.number)
            if waiting is not None and not waiting.done():
                waiting.set_result(read.index)
        for number in ready.lost_reads:
            waiting = self._reads.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_exception(ApiError(ErrorCode.not_controller, Reason.NO_LEADER.value))

    def _stand(self, standing: Standing) -> None:
        if standing.role is not RoleName.LEADER:
            self._abandon_changes(ApiError(ErrorCode.not_controller, Reason.NOT_LEADER.value))
        self._application.stand(standing)

    def _advance(self, ready: Ready) -> None:
        if ready.save:
            self._storage.save(ready.save)
        if ready.save.snapshot is not None:
            self.applied_term = ready.save.snapshot.term
            self._application.restore(ready.save.snapshot)
        self._transmit(ready.send_after_save)
        self.raft.advance(ready)

    def _transmit(self, messages: Sequence[Message]) -> None:
        by_node: dict[int, list[Message]] = {}
        for message in messages:
            by_node.setdefault(message.to, []).append(message)
        for node, batch in by_node.items():
            self.send(node, batch)

    def _keep_saving(self) -> None:
        if self._saving and self._saver is None and self.fault is None:
            self._saver = asyncio.get_running_loop().create_task(self._save_all(), name="raft-save")

    async def _save_all(self) -> None:
        """Save until nothing is left, whatever comes meanwhile."""
        try:
            while self._saving and self.fault is None:
                if isinstance(self._saving[0], Snapshot):
                    snapshot = self._saving.popleft()
                    assert isinstance(snapshot, Snapshot)
                    await self._rewrite(snapshot)
                    continue
                batch = self._take_batch()
                saves = [ready.save for ready in batch if ready.save]
                if saves:
                    await self._write(saves)
                for ready in batch:
                    self._advance(ready)
                self.pump()
        except Exception as error:
            self._fail(error)
        finally:
            self._saver = None

    def _take_batch(self) -> list[Ready]:
        batch: list[Ready] = []
        while self._saving and isinstance(ready := self._saving[0], Ready):
            batch.append(ready)
            self._saving.popleft()
        return batch

    async def _write(self, saves: Sequence[Save]) -> None:
        while True:
            try:
                await self._workers.run(lambda: self._storage.write(saves))
                return
            except PassingError as error:
                if self._stopping:
                    raise
                logger.error("the metadata cannot be saved for now", extra={"reason": str(error)})
                await asyncio.sleep(FULL_DISK_RETRY_S)

    async def _rewrite(self, snapshot: Snapshot) -> None:
        if snapshot.index < self._storage.snapshot().index:
            return  # a leader's snapshot has overtaken it
        try:
            await self._workers.run(lambda: self._storage.rewrite(snapshot))
        except PassingError:
            return  # the log stays as it is, and another snapshot will be due
        self._storage.compact(snapshot)

    # Time

    def _arm(self) -> None:
        if self._started and self._ticker is None and self.fault is None and not self.is_alone:
            self._ticker = asyncio.get_running_loop().call_later(self._tick_s, self._on_tick)

    def _on_tick(self) -> None:
        self._ticker = None
        self.tick()
        self._arm()

    # Ends

    def _settle_change(self, entry: Entry) -> None:
        term, done = self._changes.pop(entry.index, (0, None))
        if done is None or done.done():
            return
        if term == entry.term:
            done.set_result(None)
        else:
            done.set_exception(ApiError(ErrorCode.not_controller, "another leader has decided otherwise"))

    def _abandon_changes(self, error: ApiError) -> None:
        changes, self._changes = self._changes, {}
        for _, done in changes.values():
            if not done.done():
                done.set_exception(error)

    def _abandon(self, error: ApiError) -> None:
        self._abandon_changes(error)
        for waiting in self._reads.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _fail(self, error: Exception) -> None:
        if self.fault is None:
            self.fault = error
            self._saving.clear()
            logger.critical("this node takes no part in the quorum any more", extra={"reason": str(error)})
            self._abandon(ApiError(ErrorCode.kafka_storage_error, f"the metadata log cannot be written: {error}"))
            self._application.failed(error)


def _refusal(dropped: Dropped) -> ApiError:
    if dropped.reason in (Reason.BUSY, Reason.LEARNER_BEHIND, Reason.CHANGE_PENDING, Reason.TERM_NOT_STARTED):
        return ApiError(ErrorCode.throttling_quota_exceeded, dropped.reason.value)
    if dropped.reason in WAITING_FOR_LEADER:
        return ApiError(ErrorCode.not_controller, dropped.reason.value)
    return ApiError(ErrorCode.invalid_request, dropped.reason.value)
