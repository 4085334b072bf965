"""What the controller decides: an image and a question in, records and an answer out. Pure; easy to test.

Rules:
- `alive` is what the image says: nodes that are registered and not fenced. Nobody's opinion counts but the image's.
- A node that registers is fenced until it has applied its own registration (`unfence`): before that it might lead what
  it does not know. A node that is alone has nothing to catch up with.
- Whoever restarts gives up its leaderships, if others can take them. It stays in sync unless it may have lost bytes.
- Eligible leader replicas (KIP-966) are tracked as soon as every node's release knows of them, alive or not.
- All that one command changes is one list of records: one proposal.
- Deciding a command again changes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import msgspec

from headrace.broker.commands import (
    AlterInSync,
    Drain,
    InSync,
    Join,
    OfflineReplicas,
    Register,
    Remove,
    ShortLeader,
)
from headrace.broker.image import (
    BrokerRecord,
    EligiblePartitionRecord,
    Image,
    MetadataRecord,
    PartitionRecord,
    RemoveBrokerRecord,
    TopicImage,
)
from headrace.broker.levels import ELIGIBLE_LEADERS, check_able
from headrace.core.errors import ApiError, ErrorCode
from headrace.isr import election, reassignment
from headrace.isr.change import with_isr
from headrace.isr.leader import UNKNOWN_EPOCH
from headrace.isr.state import NEVER, NO_LEADER, UNTRACKED, PartitionState

if TYPE_CHECKING:
    from collections.abc import Collection
    from uuid import UUID

Next = Callable[[PartitionState], PartitionState | None]


class Policy(Protocol):
    """What topics want, as their configs say."""

    def unclean(self, topic: TopicImage, image: Image) -> bool:
        """Whether a replica that is not in sync may lead when nobody else can."""

    def synced(self, topic: TopicImage, image: Image) -> bool:
        """Whether what was acknowledged is on the disk: a restart loses nothing."""

    def volatile(self, topic: TopicImage, image: Image) -> bool:
        """Whether it is in memory only: every restart loses everything."""

    def min_insync(self, topic: TopicImage, image: Image) -> int:
        """How many replicas must be in sync for a write, and for the high watermark to move."""


@dataclass(frozen=True, slots=True)
class Standard:
    """No unclean elections; every acknowledgement synced."""

    def unclean(self, topic: TopicImage, image: Image) -> bool:
        return False

    def synced(self, topic: TopicImage, image: Image) -> bool:
        return True

    def volatile(self, topic: TopicImage, image: Image) -> bool:
        return False

    def min_insync(self, topic: TopicImage, image: Image) -> int:
        return 1


def alive(image: Image) -> frozenset[int]:
    return frozenset(node.node_id for node in image.brokers.values() if not node.fenced)


def state_of(record: PartitionRecord, min_isr: int = UNTRACKED) -> PartitionState:
    """The partition as the rules see it; `min_isr` (see `min_isr_of`) where they are to change it."""
    return PartitionState(
        record.replicas,
        record.isr,
        record.leader,
        record.leader_epoch,
        record.partition_epoch,
        record.adding,
        record.removing,
        record.elr,
        record.last_known_elr,
        record.unclean_epoch,
        min_isr,
    )


def record_of(topic: str, index: int, state: PartitionState) -> PartitionRecord:
    common = (
        topic,
        index,
        state.replicas,
        state.isr,
        state.leader,
        state.leader_epoch,
        state.partition_epoch,
        state.adding,
        state.removing,
    )
    if state.isr and not state.elr and not state.last_known_elr and state.unclean_epoch == NEVER:
        return PartitionRecord(*common)
    return EligiblePartitionRecord(*common, state.elr, state.last_known_elr, state.unclean_epoch)


def tracks_eligible(image: Image) -> bool:
    """Whether every node can read of eligible leader replicas, and holds its high watermarks for them."""
    return all(node.level >= ELIGIBLE_LEADERS for node in image.brokers.values())


def min_isr_of(image: Image, policy: Policy) -> Callable[[TopicImage], int]:
    """How many replicas of a topic must be in sync lest others become eligible; UNTRACKED while nobody may."""
    tracks = tracks_eligible(image)
    known: dict[str, int] = {}

    def min_isr(topic: TopicImage) -> int:
        if not tracks:
            return UNTRACKED
        found = known.get(topic.name)
        if found is None:
            found = known[topic.name] = max(1, policy.min_insync(topic, image))
        return found

    return min_isr


def partitions_on(image: Image, node: int) -> Iterator[tuple[TopicImage, PartitionRecord]]:
    """All partitions with a replica on a node."""
    for topic in image.topics.values():
        for record in topic.partitions:
            if node in record.replicas:
                yield topic, record


def _changed(
    min_isr: Callable[[TopicImage], int],
    found: Iterable[tuple[TopicImage, PartitionRecord]],
    change: Callable[[TopicImage, PartitionState], PartitionState | None],
) -> list[MetadataRecord]:
    records: list[MetadataRecord] = []
    for topic, record in found:
        after = change(topic, state_of(record, min_isr(topic)))
        if after is not None:
            records.append(record_of(record.topic, record.index, after))
    return records


# Nodes come and go


def join(image: Image, command: Join) -> list[MetadataRecord]:
    """A place for a new node. Raises ApiError if its id is another's, or its release too old."""
    check_able(image, command.node_id, command.level)
    known = image.brokers.get(command.node_id)
    if known is None:
        node = BrokerRecord(command.node_id, command.host, command.port, directory_id=command.directory_id, fenced=True)
        return [msgspec.structs.replace(node, level=command.level)]
    never_came = known.epoch == 0
    if known.directory_id != command.directory_id and not never_came:
        raise ApiError(
            ErrorCode.duplicate_broker_registration,
            f"node {command.node_id} belongs to the cluster already, with another data directory, at "
            f"{known.host}:{known.port}: choose another node id, bring its directory back, or remove that node first",
        )
    if never_came:
        return [
            msgspec.structs.replace(
                known,
                host=command.host,
                port=command.port,
                directory_id=command.directory_id,
                fenced=True,
                level=command.level,
            )
        ]
    if (known.host, known.port) != (command.host, command.port):
        # It came back elsewhere.
        return [msgspec.structs.replace(known, host=command.host, port=command.port, level=command.level)]
    return []


