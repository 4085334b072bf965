"""What the cluster has agreed about one partition: its replicas, who is in sync, who leads.

Rules:
- A state never changes; a rule that finds something to change returns a new one.
- Every change raises `partition_epoch` by one, so that a proposal made on an older state can be told and refused.
- Every change of the leader raises `leader_epoch`: to nobody too, and to the same node if that begins anew.
- Whoever leads is in sync. The in-sync set is never empty: its last member stays in it, dead or alive, since nobody
  else is known to have everything.
- The in-sync set is kept in the order of the replicas. `replicas[0]` is the preferred leader.
- No more knowledge than this: no offsets, no clocks, and of nodes nothing but their ids.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

import msgspec

NO_LEADER: Final = -1

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

    def __post_init__(self) -> None:
        replicas = set(self.replicas)
        assert len(replicas) == len(self.replicas), f"a node holds two replicas: {self}"
        assert self.isr and replicas.issuperset(self.isr), f"in sync are replicas only, at least one: {self}"
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

    def after(
        self,
        *,
        isr: Collection[int],
        leader: int,
        replicas: Nodes | None = None,
        adding: Nodes | None = None,
        removing: Nodes | None = None,
        anew: bool = False,
    ) -> PartitionState | None:
        """The next state, with the epochs it needs; None if nothing changes. `anew`: the leader begins a new epoch."""
        replicas = self.replicas if replicas is None else replicas
        members = tuple(node for node in replicas if node in isr)
        adding = self.adding if adding is None else adding
        removing = self.removing if removing is None else removing
        leader_changes = anew or leader != self.leader
        same = (replicas, adding, removing) == (self.replicas, self.adding, self.removing)
        if same and not leader_changes and set(members) == set(self.isr):
            return None
        return PartitionState(
            replicas,
            members,
            leader,
            self.leader_epoch + leader_changes,
            self.partition_epoch + 1,
            adding,
            removing,
        )
