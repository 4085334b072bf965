"""Who leads a partition: the controller's rules.

Rules:
- A leader is alive and in sync. Only `unclean` (the user's word) elects a replica that is not in sync, and only when
  no member of the in-sync set is alive; it is then the only member, and what the others had beyond its log is lost.
- A leader that may stay, stays. Otherwise the first replica, in their order, that may lead.
- A dead node leaves the in-sync set, unless it is the last member: then the partition has no leader until it returns.
- A node that has lost unsynced bytes leaves the in-sync set before anybody may elect it, unless it is the last member:
  then it stays, as the only candidate there is.
- `alive` are the nodes that the controller has registered and not fenced. It is never gossip's opinion.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from headrace.isr.state import NO_LEADER, Nodes, PartitionState


class Election(NamedTuple):
    leader: int
    isr: Nodes


def elect(
    replicas: Sequence[int],
    isr: Collection[int],
    alive: Collection[int],
    current_leader: int,
    *,
    unclean: bool,
    preferred: bool = False,
) -> Election | None:
    """The leader, and the in-sync set that goes with it; None if nobody may lead.

    `preferred`: `replicas[0]` takes over from another leader, if it may.
    """
    able = [node for node in replicas if node in isr and node in alive]
    in_sync = tuple(node for node in replicas if node in isr)
    if able:
        stays = current_leader in able and not (preferred and able[0] == replicas[0])
        return Election(current_leader if stays else able[0], in_sync)
    if unclean:
        living = [node for node in replicas if node in alive]
        if living:
            return Election(living[0], (living[0],))
    return None


def settled(
    state: PartitionState, isr: Collection[int], alive: Collection[int], *, unclean: bool = False, anew: bool = False
) -> PartitionState | None:
    """The state with this in-sync set and whoever leads it; None if nothing changes. `anew`: not in the old epoch."""
    elected = elect(state.replicas, isr, alive, state.leader, unclean=unclean)
    if elected is None:
        return state.after(isr=isr, leader=NO_LEADER)
    return state.after(isr=elected.isr, leader=elected.leader, anew=anew and elected.leader == state.leader)


def after_death(
    state: PartitionState, dead: int, alive: Collection[int], *, unclean: bool = False
) -> PartitionState | None:
    """A node is dead, fenced, or leaves on purpose; None if that changes nothing here."""
    living = [node for node in alive if node != dead]
    return settled(state, _without(state, dead), living, unclean=unclean)


def after_return(state: PartitionState, alive: Collection[int], *, unclean: bool = False) -> PartitionState | None:
    """Nodes have come back: a partition without a leader may have one again. Nobody loses leadership by this."""
    return settled(state, state.isr, alive, unclean=unclean) if state.leader == NO_LEADER else None


def after_unclean_restart(
    state: PartitionState, node: int, alive: Collection[int] | None = None, *, unclean: bool = False
) -> PartitionState | None:
    """A node registers again without the mark of a clean stop: the tail of its log may be gone.

    It gives up its leadership: another in-sync replica has what it lost. As the last member it may go on leading, in
    a new epoch, so that followers compare their logs with what is left of its. `alive` None: all are.
    """
    if node not in state.isr:
        return None
    rest = _without(state, node)
    living = [other for other in (state.replicas if alive is None else alive) if other != node or rest == {node}]
    return settled(state, rest, living, unclean=unclean, anew=state.leader == node)


def after_log_loss(state: PartitionState, node: int, alive: Collection[int]) -> PartitionState | None:
    """A node's log of this partition is missing, damaged or older than it was: it is in sync no more.

    The last member stays, dead or alive, and so does its leadership: the node itself serves nothing, and nobody else is
    known to have everything.
    """
    if node not in state.isr or len(state.isr) == 1:
        return None
    return settled(state, _without(state, node), [other for other in alive if other != node])


def preferred_due(state: PartitionState, alive: Collection[int]) -> bool:
    """Whether the preferred leader could lead and does not."""
    preferred = state.replicas[0]
    return state.leader != preferred and preferred in state.isr and preferred in alive


def prefer(state: PartitionState, alive: Collection[int]) -> PartitionState | None:
    """The preferred leader leads; None if it does already, or may not."""
    return state.after(isr=state.isr, leader=state.replicas[0]) if preferred_due(state, alive) else None


def _without(state: PartitionState, node: int) -> set[int]:
    rest = set(state.isr) - {node}
    return rest or set(state.isr)
