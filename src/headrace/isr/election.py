"""Who leads a partition: the controller's rules.

Rules:
- A leader is alive and in sync, or, if nobody in sync is alive, alive and eligible (KIP-966): it is then the only
  member of the in-sync set, and the others remain eligible.
- If nobody is in sync or eligible any more (all have lost something), the last one that was leads when it is back (in
  Kafka: the last leader). That election is unclean, and so is one by the user's word (`unclean`), which elects any
  replica when nobody in sync or eligible is alive. The elected one is the only member then, and what others had beyond
  its log is lost.
- A leader that may stay, stays. Otherwise the first replica, in their order, that may lead.
- A dead node leaves the in-sync set; it may remain eligible (`isr/state.py`). A node that has lost something (unsynced
  bytes, a log) leaves both before anybody may elect it. Where eligible replicas are not tracked, the last member stays
  in sync in both cases, as the only candidate there is.
- A replica whose log is lost as a whole stays, if it is the last candidate: its partition is offline until a person
  brings the log back or elects somebody.
- A leader that lacks what a follower knows to be committed leads no more; the follower does, if it may. If there is no
  other candidate, the partition has no leader until a person, or `unclean`, elects one.
- `alive` are the nodes that the controller has registered and not fenced. It is never gossip's opinion.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from headrace.isr.state import NO_LEADER, Nodes, PartitionState


class Election(NamedTuple):
    leader: int
    isr: Nodes
    is_unclean: bool = False  # it may lack what was committed


def elect(
    replicas: Sequence[int],
    isr: Collection[int],
    alive: Collection[int],
    current_leader: int,
    *,
    unclean: bool,
    preferred: bool = False,
    elr: Collection[int] = (),
    last_known: Nodes = (),
) -> Election | None:
    """The leader, and the in-sync set that goes with it; None if nobody may lead.

    `preferred`: `replicas[0]` takes over from another leader, if it may.
    """
    able = [node for node in replicas if node in isr and node in alive]
    in_sync = tuple(node for node in replicas if node in isr)
    if able:
        stays = current_leader in able and not (preferred and able[0] == replicas[0])
        return Election(current_leader if stays else able[0], in_sync)
    for node in replicas:
        if node in elr and node in alive:
            return Election(node, (node,))
    if not isr and not elr and len(last_known) == 1 and last_known[0] in alive:
        return Election(last_known[0], last_known, is_unclean=True)
    if unclean:
        for node in (*last_known, *replicas):
            if node in replicas and node in alive:
                return Election(node, (node,), is_unclean=True)
    return None


def settled(
    state: PartitionState,
    isr: Collection[int],
    alive: Collection[int],
    *,
    unclean: bool = False,
    anew: bool = False,
    lost: Collection[int] = (),
) -> PartitionState | None:
    """The state with this in-sync set and whoever leads it; None if nothing changes.

    `anew`: not in the old epoch. `lost`: nodes that are not eligible any more.
    """
    nobody = state.after(isr=isr, leader=NO_LEADER, lost=lost) or state
    elected = elect(
        state.replicas,
        isr,
        alive,
        state.leader,
        unclean=unclean,
        elr=nobody.elr,
        last_known=nobody.last_known_elr,
    )
    if elected is None:
        return None if nobody is state else nobody
    return state.after(
        isr=elected.isr,
        leader=elected.leader,
        anew=(anew or elected.is_unclean) and elected.leader == state.leader,
        unclean=elected.is_unclean,
        lost=lost,
    )


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

    It gives up its leadership: another candidate has what it lost. As the last one it may go on leading, in a new
    epoch, so that followers compare their logs with what is left of its. `alive` None: all are.
    """
    if node not in state.candidates:
        return None
    rest = _without(state, node)
    is_last = state.tracks_eligible or rest == {node}
    living = [other for other in (state.replicas if alive is None else alive) if other != node or is_last]
    return settled(state, rest, living, unclean=unclean, anew=state.leader == node, lost=(node,))


def after_log_loss(state: PartitionState, node: int, alive: Collection[int]) -> PartitionState | None:
    """A node's log of this partition is missing, damaged or older than it was: it is no candidate any more.

    The last candidate stays, dead or alive, and so does its leadership: the node itself serves nothing, and nobody else
    is known to have everything.
    """
    if node not in state.candidates or len(state.candidates) == 1:
        return None
    return settled(state, _without(state, node), [other for other in alive if other != node], lost=(node,))


def after_short_leader(
    state: PartitionState, reporter: int, alive: Collection[int], *, unclean: bool = False
) -> PartitionState | None:
    """The leader lacks what `reporter`, a replica, knows to be committed, and has; None if nothing can be done."""
    leader = state.leader
    if leader in (NO_LEADER, reporter) or reporter not in state.replicas:
        return None
    if len(state.candidates) > 1:
        living = [node for node in alive if node != leader]
        if reporter in state.candidates and reporter in alive:
            living = [reporter]  # the one that surely has it: others may have lost it, too
        return settled(state, _without(state, leader), living, lost=(leader,))
    if not state.tracks_eligible:
        return None
    if unclean and reporter in alive:
        return state.after(isr=(reporter,), leader=reporter, unclean=True)
    return state.after(isr=(), leader=NO_LEADER, lost=(leader,), last_known_elr=(reporter, leader))


def preferred_due(state: PartitionState, alive: Collection[int]) -> bool:
    """Whether the preferred leader could lead and does not."""
    preferred = state.replicas[0]
    return state.leader != preferred and preferred in state.isr and preferred in alive


def prefer(state: PartitionState, alive: Collection[int]) -> PartitionState | None:
    """The preferred leader leads; None if it does already, or may not."""
    return state.after(isr=state.isr, leader=state.replicas[0]) if preferred_due(state, alive) else None


def _without(state: PartitionState, node: int) -> set[int]:
    rest = set(state.isr) - {node}
    return rest if rest or state.tracks_eligible else set(state.isr)
