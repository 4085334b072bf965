"""One partition on four nodes, driven by the rules of `headrace.isr`, with everything that may go wrong around it.

Nodes learn late what the controller decided. Fetches and proposals arrive late or never. Nodes are fenced while they
live, crash, lose power with all that they had not synced, return, and are replaced by reassignment.

What must hold, after every step:
- What was ever acknowledged (below a leader's high watermark) is in the log of every replica that is in sync or
  eligible, unless it has just lost power and is down; and an offset never means two records.
- No follower is asked to cut what it knows committed.

What is assumed, where acknowledgements do not wait for a sync: of those in sync or eligible, not everybody loses power,
or is left out or crashes while the others are without; and where nobody is eligible beyond the in-sync set, the
controller has heard that one did before the next one fails (`lose_power`).

`Broken` names the rules that can be left out, to see that the model notices.
"""

from __future__ import annotations

from enum import Enum, auto
from random import Random
from typing import NamedTuple

from msgspec import structs

from headrace.core.errors import ApiError
from headrace.isr.change import with_isr
from headrace.isr.divergence import diverging, known_committed, truncate_to
from headrace.isr.election import after_death, after_return, after_unclean_restart, prefer
from headrace.isr.leader import LeaderReplicas
from headrace.isr.reassignment import begin, cancel, step
from headrace.isr.state import NO_LEADER, PartitionState
from headrace.storage.epochs import Epochs

NODES = range(4)
REPLICAS = (0, 1, 2)
MAX_LAG_S = 10.0


class Broken(Enum):
    NOTHING = auto()
    HIGH_WATERMARK_OF_THE_LEADER_ALONE = auto()
    HIGH_WATERMARK_WITHOUT_THE_PROPOSED = auto()
    UNCLEAN_ELECTION = auto()
    NO_EPOCH_CHECK = auto()
    NO_BROKER_EPOCH_CHECK = auto()
    LOST_BYTES_ARE_NOT_TOLD = auto()
    A_RESTART_BEGINS_NO_EPOCH = auto()
    JOINS_BELOW_THE_HIGH_WATERMARK = auto()
    A_DROPPED_REPLICA_ENDS_NO_EPOCH = auto()
    A_NODE_ACTS_ON_OLD_NEWS = auto()
    HIGH_WATERMARK_WITH_TOO_FEW_IN_SYNC = auto()


class Lost(AssertionError):
    """A promise was broken."""


class Record(NamedTuple):
    epoch: int
    value: int


class Fetch(NamedTuple):
    node: int
    broker_epoch: int
    to: int
    leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int


class Proposal(NamedTuple):
    node: int
    broker_epoch: int
    leader_epoch: int
    partition_epoch: int
    isr: dict[int, int]


class LeaderAlone(LeaderReplicas):
    """Broken: counts nobody but itself."""

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return (self.node,)


class CommittedOnly(LeaderReplicas):
    """Broken: forgets that what is proposed may be agreed already."""

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        return self._proposal or self.state.isr


class JoinsEarly(LeaderReplicas):
    """Broken: a follower need not have what is committed to be in sync."""

    def _may_join(self, node: int, registered: dict[int, int]) -> bool:  # type: ignore[override]
        return self._followers[node].end_offset >= 0


class Hasty(LeaderReplicas):
    """Broken: goes on committing while others are eligible."""

    def _advance(self) -> bool:
        kept, self.min_isr = self.state, 1
        self.state = structs.replace(self.state, elr=())
        try:
            return super()._advance()
        finally:
            self.state = kept


LEADERS = {
    Broken.HIGH_WATERMARK_WITH_TOO_FEW_IN_SYNC: Hasty,
    Broken.HIGH_WATERMARK_OF_THE_LEADER_ALONE: LeaderAlone,
    Broken.HIGH_WATERMARK_WITHOUT_THE_PROPOSED: CommittedOnly,
    Broken.JOINS_BELOW_THE_HIGH_WATERMARK: JoinsEarly,
}


class Node:
    def __init__(self, node_id: int, view: PartitionState) -> None:
        self.node_id = node_id
        self.log: list[Record] = []
        self.synced = 0
        self.high_watermark = 0
        self.view = view
        self.learned = 0  # how much of the controller's history it knows
        self.broker_epoch = node_id
        self.is_up = True
        self.stopped_cleanly = False
        self.is_dark = False  # it has lost power, and did not start since
        self.leading: LeaderReplicas | None = None

    @property
    def end(self) -> tuple[int, int]:
        """Where its log ends, and the epoch of what is last. An answer counts only for the end that asked for it."""
        return len(self.log), self.log[-1].epoch if self.log else -1

    def epochs(self) -> Epochs:
        history = Epochs()
        for offset, record in enumerate(self.log):
            history.assign(record.epoch, offset)
        return history

    def cut(self, end_offset: int) -> None:
        del self.log[end_offset:]
        self.synced = min(self.synced, end_offset)


