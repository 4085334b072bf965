"""The controller's answer to a leader that proposes an in-sync set (AlterPartition).

Rules:
- Only the leader of the current epoch is heard, and only on the state that is current: of two proposals made on one
  state, one is accepted.
- The leader is in the set. All others in it are registered, not fenced, and the incarnation that the leader saw
  fetching (KIP-841, KIP-903): a node that has restarted since may have lost what it had.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.core.errors import ApiError, ErrorCode
from headrace.isr.leader import UNKNOWN_EPOCH
from headrace.isr.state import PartitionState


def with_isr(
    state: PartitionState,
    leader: int,
    leader_epoch: int,
    partition_epoch: int,
    isr: Mapping[int, int],
    registered: Mapping[int, int],
) -> PartitionState:
    """The next state, or the same one if nothing changes; ApiError with Kafka's code if the proposal is refused.

    `isr`: the broker epoch of each member as the leader knows it, -1 where it does not. `registered`: the broker epochs
    of the nodes that are registered and not fenced.
    """
    if leader_epoch > state.leader_epoch or partition_epoch > state.partition_epoch:
        raise ApiError(ErrorCode.not_controller, "The proposal is of an epoch that this controller does not know.")
    if leader_epoch < state.leader_epoch:
        raise ApiError(ErrorCode.fenced_leader_epoch)
    if leader != state.leader:
        raise ApiError(ErrorCode.invalid_request, f"Node {leader} does not lead the partition.")
    if partition_epoch < state.partition_epoch:
        raise ApiError(ErrorCode.invalid_update_version)
    if leader not in isr or not set(isr) <= set(state.replicas):
        raise ApiError(ErrorCode.invalid_request, "An in-sync set has the leader in it, and replicas only.")
    for node, broker_epoch in isr.items():
        known = registered.get(node)
        if known is None or broker_epoch not in (known, UNKNOWN_EPOCH):
            raise ApiError(ErrorCode.ineligible_replica, f"Node {node} is fenced, or has restarted.")
    return state.after(isr=isr, leader=leader) or state