def register(image: Image, command: Register, policy: Policy) -> list[MetadataRecord]:
    """A node has started: it gets a new epoch, and what it led before goes to others. Raises ApiError."""
    node_id = command.node_id
    check_able(image, node_id, command.level)
    known = image.brokers.get(node_id)
    if known is not None and known.epoch > 0 and known.directory_id not in ("", command.directory_id):
        raise ApiError(
            ErrorCode.duplicate_broker_registration,
            f"node {node_id} is registered with another data directory: is this the right disk?",
        )
    if known is not None and known.epoch > 0 and command.start:
        if command.start < known.start:
            raise ApiError(ErrorCode.stale_broker_epoch, f"node {node_id} has started again since")
        if command.start == known.start:
            return []  # the same word again: its answer was lost, or it was on its way for long
    lone = all(other == node_id for other in image.brokers)
    node = BrokerRecord(
        node_id,
        command.host,
        command.port,
        command.rack,
        (known.epoch if known else 0) + 1,
        command.directory_id,
        fenced=not lone,
        draining=known.draining if known else False,
        start=command.start,
        level=command.level,
    )
    others = alive(image) - {node_id}

    def restarted(topic: TopicImage, state: PartitionState) -> PartitionState | None:
        if len(state.replicas) == 1:
            return None
        if policy.volatile(topic, image) or not (command.clean or policy.synced(topic, image)):
            after = election.after_unclean_restart(state, node_id, others)
            return after if after is not None else _led_by_others(state, node_id, others)
        return _led_by_others(state, node_id, others)

    knows = command.level >= ELIGIBLE_LEADERS
    min_isr = min_isr_of(image, policy) if knows else lambda topic: UNTRACKED
    return [node, *_changed(min_isr, partitions_on(image, node_id), restarted)]


