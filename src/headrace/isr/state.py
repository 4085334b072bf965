"""What the cluster has agreed about one partition: its replicas, which are in sync, which may lead, which one leads.

Rules:
- A state never changes; a rule that finds something to change returns a new one.
- Every change raises `partition_epoch` by one, so that a proposal made on an older state can be told and refused.
- Every change of the leader raises `leader_epoch`: to nobody too, and to the same node if that begins anew.
- A leader is in sync.
- Eligible leader replicas (KIP-966): a member that leaves the in-sync set while fewer than `min_isr` are left in it has
  everything that is committed, and keeps it: the high watermark stands still until there are enough again
  (`isr/leader.py`). So it may be elected when nobody in sync can. With enough members nobody else is eligible. A
  replica that has lost something is neither in sync nor eligible. The in-sync set may be empty then, with or without
  eligible replicas; `last_known_elr` is for that case: the last leader, or the last one that was eligible.
- Where `min_isr` is UNTRACKED (a node of the cluster does not know of eligible replicas), the last member of the
  in-sync set stays in it, dead or alive, since nobody else is known to have everything.
- An election that may lose what was committed begins `unclean_epoch`: what anybody knew committed before it counts no
  more (Kafka's LeaderRecoveryState is the model; an epoch also tells it to replicas that return much later).
- Sets are kept in the order of the replicas. `replicas[0]` is the preferred leader.
- No more knowledge than this: no offsets, no clocks, and of nodes nothing but their ids.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

NO_LEADER: Final = -1
NEVER: Final = -1
UNTRACKED: Final = 0

Nodes = tuple[int, ...]


class PartitionState(msgspec.Struct, frozen=True, array_like=True):
    """`replicas` holds `adding` and `removing` too, while replicas are being reassigned."""

    replicas: Nodes
    isr: Nodes
    leader: int
    leader_epoch: int
    partition_epoch: int = 0
    adding: Nodes = ()
    removing: Nodes = ()
    elr: Nodes = ()  # eligible to lead, and not in sync
    # One node: it may lead when nobody is in sync or eligible. More: only the user's word elects one of them.
    last_known_elr: Nodes = ()
    unclean_epoch: int = NEVER  # the leader epoch of the last election that may have lost something
    min_isr: int = UNTRACKED  # as the topic wants it; not more than there are replicas. Not part of the record

    def __post_init__(self) -> None:
        replicas = set(self.replicas)
        assert len(replicas) == len(self.replicas), f"a node holds two replicas: {self}"
        assert replicas.issuperset(self.isr), f"in sync are replicas only: {self}"
        assert replicas.issuperset(self.elr) and not set(self.isr) & set(self.elr), f"eligible are others: {self}"
        assert self.leader == NO_LEADER or self.leader in self.isr, f"the leader is in sync: {self}"
        assert replicas.issuperset(self.adding) and replicas.issuperset(self.removing), (
            f"not among the replicas: {self}"
        )

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def target(self) -> Nodes:
        """The replicas that stay."""
        return tuple(node for node in self.replicas if node not in self.removing)

    @property
    def tracks_eligible(self) -> bool:
        return self.min_isr != UNTRACKED

    @property
    def candidates(self) -> Nodes:
        """All that have everything that is committed, as far as is known."""
        return tuple(node for node in self.replicas if node in self.isr or node in self.elr)

    def eligible(self, isr: Collection[int], *, replicas: Nodes | None = None, lost: Collection[int] = ()) -> Nodes:
        """The eligible replicas beside `isr` as the next in-sync set. `lost`: those that lost something."""
        replicas = self.replicas if replicas is None else replicas
        if len(isr) >= min(self.min_isr, len(replicas)):
            return ()
        had = {*self.isr, *self.elr}
        return tuple(node for node in replicas if node in had and node not in isr and node not in lost)

    def after(
        self,
        *,
        isr: Collection[int],
        leader: int,
        replicas: Nodes | None = None,
        adding: Nodes | None = None,
        removing: Nodes | None = None,
        anew: bool = False,
        unclean: bool = False,
        lost: Collection[int] = (),
        last_known_elr: Nodes | None = None,
    ) -> PartitionState | None:
        """The next state, with the epochs it needs; None if nothing changes.

        `anew`: the leader begins a new epoch. `unclean`: it may lack what was committed. `lost`: replicas that do.
        """
        replicas = self.replicas if replicas is None else replicas
        members = tuple(node for node in replicas if node in isr)
        leader_changes = anew or leader != self.leader
        leader_epoch = self.leader_epoch + leader_changes
        elr = () if unclean else self.eligible(members, replicas=replicas, lost=lost)
        if last_known_elr is None:
            last_known_elr = self._last_known(members, elr, leader, replicas, lost)
        after = PartitionState(
            replicas,
            members,
            leader,
            leader_epoch,
            self.partition_epoch + 1,
            self.adding if adding is None else adding,
            self.removing if removing is None else removing,
            elr,
            last_known_elr,
            leader_epoch if unclean and self.tracks_eligible else self.unclean_epoch,
            self.min_isr,
        )
        return None if not leader_changes and self._is_like(after) else after

    def _last_known(self, isr: Nodes, elr: Nodes, leader: int, replicas: Nodes, lost: Collection[int]) -> Nodes:
        if leader != NO_LEADER or not self.tracks_eligible:
            return ()
        last = tuple(node for node in self.candidates if node in lost and node in replicas)
        if last and not isr and not elr:
            return last[:1]  # until now it was known to have everything
        known = self.last_known_elr if self.leader == NO_LEADER else (self.leader,)
        return tuple(node for node in known if node in replicas)

    def _is_like(self, other: PartitionState) -> bool:
        """The same but for the epochs."""
        return (
            (self.replicas, self.adding, self.removing) == (other.replicas, other.adding, other.removing)
            and set(self.isr) == set(other.isr)
            and set(self.elr) == set(other.elr)
            and self.last_known_elr == other.last_known_elr
        )
