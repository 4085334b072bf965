"""Replicas that move from some nodes to others (KIP-455).

Rules:
- While it runs, the old and the new replicas are all replicas: the target first, in its order, then those to be
  removed. So the partition never has fewer copies than before.
- It ends when every replica of the target is in sync: then the others go. A leader that goes hands over to a member of
  the target, alive, in a new epoch.
- A replica that goes deletes its log. So the leader begins a new epoch then: a Fetch that the replica has sent before,
  and that comes late, is not taken for its word if it is added again.
- It can be given another target, or be cancelled, at any time, except when only added replicas are in sync or eligible:
  then the old ones do not have everything, and to go back would lose records.
- The order of the old replicas is not kept: after a cancellation the preferred leader may be another of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from headrace.isr.election import elect
from headrace.isr.state import NO_LEADER, Nodes, PartitionState


def original(state: PartitionState) -> Nodes:
    """The replicas before the reassignment."""
    return tuple(node for node in state.replicas if node not in state.adding)


def begin(state: PartitionState, target: Sequence[int], alive: Collection[int]) -> PartitionState | None:
    """Towards `target`, whatever was the target before; None if nothing changes, or if it would lose records."""
    assert target and len(set(target)) == len(target), f"not a list of replicas: {target}"
    old = original(state)
    removing = tuple(node for node in old if node not in target)
    adding = tuple(node for node in target if node not in old)
    return _with_replicas(state, (*target, *removing), adding, removing, alive)


def step(state: PartitionState, alive: Collection[int]) -> PartitionState | None:
    """The end of the reassignment, when it is due; None until then."""
    if not state.is_reassigning or not set(state.target) <= set(state.isr):
        return None
    finished = _with_replicas(state, state.target, (), (), alive)
    # Without a living member of the target it waits: those to be removed may serve until then.
    return None if finished is None or (finished.leader == NO_LEADER != state.leader) else finished


def cancel(state: PartitionState, alive: Collection[int]) -> PartitionState | None:
    """Back to the old replicas; None if there is nothing to cancel, or if it would lose records."""
    return _with_replicas(state, original(state), (), (), alive) if state.is_reassigning else None


def _with_replicas(
    state: PartitionState, replicas: Nodes, adding: Nodes, removing: Nodes, alive: Collection[int]
) -> PartitionState | None:
    isr: Collection[int] = [node for node in state.isr if node in replicas]
    if not set(replicas).intersection(state.candidates or state.last_known_elr):
        return None
    if state.leader in replicas:
        leader = state.leader
    else:
        elr = state.eligible(isr, replicas=replicas)
        elected = elect(replicas, isr, alive, NO_LEADER, unclean=False, elr=elr)
        leader, isr = (NO_LEADER, isr) if elected is None else (elected.leader, elected.isr)
    drops = not set(replicas).issuperset(state.replicas)
    anew = drops and leader == state.leader != NO_LEADER
    return state.after(isr=isr, leader=leader, replicas=replicas, adding=adding, removing=removing, anew=anew)