def _led_by_others(state: PartitionState, node: int, others: Collection[int]) -> PartitionState | None:
    """The same in-sync set; whoever restarted leads no more in its old epoch."""
    if state.leader != node:
        return None
    return election.settled(state, state.isr, others)


def fence(image: Image, node: int, policy: Policy) -> list[MetadataRecord]:
    """A node is not heard any more, or leaves: others lead and are in sync without it."""
    known = image.brokers.get(node)
    if known is None or known.fenced:
        return []
    others = alive(image) - {node}
    return [
        msgspec.structs.replace(known, fenced=True),
        *_changed(
            min_isr_of(image, policy),
            partitions_on(image, node),
            lambda topic, state: election.after_death(state, node, others, unclean=policy.unclean(topic, image)),
        ),
    ]


def unfence(image: Image, node: int, policy: Policy) -> list[MetadataRecord]:
    """A node is back: partitions that nobody leads may be led by it."""
    known = image.brokers.get(node)
    if known is None or not known.fenced:
        return []
    living = alive(image) | {node}
    return [
        msgspec.structs.replace(known, fenced=False),
        *_changed(
            min_isr_of(image, policy),
            partitions_on(image, node),
            lambda topic, state: election.after_return(state, living, unclean=policy.unclean(topic, image)),
        ),
    ]


def told_level(image: Image, node: int, level: int) -> list[MetadataRecord]:
    """A node's release, where a leader of an older one has not written it down."""
    known = image.brokers.get(node)
    return [] if known is None or known.level == level else [msgspec.structs.replace(known, level=level)]


def drain(image: Image, command: Drain, policy: Policy) -> list[MetadataRecord]:
    """A node gives its leaderships away and gets no replicas, or takes its share again. Raises ApiError."""
    known = image.brokers.get(command.node_id)
    if known is None:
        raise ApiError(ErrorCode.broker_id_not_registered, f"there is no node {command.node_id}")
    records: list[MetadataRecord] = []
    if known.draining != command.on:
        records.append(msgspec.structs.replace(known, draining=command.on))
    if command.on:  # said again, it moves what could not be moved the first time
        others = eligible(image) - {command.node_id}

        def without(topic: TopicImage, state: PartitionState) -> PartitionState | None:
            if state.leader != command.node_id:
                return None
            elected = election.elect(state.replicas, state.isr, others, NO_LEADER, unclean=False)
            return None if elected is None else state.after(isr=state.isr, leader=elected.leader)

        records += _changed(min_isr_of(image, policy), partitions_on(image, command.node_id), without)
    return records


def remove(image: Image, command: Remove) -> list[MetadataRecord]:
    """A node leaves for good. Raises ApiError while it holds replicas."""
    known = image.brokers.get(command.node_id)
    if known is None:
        return []
    held = sum(1 for _ in partitions_on(image, command.node_id))
    if held:
        raise ApiError(
            ErrorCode.invalid_request,
            f"node {command.node_id} holds {held} replicas: drain it and rebalance first",
        )
    if not known.fenced:
        raise ApiError(ErrorCode.invalid_request, f"node {command.node_id} is running: stop it first")
    return [RemoveBrokerRecord(command.node_id)]


def eligible(image: Image) -> frozenset[int]:
    """Nodes that may get new replicas and leaderships."""
    return frozenset(node.node_id for node in image.brokers.values() if not node.fenced and not node.draining)


# Partitions


def alter_in_sync(image: Image, command: AlterInSync, policy: Policy) -> tuple[list[MetadataRecord], tuple[int, ...]]:
    """What leaders want of their in-sync sets: records, and an error code for each change. Raises ApiError."""
    check_epoch(image, command.node_id, command.epoch)
    registered = {node.node_id: node.epoch for node in image.brokers.values() if not node.fenced}
    living, min_isr = alive(image), min_isr_of(image, policy)
    drafts: dict[tuple[str, int], PartitionState] = {}
    errors: list[int] = []
    for change in command.changes:
        topic = image.topic_by_id(change.topic_id)
        record = None if topic is None else image.partition(topic.name, change.index)
        if topic is None or record is None:
            errors.append(ErrorCode.unknown_topic_id)
            continue
        place = (topic.name, change.index)
        before = drafts.get(place) or state_of(record, min_isr(topic))
        try:
            after = with_isr(
                before,
                command.node_id,
                change.leader_epoch,
                change.partition_epoch,
                dict(zip(change.isr, _epochs(change), strict=True)),
                registered,
            )
        except ApiError as error:
            errors.append(error.code)
            continue
        errors.append(ErrorCode.none)
        after = reassignment.step(after, living) or after
        if after is not before:
            drafts[place] = after
    return [record_of(topic, index, state) for (topic, index), state in drafts.items()], tuple(errors)


