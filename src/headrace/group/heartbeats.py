"""What a heartbeat of the new protocol (KIP-848) must say, whatever the group: Kafka's own rules and sentences."""

from __future__ import annotations

from typing import Final

from headrace.core import limits
from headrace.core.errors import ApiError, ErrorCode
from headrace.group.assignors import ASSIGNORS
from headrace.group.commands import ConsumerHeartbeat
from headrace.group.topics import Reading

JOINS: Final = 0
LEAVES: Final = -1
LEAVES_FOR_NOW: Final = -2  # a static member that will be back


def heartbeat_fault(command: ConsumerHeartbeat, reading: Reading) -> None:
    """Raise ApiError if the request can be no good, whatever the group."""
    invalid = ErrorCode.invalid_request
    epoch = command.member_epoch
    for name, text in (("GroupId", command.group), ("InstanceId", command.instance_id), ("RackId", command.rack_id)):
        if text is not None and not text.strip():
            raise ApiError(invalid, f"{name} can't be empty.")
    if len(command.group) > limits.GROUP_ID_LENGTH:
        raise ApiError(ErrorCode.invalid_group_id, f"GroupId has at most {limits.GROUP_ID_LENGTH} characters.")
    if epoch < LEAVES_FOR_NOW:
        raise ApiError(invalid, f"MemberEpoch is {epoch}, but must be greater than or equal to -2.")
    if (epoch != JOINS or command.must_bring_id) and not command.member_id.strip():
        raise ApiError(invalid, "MemberId can't be empty.")
    if epoch == LEAVES_FOR_NOW and command.instance_id is None:
        raise ApiError(invalid, "InstanceId can't be null.")
    if epoch == JOINS:
        if command.rebalance_timeout_ms is None:
            raise ApiError(invalid, "RebalanceTimeoutMs must be provided in first request.")
        if command.owned is None or any(indexes for _, indexes in command.owned):
            raise ApiError(invalid, "TopicPartitions must be empty when (re-)joining.")
        if command.topics is None and command.pattern is None:
            raise ApiError(
                invalid, "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining."
            )
    if sum(map(len, command.topics or ())) + len(command.member_id) > limits.GROUP_METADATA_BYTES:
        raise ApiError(invalid, "The subscription is too large.")
    if command.assignor is not None and command.assignor not in ASSIGNORS:
        raise ApiError(
            ErrorCode.unsupported_assignor,
            f"ServerAssignor {command.assignor} is not supported. Supported assignors: {', '.join(ASSIGNORS)}.",
        )
    if command.pattern and (fault := reading.pattern_fault(command.pattern)) is not None:
        raise ApiError(ErrorCode.invalid_regular_expression, f"SubscribedTopicRegex is not a valid expression: {fault}")
