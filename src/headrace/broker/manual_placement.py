"""Replicas that somebody has chosen for a topic's partitions, checked as Kafka checks them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from headrace.core.errors import ApiError, ErrorCode
from headrace.core.limits import PARTITIONS_PER_REQUEST, PARTITIONS_PER_TOPIC

if TYPE_CHECKING:
    from headrace.broker.image import Image
    from headrace.broker.topics import NewTopic

Replicas = tuple[int, ...]


def manual_placement(image: Image, topic: NewTopic, room: int) -> list[Replicas]:
    """The replicas of each partition of a new topic; `room` is how many partitions it may have. Raises ApiError."""
    if topic.replication_factor != -1:
        raise ApiError(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        )
    if topic.partitions != -1:
        raise ApiError(
            ErrorCode.invalid_request,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        )
    placed: dict[int, Replicas] = {}
    factor: int | None = None
    for index, replicas in topic.assignments:
        if index in placed:
            raise ApiError(
                ErrorCode.invalid_replica_assignment,
                f"Found multiple manual partition assignments for partition {index}",
            )
        check_replicas(image, replicas, factor)
        factor = len(replicas)
        placed[index] = replicas
    if any(index not in placed for index in range(len(placed))):
        raise ApiError(
            ErrorCode.invalid_replica_assignment, "partitions should be a consecutive 0-based integer sequence"
        )
    check_count(len(placed), len(placed), room)
    return [placed[index] for index in range(len(placed))]


def check_replicas(image: Image, replicas: Replicas, factor: int | None) -> None:
    """Refuse a manual assignment that cannot be. `factor` is what the partitions before it have."""
    fault = None
    if not replicas:
        fault = "an empty replica list."
    for broker, times in sorted(Counter(replicas).items()):
        if fault is None and broker not in image.brokers:
            fault = f"broker {broker}, but no such broker is registered."
        elif fault is None and times > 1:
            fault = f"the broker {broker} more than once."
    if fault is None and factor is not None and len(replicas) != factor:
        fault = (
            f"a partition with {len(replicas)} replica(s), but this is not consistent with previous partitions, "
            f"which have {factor} replica(s)."
        )
    if fault is not None:
        raise ApiError(ErrorCode.invalid_replica_assignment, f"The manual partition assignment includes {fault}")


def check_count(total: int, additional: int, room: int) -> None:
    """Refuse a topic that would have too many partitions, or bring too many. Raises ApiError."""
    if total > PARTITIONS_PER_TOPIC:
        raise ApiError(
            ErrorCode.invalid_partitions, f"A topic has at most {PARTITIONS_PER_TOPIC} partitions, not {total}."
        )
    if additional > room:
        raise ApiError(
            ErrorCode.invalid_partitions, f"One request creates at most {PARTITIONS_PER_REQUEST} partitions."
        )