def offline_replicas(image: Image, command: OfflineReplicas, policy: Policy) -> list[MetadataRecord]:
    """A node has lost some of its logs: others lead and are in sync without them. Raises ApiError."""
    check_epoch(image, command.node_id, command.epoch)
    living = alive(image)
    return _changed(
        min_isr_of(image, policy),
        _known(image, command.replicas),
        lambda topic, state: election.after_log_loss(state, command.node_id, living),
    )


def short_leader(image: Image, command: ShortLeader, policy: Policy) -> list[MetadataRecord]:
    """A leader lacks what one of its followers knows to be committed: another one leads. Raises ApiError."""
    check_epoch(image, command.node_id, command.epoch)
    living = alive(image)

    def deposed(topic: TopicImage, state: PartitionState) -> PartitionState | None:
        if (state.leader, state.leader_epoch) != (command.leader, command.leader_epoch):
            return None  # another one leads already
        unclean = policy.unclean(topic, image)
        return election.after_short_leader(state, command.node_id, living, unclean=unclean)

    return _changed(min_isr_of(image, policy), _known(image, [(command.topic_id, command.index)]), deposed)


def _known(image: Image, places: Iterable[tuple[UUID, int]]) -> Iterator[tuple[TopicImage, PartitionRecord]]:
    for topic_id, index in places:
        topic = image.topic_by_id(topic_id)
        record = None if topic is None else image.partition(topic.name, index)
        if topic is not None and record is not None:
            yield topic, record


def _epochs(change: InSync) -> tuple[int, ...]:
    known = change.epochs[: len(change.isr)]
    return known + (UNKNOWN_EPOCH,) * (len(change.isr) - len(known))


def check_epoch(image: Image, node: int, epoch: int) -> None:
    """Refuse a node that has been replaced by a later start of itself."""
    known = image.brokers.get(node)
    if known is None:
        raise ApiError(ErrorCode.broker_id_not_registered, f"there is no node {node}")
    if known.epoch != epoch:
        raise ApiError(ErrorCode.stale_broker_epoch, f"node {node} is registered with epoch {known.epoch}")


def steps_due(image: Image, policy: Policy) -> list[MetadataRecord]:
    """Reassignments that have reached their target: a new controller looks at all of them."""
    living = alive(image)
    return _changed(
        min_isr_of(image, policy),
        (
            (topic, record)
            for topic in image.topics.values()
            for record in topic.partitions
            if record.adding or record.removing
        ),
        lambda topic, state: reassignment.step(state, living),
    )


def eligible_due(image: Image, policy: Policy) -> list[MetadataRecord]:
    """Partitions whose topics want fewer replicas in sync than they did: nobody else is eligible any more."""
    return _changed(
        min_isr_of(image, policy),
        ((topic, record) for topic in image.topics.values() for record in topic.partitions if record.elr),
        lambda topic, state: state.after(isr=state.isr, leader=state.leader),
    )


def preferred_due(image: Image, most: int, policy: Policy) -> list[MetadataRecord]:
    """Leaderships that go back to the preferred replica, at most so many."""
    living, min_isr = eligible(image), min_isr_of(image, policy)
    records: list[MetadataRecord] = []
    for topic in image.topics.values():
        for record in topic.partitions:
            if record.leader == record.replicas[0]:
                continue
            after = election.prefer(state_of(record, min_isr(topic)), living)
            if after is not None:
                records.append(record_of(record.topic, record.index, after))
                if len(records) >= most:
                    return records
    return records
