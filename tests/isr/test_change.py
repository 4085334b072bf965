"""Which proposals the controller accepts."""

from __future__ import annotations

import pytest

from headrace.core.errors import ApiError, ErrorCode
from headrace.isr.change import with_isr
from headrace.isr.state import PartitionState

STATE = PartitionState((1, 2, 3), (1, 2), 1, 5, 10)
REGISTERED = {1: 101, 2: 102, 3: 103}


def test_the_leaders_proposal_is_the_next_state() -> None:
    accepted = with_isr(STATE, 1, 5, 10, {3: 103, 1: 101, 2: 102}, REGISTERED)
    assert accepted == PartitionState((1, 2, 3), (1, 2, 3), 1, 5, 11)


def test_a_proposal_of_what_is_changes_nothing() -> None:
    assert with_isr(STATE, 1, 5, 10, {1: 101, 2: -1}, REGISTERED) is STATE


@pytest.mark.parametrize(
    ("leader", "leader_epoch", "partition_epoch", "isr", "code"),
    [
        (1, 4, 10, {1: 101}, ErrorCode.fenced_leader_epoch),
        (1, 6, 10, {1: 101}, ErrorCode.not_controller),
        (1, 5, 11, {1: 101}, ErrorCode.not_controller),
        (1, 5, 9, {1: 101}, ErrorCode.invalid_update_version),
        (2, 5, 10, {2: 102}, ErrorCode.invalid_request),
        (1, 5, 10, {2: 102}, ErrorCode.invalid_request),
        (1, 5, 10, {}, ErrorCode.invalid_request),
        (1, 5, 10, {1: 101, 4: 104}, ErrorCode.invalid_request),
        (1, 5, 10, {1: 101, 3: 99}, ErrorCode.ineligible_replica),
    ],
)
def test_a_proposal_is_refused(
    leader: int, leader_epoch: int, partition_epoch: int, isr: dict[int, int], code: ErrorCode
) -> None:
    with pytest.raises(ApiError) as refused:
        with_isr(STATE, leader, leader_epoch, partition_epoch, isr, REGISTERED)
    assert refused.value.code is code


def test_a_fenced_node_does_not_become_a_member() -> None:
    with pytest.raises(ApiError) as refused:
        with_isr(STATE, 1, 5, 10, {1: 101, 3: 103}, {1: 101})
    assert refused.value.code is ErrorCode.ineligible_replica
