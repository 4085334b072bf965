"""Replicas on the move, and elections that somebody asks for: decided here, on the controller.

Rules:
- Each partition of a request has its own outcome; all that changes is one proposal.
- A partition moves as `isr.reassignment` says; a target that is in sync already is reached at once.
- A preferred election moves a leadership home. An unclean one takes whoever is up, when nobody in sync is: records may
  be lost, and that is why only a person may ask for it.
- A rebalance is many reassignments. Each adds before it removes. So many partitions are copied at a time and no more;
  whoever asked for it asks again for the rest. What needs no copying is proposed in portions, so that no entry of the
  log is too large.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from headrace.broker import placement
from headrace.broker.commands import Moves, Rebalance
from headrace.broker.decisions import alive, min_isr_of, record_of, state_of
from headrace.core.errors import ApiError, ErrorCode
from headrace.isr import election, reassignment
from headrace.isr.state import NO_LEADER, PartitionState

if TYPE_CHECKING:
    from headrace.broker.controller import Controller
    from headrace.broker.decisions import Policy
    from headrace.broker.image import Image, MetadataRecord, PartitionRecord
    from headrace.ring.plan import Move

PREFERRED: Final = 0
UNCLEAN: Final = 1
PARTITIONS_AT_ONCE: Final = 1000  # in one entry of the log
COPIES_AT_ONCE: Final = 50  # partitions that a rebalance has copied at the same time, in the whole cluster

Place = tuple[str, int]
Target = tuple[str, int, Sequence[int] | None]  # topic, partition, replicas; None cancels


def reassigned(
    image: Image,
    topic: str,
    index: int,
    replicas: Sequence[int] | None,
    policy: Policy,
    *,
    may_change_factor: bool = True,
) -> PartitionRecord | None:
    """The partition on its way to other replicas; None if nothing changes. Raises ApiError."""
    state, living = _found(image, topic, index, policy), alive(image)
    if replicas is None:
        if not state.is_reassigning:
            raise ApiError(ErrorCode.no_reassignment_in_progress, "No partition reassignment is in progress.")
        after = reassignment.cancel(state, living)
        if after is None:
            raise ApiError(
                ErrorCode.invalid_replica_assignment, "Only added replicas are in sync: going back would lose records."
            )
        return record_of(topic, index, after)
    _check(image, replicas)
    if not may_change_factor and len(replicas) != len(reassignment.original(state)):
        raise ApiError(
            ErrorCode.invalid_replication_factor,
            f"The replication factor is changed from {len(reassignment.original(state))} to {len(replicas)}.",
        )
    after = reassignment.begin(state, replicas, living)
    finished = reassignment.step(after or state, living)
    after = finished or after
    return None if after is None else record_of(topic, index, after)


def elected(image: Image, topic: str, index: int, kind: int, policy: Policy) -> PartitionRecord:
    """The partition with the leader that was asked for. Raises ApiError."""
    state, living = _found(image, topic, index, policy), alive(image)
    not_needed = ApiError(ErrorCode.election_not_needed, "Leader election not needed for topic partition.")
    if kind == PREFERRED:
        if state.leader == state.replicas[0]:
            raise not_needed
        after = election.prefer(state, living)
        if after is None:
            raise ApiError(ErrorCode.preferred_leader_not_available, "The preferred leader was not available.")
        return record_of(topic, index, after)
    if state.leader != NO_LEADER:
        raise not_needed
    after = election.settled(state, state.isr, living, unclean=True)
    if after is None or after.leader == NO_LEADER:
        raise ApiError(ErrorCode.eligible_leaders_not_available, "Eligible topic partition leaders are not available.")
    return record_of(topic, index, after)


def _found(image: Image, topic: str, index: int, policy: Policy) -> PartitionState:
    record = image.partition(topic, index)
    if record is None:
        message = f"No such partition as {topic}-{index}" if topic in image.topics else f"No such topic as {topic}"
        raise ApiError(ErrorCode.unknown_topic_or_partition, message)
    return state_of(record, min_isr_of(image, policy)(image.topics[topic]))


def _check(image: Image, replicas: Sequence[int]) -> None:
    fault = None
    if not replicas:
        fault = "an empty replica list."
    for node, times in sorted(Counter(replicas).items()):
        if fault is None and node not in image.brokers:
            fault = f"broker {node}, but no such broker is registered."
        elif fault is None and times > 1:
            fault = f"the broker {node} more than once."
    if fault is not None:
        raise ApiError(ErrorCode.invalid_replica_assignment, f"The manual partition assignment includes {fault}")


# On the controller


async def reassign(
    controller: Controller, targets: Sequence[Target], policy: Policy, *, may_change_factor: bool = True
) -> dict[Place, ApiError | None]:
    """The outcome for each partition, in order. Raises ApiError if nothing can be decided here."""
    image = controller.proposed
    by_place = {(topic, index): replicas for topic, index, replicas in targets}
    outcomes, records = _decided(
        by_place, lambda place: reassigned(image, *place, by_place[place], policy, may_change_factor=may_change_factor)
    )
    await controller.propose(records)
    return outcomes


async def elect(
    controller: Controller, places: Iterable[Place], kind: int, policy: Policy
) -> dict[Place, ApiError | None]:
    """The outcome for each partition, in order. Raises ApiError if nothing can be decided here."""
    image = controller.proposed
    outcomes, records = _decided(dict.fromkeys(places), lambda place: elected(image, *place, kind, policy))
    await controller.propose(records)
    return outcomes


def _decided(
    places: Iterable[Place], decide: Callable[[Place], PartitionRecord | None]
) -> tuple[dict[Place, ApiError | None], list[MetadataRecord]]:
    outcomes: dict[Place, ApiError | None] = {}
    records: list[MetadataRecord] = []
    for place in places:
        try:
            record = decide(place)
        except ApiError as error:
            outcomes[place] = error
            continue
        outcomes[place] = None
        if record is not None:
            records.append(record)
    return outcomes, records


async def rebalance(controller: Controller, command: Rebalance, policy: Policy) -> Moves:
    """Plan, and unless it is a rehearsal begin, the moves that bring the cluster into balance. Raises ApiError."""
    image = controller.proposed
    wanted = placement.moves(
        image, lambda topic: policy.min_insync(topic, image), fewer=command.fewer, also_leaving=command.leaving
    )
    if not command.dry_run:
        first = _first(image, wanted)
        for start in range(0, len(first), PARTITIONS_AT_ONCE):
            await controller.commit(_begun(controller.proposed, first[start : start + PARTITIONS_AT_ONCE], policy))
    return Moves(tuple((move.topic, move.index, move.before, move.after) for move in wanted))


def _first(image: Image, wanted: Sequence[Move]) -> list[Move]:
    """What may begin now: all that copies nothing, and as many others as there is room for."""
    copying = sum(bool(record.adding) for topic in image.topics.values() for record in topic.partitions)
    room = max(0, COPIES_AT_ONCE - copying)
    copies = [move for move in wanted if move.adding][:room]
    return [move for move in wanted if not move.adding] + copies


async def grow_internal_topics(controller: Controller, policy: Policy) -> int:
    """Begin to give the coordinators' topics the replicas that they lack; returns for how many partitions."""
    records = _begun(controller.proposed, placement.growth(controller.proposed), policy)
    await controller.commit(records)
    return len(records)


def _begun(image: Image, wanted: Sequence[Move], policy: Policy) -> list[MetadataRecord]:
    """Moves whose topic is gone meanwhile are passed over."""
    targets = {(move.topic, move.index): move.after for move in wanted}
    return _decided(targets, lambda place: reassigned(image, place[0], place[1], targets[place], policy))[1]