class Partition:
    def __init__(self, *, synced: bool = False, broken: Broken = Broken.NOTHING, min_isr: int = 0) -> None:
        """`min_isr`: 0: eligible replicas are not tracked."""
        self.synced = synced  # acknowledgements wait for a sync
        self.min_isr = min_isr
        self.broken = broken
        self.history = [PartitionState(REPLICAS, REPLICAS, 0, 0, min_isr=min_isr)]
        self.registered = {node_id: node_id for node_id in NODES}
        self.nodes = [Node(node_id, self.history[0]) for node_id in NODES]
        self.fetches: list[Fetch] = []
        self.proposals: list[Proposal] = []
        self.refusals: list[tuple[Proposal, LeaderReplicas]] = []
        self.acknowledged: list[Record] = []
        self.now_s = 0.0
        self.values = 0
        self.next_broker_epoch = len(NODES)
        self._follow(self.nodes[0], self.history[0])

    @property
    def state(self) -> PartitionState:
        return self.history[-1]

    @property
    def unclean(self) -> bool:
        return self.broken is Broken.UNCLEAN_ELECTION

    # Clients and time

    def produce(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if not node.is_up or node.leading is None:
            return
        self.values += 1
        node.log.append(Record(node.leading.state.leader_epoch, self.values))
        node.leading.appended(node.synced if self.synced else len(node.log), len(node.log))
        self._acknowledge(node)

    def sync(self, node_id: int) -> None:
        node = self.nodes[node_id]
        if node.is_up:
            node.synced = len(node.log)
            if node.leading is not None:
                node.leading.appended(node.synced)
                self._acknowledge(node)

    def tick(self) -> None:
        self.now_s += MAX_LAG_S / 2

    # Replication

    def fetch(self, node_id: int) -> None:
        node = self.nodes[node_id]
        leader = node.view.leader
        if not node.is_up or leader in (NO_LEADER, node_id) or node_id not in node.view.replicas:
            return
        if self.synced:
            node.synced = len(node.log)
        self.fetches.append(Fetch(node_id, node.broker_epoch, leader, node.view.leader_epoch, *node.end))

    def deliver_fetch(self, number: int, answer_is_lost: bool) -> None:
        if not self.fetches:
            return
        fetch = self.fetches.pop(number % len(self.fetches))
        leader, node = self.nodes[fetch.to], self.nodes[fetch.node]
        if not leader.is_up or leader.leading is None:
            return
        checks = self.broken is not Broken.NO_EPOCH_CHECK
        parts = None
        if checks:
            if fetch.leader_epoch != leader.leading.state.leader_epoch:
                return
            try:
                parts = diverging(
                    leader.epochs(),
                    0,
                    len(leader.log),
                    fetch.leader_epoch,
                    fetch.fetch_offset,
                    fetch.last_fetched_epoch,
                )
            except ApiError as error:
                raise Lost("a leader knows nothing of what its follower has") from error
        if parts is None:
            leader.leading.fetched(fetch.node, fetch.fetch_offset, fetch.broker_epoch, len(leader.log), self.now_s)
            self._acknowledge(leader)
        is_there = node.is_up and node.broker_epoch == fetch.broker_epoch and node.end == fetch[-2:]
        if answer_is_lost or not is_there or (checks and node.view.leader_epoch != fetch.leader_epoch):
            return
        if node.leading is not None or fetch.node not in node.view.replicas:
            return
        if parts is not None:
            end_offset = truncate_to(node.epochs(), len(node.log), parts).end_offset
            unclean_epoch = node.view.unclean_epoch
            if end_offset < known_committed(node.epochs(), len(node.log), node.high_watermark, unclean_epoch):
                raise Lost(f"node {fetch.to} lacks what node {fetch.node} knows committed")
            node.cut(end_offset)
            node.high_watermark = min(node.high_watermark, end_offset)
            return
        node.log.extend(leader.log[fetch.fetch_offset : fetch.fetch_offset + 2])
        node.high_watermark = max(node.high_watermark, min(leader.leading.high_watermark, len(node.log)))

    # The controller and what nodes hear of it

    def learn(self, node_id: int, all_of_it: bool) -> None:
        node = self.nodes[node_id]
        while node.is_up and node.learned < len(self.history) - 1:
            node.learned = len(self.history) - 1 if all_of_it else node.learned + 1
            self._follow(node, self.history[node.learned])
            if not all_of_it:
                return

    def propose(self, node_id: int, shrink: bool) -> None:
        node = self.nodes[node_id]
        if not node.is_up or node.leading is None:
            return
        known = {other.node_id: other.broker_epoch for other in self.nodes} if self._is_blind else self.registered
        isr = node.leading.to_shrink(self.now_s, MAX_LAG_S) if shrink else node.leading.to_expand(known)
        if isr is None:
            return
        epochs = {node_id: node.broker_epoch}
        for member in isr:
            follower = node.leading.follower(member)
            if follower is not None:
                epochs[member] = -1 if self._is_blind else follower.broker_epoch
        state = node.leading.state
        node.leading.proposed(isr, state.partition_epoch)
        self.proposals.append(Proposal(node_id, node.broker_epoch, state.leader_epoch, state.partition_epoch, epochs))

    def deliver_proposal(self, number: int) -> None:
        if not self.proposals:
            return
        proposal = self.proposals.pop(number % len(self.proposals))
        node = self.nodes[proposal.node]
        try:
            self._publish(
                with_isr(
                    self.state,
                    proposal.node,
                    proposal.leader_epoch,
                    proposal.partition_epoch,
                    proposal.isr,
                    self.registered,
                )
            )
        except ApiError:
            if node.leading is not None and node.broker_epoch == proposal.broker_epoch:
                self.refusals.append((proposal, node.leading))

    def deliver_refusal(self, number: int) -> None:
        if not self.refusals:
            return
        proposal, leading = self.refusals.pop(number % len(self.refusals))
        node = self.nodes[proposal.node]
        same = node.is_up and node.leading is leading and leading.state.partition_epoch == proposal.partition_epoch
        if same and leading.proposal is not None:
            leading.refused()
            self._acknowledge(node)

    def prefer(self) -> None:
        self._publish(prefer(self.state, self.registered))

    def reassign(self, target: tuple[int, ...]) -> None:
        self._publish_if_kept(begin(self.state, target, self.registered))

    def step_reassignment(self) -> None:
        self._publish_if_kept(step(self.state, self.registered))

    def cancel_reassignment(self) -> None:
        self._publish_if_kept(cancel(self.state, self.registered))

    def _publish_if_kept(self, state: PartitionState | None) -> None:
        if state is not None and not all(self.nodes[node].is_dark for node in state.candidates):
            self._publish(state)

    # Faults

    def fence(self, node_id: int) -> None:
        """The controller takes a node for dead, rightly or not."""
        if self.registered.pop(node_id, None) is not None:
            self._publish(after_death(self.state, node_id, self.registered, unclean=self.unclean))

    def crash(self, node_id: int) -> None:
        others = [self.nodes[other] for other in self.state.candidates if other != node_id]
        if not (others and all(other.is_dark for other in others)):
            self._end(node_id)

    def _end(self, node_id: int) -> None:
        node = self.nodes[node_id]
        node.is_up = node.stopped_cleanly = False
        node.leading = None

    def stop(self, node_id: int) -> None:
        if self.nodes[node_id].is_up:
            self.sync(node_id)
            self._end(node_id)
            self.nodes[node_id].stopped_cleanly = True

    def lose_power(self, node_id: int) -> None:
        node = self.nodes[node_id]
        guards = [other for other in self.state.candidates if other != node_id and not self.nodes[other].is_dark]
        if not self.synced and node.synced < len(node.log) and node_id in self.state.candidates and not guards:
            return  # the last one that has it all: nothing can be promised
        self._end(node_id)
        node.cut(node.synced)
        node.is_dark = not self.synced
        if not self.synced and self.broken is not Broken.LOST_BYTES_ARE_NOT_TOLD:
            self.fence(node_id)

    def start(self, node_id: int) -> None:
        node = self.nodes[node_id]
        was_registered = node_id in self.registered
        if node.is_up:  # and perhaps fenced
            self.registered[node_id] = node.broker_epoch
            self._publish(after_return(self.state, self.registered, unclean=self.unclean))
            return
        node.is_up, node.is_dark = True, False
        node.broker_epoch = self.next_broker_epoch
        self.next_broker_epoch += 1
        self.registered[node_id] = node.broker_epoch
        is_clean = node.stopped_cleanly or self.synced or self.broken is Broken.LOST_BYTES_ARE_NOT_TOLD
        if self.broken is not Broken.A_RESTART_BEGINS_NO_EPOCH:
            if not is_clean:
                restarted = after_unclean_restart(self.state, node_id, self.registered, unclean=self.unclean)
                self._publish(restarted)
            elif was_registered:
                self._publish(after_death(self.state, node_id, self.registered, unclean=self.unclean))
        self._publish(after_return(self.state, self.registered, unclean=self.unclean))
        node.high_watermark = min(node.high_watermark, len(node.log))
        if self.broken is not Broken.A_NODE_ACTS_ON_OLD_NEWS:  # none that is older than its own registration
            node.learned = len(self.history) - 1
        self._follow(node, self.history[node.learned])

    # What must hold

    def check(self) -> None:
        for node_id in self.state.candidates:
            if self.nodes[node_id].is_dark:
                continue
            log = self.nodes[node_id].log
            for offset, record in enumerate(self.acknowledged):
                if offset >= len(log) or log[offset] != record:
                    raise Lost(f"{record} at {offset} is not on node {node_id}, which is in sync")

    # How

    @property
    def _is_blind(self) -> bool:
        return self.broken is Broken.NO_BROKER_EPOCH_CHECK

    def _publish(self, state: PartitionState | None) -> None:
        if state is not None and state != self.state:
            assert state.partition_epoch == self.state.partition_epoch + 1
            if self.broken is Broken.A_DROPPED_REPLICA_ENDS_NO_EPOCH and state.leader == self.state.leader:
                state = structs.replace(state, leader_epoch=self.state.leader_epoch)
            self.history.append(state)

    def _follow(self, node: Node, state: PartitionState) -> None:
        node.view = state
        if state.leader != node.node_id:
            node.leading = None
        elif node.leading is not None and node.leading.state.leader_epoch == state.leader_epoch:
            node.leading.committed(state, self.now_s)
            self._acknowledge(node)
        else:
            if self.synced:
                node.synced = len(node.log)
            node.leading = LEADERS.get(self.broken, LeaderReplicas)(
                node.node_id,
                state,
                end_offset=len(node.log),
                high_watermark=node.high_watermark,
                now_s=self.now_s,
                min_isr=max(1, self.min_isr),
            )
            self._acknowledge(node)
        if node.node_id not in state.replicas:
            node.cut(0)
            node.high_watermark = 0

    def _acknowledge(self, node: Node) -> None:
        """All below the leader's high watermark is acknowledged, and must be what was acknowledged before."""
        assert node.leading is not None
        node.high_watermark = node.leading.high_watermark
        for offset, record in enumerate(node.log[: node.high_watermark]):
            if offset == len(self.acknowledged):
                self.acknowledged.append(record)
            elif record != self.acknowledged[offset]:
                raise Lost(f"offset {offset} was {self.acknowledged[offset]}, and is {record} on node {node.node_id}")


def run(seed: int, steps: int, *, synced: bool = False, broken: Broken = Broken.NOTHING, min_isr: int = 0) -> Partition:
    """A life by dice; raises `Lost` if a promise is broken."""
    dice = Random(seed)
    partition = Partition(synced=synced, broken=broken, min_isr=min_isr)
    often = [
        "fetch",
        "fetch",
        "fetch",
        "deliver_fetch",
        "deliver_fetch",
        "deliver_fetch",
        "produce",
        "produce",
        "learn",
    ]
    seldom = ["propose", "propose", "deliver_proposal", "deliver_proposal", "deliver_refusal", "sync", "tick", "start"]
    rarely = ["fence", "crash", "stop", "lose_power", "prefer", "reassign", "step", "cancel"]
    for _ in range(steps):
        name = dice.choice(dice.choices([often, seldom, rarely], [12, 6, 1])[0])
        node = dice.choice(NODES)
        match name:
            case "deliver_fetch":
                partition.deliver_fetch(dice.randrange(9), dice.random() < 0.2)
            case "deliver_proposal":
                partition.deliver_proposal(dice.randrange(9))
            case "deliver_refusal":
                partition.deliver_refusal(dice.randrange(9))
            case "learn":
                partition.learn(node, dice.random() < 0.5)
            case "propose":
                partition.propose(node, dice.random() < 0.5)
            case "reassign":
                partition.reassign(tuple(dice.sample(list(NODES), dice.choice([1, 2, 3]))))
            case "step":
                partition.step_reassignment()
            case "cancel":
                partition.cancel_reassignment()
            case "tick" | "prefer":
                getattr(partition, name)()
            case _:
                getattr(partition, name)(node)
        partition.check()
    return partition
