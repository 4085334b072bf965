"""Questions to the controller, from any node: put to the leader of the quorum, decided there, answered when committed.

Rules:
- `ask` finds the leader, wherever it is, and asks again when it moves or is silent: commands may be repeated.
- On the leader a command is decided against the newest proposed image and proposed without awaiting in between.
- A command that reaches a node which does not lead is handed on once, so that a newcomer may ask anybody.
- A client's request for the controller goes there as it came, with the client's address; the answer comes back when
  this node has applied what it speaks of, so that the client finds here what it was told (for a bounded time). It has a
  ticket, the same at every attempt: what was done for an attempt whose answer was lost is not refused to the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, get_args
from uuid import UUID

import msgspec

from headrace.broker import decisions
from headrace.broker.commands import (
    AlterInSync,
    Answer,
    Beat,
    Beaten,
    Command,
    Describe,
    Described,
    Done,
    Drain,
    EnsureTopic,
    InSyncAltered,
    Join,
    Joined,
    NodeHealth,
    OfflineReplicas,
    ProducerIdsTaken,
    Rebalance,
    Refused,
    Register,
    Registered,
    Remove,
    ShortLeader,
    TakeProducerIds,
)
from headrace.broker.image import ProducerIdsRecord
from headrace.broker.post import ANSWER_BYTES, COMMAND_KEY, FORWARD_KEY, request_frame
from headrace.broker.reassigning import rebalance
from headrace.core.counters import ClusterCounters
from headrace.core.errors import ApiError, ErrorCode, LinkError, ProtocolError
from headrace.raft.membership import Change, ChangeKind

if TYPE_CHECKING:
    from headrace.broker.controller import Controller
    from headrace.broker.nodes import NodeWatch
    from headrace.core.ports import Links

logger = logging.getLogger(__name__)

RETRY_S: Final = 0.05
CALL_S: Final = 5.0  # that one attempt may take
FORWARD_S: Final = 30.0
CATCH_UP_S: Final = 5.0  # that an answer waits for this node's own image
AGAIN: Final = frozenset({ErrorCode.not_controller, ErrorCode.throttling_quota_exceeded})

_ENCODER: Final = msgspec.msgpack.Encoder()
_COMMANDS: Final = msgspec.msgpack.Decoder(tuple[bool, Command])
_ANY_COMMAND: Final = msgspec.msgpack.Decoder(tuple[bool, list[Any]])
_KINDS: Final = frozenset(kind.__struct_config__.tag for kind in get_args(Command))
_ANSWERS: Final = msgspec.msgpack.Decoder(Answer)
_FORWARDED: Final = msgspec.msgpack.Decoder(tuple[int, bytes])
_FORWARD: Final = msgspec.msgpack.Decoder(tuple[str, bytes])
_FORWARD_WITH_TICKET: Final = msgspec.msgpack.Decoder(tuple[str, bytes, UUID])
TICKETS_FROM: Final = 2  # of what nodes say to each other
NOT_LEADING: Final = -1


class Council:
    """See the module; implements `commands.Quorum`."""

    def __init__(
        self,
        node_id: int,
        cluster_id: str,
        controller: Controller,
        nodes: NodeWatch,
        policy: decisions.Policy,
        *,
        links: Links | None = None,
        ensure_topic: Callable[[EnsureTopic], Awaitable[None]] | None = None,
        counters: ClusterCounters | None = None,
    ) -> None:
        self._node_id = node_id
        self._cluster_id = cluster_id
        self._controller = controller
        self._nodes = nodes
        self._policy = policy
        self.links = links
        self.ensure_topic = ensure_topic
        self._counters = counters or ClusterCounters()
        self.skew_of: Callable[[int], float | None] = lambda node: None  # of a node's clock, in ms, as gossip sees it
        self.belief_of: Callable[[int], str | None] = lambda node: None  # what gossip believes of a node
        self.last_leader: int | None = None  # for people: who decided when somebody did

    @property
    def leader(self) -> int | None:
        leader = self._controller.quorum.leader
        if leader is not None:
            self.last_leader = leader  # every beat asks
        return leader

    @property
    def leads(self) -> bool:
        return self._controller.leads

    # Asking

    async def ask(self, command: Command, *, timeout_s: float = 10.0, hand_on: bool = True) -> Answer:
        """The answer to a command. Raises ApiError: the controller's, or request_timed_out if nobody decides."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        last = "no controller is known"
        while True:
            try:
                answer = await self._ask_once(command, min(CALL_S, deadline - loop.time()), hand_on)
                if not isinstance(answer, Refused):
                    return answer
                raise ApiError(ErrorCode(answer.code), answer.message)
            except ApiError as error:
                if error.code not in AGAIN:
                    raise
                last = str(error)
            except (LinkError, TimeoutError) as error:
                last = str(error) or "it takes too long"
            if loop.time() + RETRY_S >= deadline:
                raise ApiError(ErrorCode.request_timed_out, f"the controller did not answer: {last}")
            await asyncio.sleep(RETRY_S)

    async def _ask_once(self, command: Command, timeout_s: float, hand_on: bool) -> Answer:
        leader = self.leader
        if leader == self._node_id:
            async with asyncio.timeout(timeout_s):
                return await self.decide(command)
        if leader is None or self.links is None:
            raise LinkError("no controller is known")
        frame = request_frame(COMMAND_KEY, _ENCODER.encode((not hand_on, command)))
        return read_answer(await self.links.call(leader, frame, lane="control", timeout_s=timeout_s))

    async def answer(self, body: bytes | memoryview) -> bytes:
        """The answer to a command that another node has sent. Raises ProtocolError."""
        try:
            handed_on, command = _COMMANDS.decode(body)
        except msgspec.MsgspecError as error:
            return _ENCODER.encode(_not_known(body, error))
        try:
            if handed_on or self.leads or self.leader == self._node_id:
                answer = await self.decide(command)
            else:
                answer = await self.ask(command, timeout_s=CALL_S, hand_on=False)
        except ApiError as error:
            answer = Refused(error.code, error.message)
        return _ENCODER.encode(answer)

    # Requests of clients

    async def forward(self, frame: bytes, host: str, ticket: UUID) -> bytes:
        """A client's request for the controller: the answer's frame. Raises ApiError."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + FORWARD_S
        self._counters.forwarded += 1
        while True:
            leader = self.leader
            if leader is not None and leader != self._node_id and self.links is not None:
                try:
                    raw = await self.links.call(
                        leader,
                        forward_frame(frame, host, ticket, self.links.version(leader)),
                        lane="forward",
                        timeout_s=max(RETRY_S, deadline - loop.time()),
                    )
                    index, answer = _FORWARDED.decode(memoryview(raw)[ANSWER_BYTES:])
                    if index != NOT_LEADING:
                        await self._catch_up(index)
                        return answer
                except LinkError:
                    pass
            if self.leads or loop.time() + RETRY_S >= deadline:
                raise ApiError(ErrorCode.not_controller, "the controller is not known, or does not answer")
            await asyncio.sleep(RETRY_S)

    async def _catch_up(self, index: int) -> None:
        try:
            async with asyncio.timeout(CATCH_UP_S):
                await self._controller.applied(index)
        except (ApiError, TimeoutError):
            pass  # the answer is true all the same

    # Deciding

    async def decide(self, command: Command) -> Answer:
        """On the leader. Raises ApiError, not_controller if this is not it."""
        if not self.leads:
            raise ApiError(ErrorCode.not_controller, "this node does not decide")
        decide: Callable[[Any], Coroutine[Any, Any, Answer]] = self._DECISIONS[type(command)].__get__(self)
        return await decide(command)

    async def _join(self, command: Join) -> Answer:
        controller = self._controller
        await controller.commit(decisions.join(controller.proposed, command))
        if command.node_id not in controller.quorum.membership.members:
            await controller.quorum.change(Change(ChangeKind.ADD_LEARNER, command.node_id))
        nodes = {node.node_id: (node.host, node.port) for node in controller.image.brokers.values()}
        return Joined(self._cluster_id, self._node_id, nodes)

    async def _register(self, command: Register) -> Answer:
        controller = self._controller
        image = await controller.commit(decisions.register(controller.proposed, command, self._policy))
        index = controller.applied_index
        self._nodes.registered(command.node_id, index)
        return Registered(image.brokers[command.node_id].epoch, index)

    async def _beat(self, command: Beat) -> Answer:
        controller, node = self._controller, command.node_id
        decisions.check_epoch(controller.proposed, node, command.epoch)
        if command.leaving:
            await controller.commit(decisions.fence(controller.proposed, node, self._policy))
            self._nodes.left(node)
            return Beaten(fenced=True, may_leave=True)
        told = decisions.told_level(controller.proposed, node, command.level)
        if told:
            await controller.commit(told)
        if self._nodes.heard(node, command.applied) and controller.proposed.brokers[node].fenced:
            await controller.commit(decisions.unfence(controller.proposed, node, self._policy))
        known = controller.image.brokers.get(node)
        return Beaten(fenced=known is None or known.fenced, may_leave=False)

    async def _alter_in_sync(self, command: AlterInSync) -> Answer:
        controller = self._controller
        records, errors = decisions.alter_in_sync(controller.proposed, command, self._policy)
        await controller.commit(records)
        return InSyncAltered(errors, controller.applied_index)

    async def _offline_replicas(self, command: OfflineReplicas) -> Answer:
        await self._controller.commit(decisions.offline_replicas(self._controller.proposed, command, self._policy))
        return Done(self._controller.applied_index)

    async def _short_leader(self, command: ShortLeader) -> Answer:
        records = decisions.short_leader(self._controller.proposed, command, self._policy)
        if records:
            about = {"reporter": command.node_id, "leader": command.leader, "committed": command.committed_offset}
            place = f"{self._controller.proposed.topic_names[command.topic_id]}-{command.index}"
            logger.error("a leader lacks records that are committed: it is deposed", extra={"place": place, **about})
        await self._controller.commit(records)
        return Done(self._controller.applied_index)

    async def _take_producer_ids(self, command: TakeProducerIds) -> Answer:
        first = self._controller.proposed.next_producer_id
        await self._controller.commit([ProducerIdsRecord(first + max(1, command.count))])
        return ProducerIdsTaken(first)

    async def _ensure_topic(self, command: EnsureTopic) -> Answer:
        assert self.ensure_topic is not None
        await self.ensure_topic(command)
        return Done(self._controller.applied_index)

    async def _drain(self, command: Drain) -> Answer:
        await self._controller.commit(decisions.drain(self._controller.proposed, command, self._policy))
        return Done(self._controller.applied_index)

    async def _remove(self, command: Remove) -> Answer:
        controller = self._controller
        await controller.commit(decisions.remove(controller.proposed, command))
        if command.node_id in controller.quorum.membership.members:
            await controller.quorum.change(Change(ChangeKind.REMOVE, command.node_id))
        return Done(controller.applied_index)

    async def _rebalance(self, command: Rebalance) -> Answer:
        return await rebalance(self._controller, command, self._policy)

    async def _describe(self, command: Describe) -> Answer:
        controller = self._controller
        quorum = controller.quorum
        nodes = []
        for node in controller.image.brokers.values():
            applied, seen_ms_ago = self._nodes.health(node.node_id)
            if node.node_id == self._node_id:
                applied, seen_ms_ago = controller.applied_index, 0
            state = "fenced" if node.fenced else "draining" if node.draining else "alive"
            nodes.append(
                NodeHealth(
                    node.node_id,
                    node.host,
                    node.port,
                    node.rack,
                    state,
                    node.node_id in quorum.membership.voters,
                    applied,
                    seen_ms_ago,
                    self.skew_of(node.node_id),
                )
            )
        return Described(self._cluster_id, self._node_id, quorum.term, quorum.commit_index, tuple(nodes))

    _DECISIONS: Final[dict[type, Any]] = {
        Join: _join,
        Register: _register,
        Beat: _beat,
        AlterInSync: _alter_in_sync,
        OfflineReplicas: _offline_replicas,
        ShortLeader: _short_leader,
        TakeProducerIds: _take_producer_ids,
        EnsureTopic: _ensure_topic,
        Drain: _drain,
        Remove: _remove,
        Rebalance: _rebalance,
        Describe: _describe,
    }


def _not_known(body: bytes | memoryview, error: Exception) -> Refused:
    """The answer to a command of a newer release. Raises ProtocolError if it is no command of any."""
    try:
        kind = _ANY_COMMAND.decode(body)[1][0]
    except (msgspec.MsgspecError, IndexError):
        kind = None
    if not isinstance(kind, str) or kind in _KINDS:
        raise ProtocolError(f"not a command: {error}") from None
    return Refused(ErrorCode.unsupported_version, f"this node's release does not know {kind[:50]!r}: upgrade it first")


def command_frame(command: Command) -> bytes:
    """A command for whoever it reaches; it is handed on to the leader."""
    return request_frame(COMMAND_KEY, _ENCODER.encode((False, command)))


def read_answer(frame: bytes) -> Answer:
    """Raises LinkError."""
    try:
        answer: Answer = _ANSWERS.decode(memoryview(frame)[ANSWER_BYTES:])
        return answer
    except msgspec.MsgspecError as error:
        raise LinkError(f"the answer to a command cannot be read: {error}") from None


def forward_frame(frame: bytes, host: str, ticket: UUID, version: int) -> bytes:
    """A client's request, as a node of this version understands it."""
    if version < TICKETS_FROM:
        return request_frame(FORWARD_KEY, _ENCODER.encode((host, frame)))
    return request_frame(FORWARD_KEY, _ENCODER.encode((host, frame, ticket)), version=1)


def read_forwarded(version: int, body: bytes | memoryview) -> tuple[str, bytes, UUID | None]:
    """The client's address, its frame, and its ticket. Raises ProtocolError."""
    try:
        return (*_FORWARD.decode(body), None) if version == 0 else _FORWARD_WITH_TICKET.decode(body)
    except msgspec.MsgspecError as error:
        raise ProtocolError(f"not a request of a client: {error}") from None


def forwarded_answer(index: int, frame: bytes) -> bytes:
    return _ENCODER.encode((index, frame))
