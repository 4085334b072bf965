"""What nodes ask of the controller: the leader of the metadata quorum, wherever it is.

Rules:
- A command is put through `Quorum.ask`, on any node; it is decided on the leader against the newest image and answered
  when the decision is committed. A command may be repeated: deciding it twice changes nothing more.
- `epoch` is the epoch of the asking node's registration: one that was replaced by a later start is refused.
- Structs are arrays; new fields go to the end and have defaults, so that nodes of two releases understand each other.
  A command that the controller's release does not know is refused (unsupported_version): the asking node must be able
  to go on without, until all nodes are upgraded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from uuid import UUID

import msgspec

from headrace.broker.levels import FIRST


class Join(msgspec.Struct, frozen=True, tag="join", array_like=True):
    """A new node wants to belong to the quorum; at first without a vote. Answered by `Joined`."""

    node_id: int
    host: str
    port: int
    directory_id: str
    level: int = FIRST  # that the node's release can read


class Joined(msgspec.Struct, frozen=True, tag="joined", array_like=True):
    """`nodes`: everybody's address by id; `leader`: who answered."""

    cluster_id: str
    leader: int
    nodes: dict[int, tuple[str, int]]


class Register(msgspec.Struct, frozen=True, tag="register", array_like=True):
    """A node has started. `clean`: it lost nothing when it ended. Answered by `Registered`."""

    node_id: int
    host: str
    port: int
    rack: str | None
    directory_id: str
    clean: bool
    start: int = 0  # which start of this node it is, so that one word twice, or late, changes nothing; 0: not counted
    level: int = FIRST


class Registered(msgspec.Struct, frozen=True, tag="registered", array_like=True):
    """`index`: of the metadata entry that holds it. A node may lead when it has applied that."""

    epoch: int
    index: int


class Beat(msgspec.Struct, frozen=True, tag="beat", array_like=True):
    """A node lives. `leaving`: it would like to stop and gives its leaderships away. Answered by `Beaten`."""

    node_id: int
    epoch: int
    applied: int
    leaving: bool = False
    level: int = FIRST


class Beaten(msgspec.Struct, frozen=True, tag="beaten", array_like=True):
    fenced: bool
    may_leave: bool


class InSync(msgspec.Struct, frozen=True, array_like=True):
    """One partition's leader wants another in-sync set.

    `epochs`: of the members' registrations, in the order of `isr`, as the leader saw them fetching (KIP-903); -1, or
    none at all, where it does not know.
    """

    topic_id: UUID
    index: int
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    epochs: tuple[int, ...] = ()


class AlterInSync(msgspec.Struct, frozen=True, tag="alter-in-sync", array_like=True):
    """Answered by `InSyncAltered`: an error code per change, in order; 0: it is committed."""

    node_id: int
    epoch: int
    changes: tuple[InSync, ...]


class InSyncAltered(msgspec.Struct, frozen=True, tag="in-sync-altered", array_like=True):
    """`index`: of the metadata entry that holds what was changed. Who has applied it sees it."""

    errors: tuple[int, ...]
    index: int = 0


class OfflineReplicas(msgspec.Struct, frozen=True, tag="offline-replicas", array_like=True):
    """Logs of a node are missing, damaged, swapped, older than they were, or cannot be read. Answered by `Done`.

    Once it is answered none of these replicas is in sync or eligible, unless it is the last one that could be; then it
    stays, and its partition is offline. `replicas`: (topic id, index). Repeated for a replica that is out already
    it does nothing.
    """

    node_id: int
    epoch: int
    replicas: tuple[tuple[UUID, int], ...]


class ShortLeader(msgspec.Struct, frozen=True, tag="short-leader", array_like=True):
    """A leader lacks records that the asking node has and knows to be committed. Answered by `Done`.

    Once it is answered that leader leads no more in `leader_epoch`, unless nothing can be done. `committed_offset`:
    everything below is committed, as the asking node knows; the leader's log ends, or parts from it, below.
    """

    node_id: int
    epoch: int
    topic_id: UUID
    index: int
    leader: int
    leader_epoch: int
    committed_offset: int


class TakeProducerIds(msgspec.Struct, frozen=True, tag="take-producer-ids", array_like=True):
    """Answered by `ProducerIdsTaken`: `count` ids from `first` on are the asking node's."""

    count: int


class ProducerIdsTaken(msgspec.Struct, frozen=True, tag="producer-ids-taken", array_like=True):
    first: int


class EnsureTopic(msgspec.Struct, frozen=True, tag="ensure-topic", array_like=True):
    """Have a topic made unless it is there. -1: the default. Answered by `Done`."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = {}


class Drain(msgspec.Struct, frozen=True, tag="drain", array_like=True):
    """A node shall give away its leaderships and get no replicas, or (`on` false) take its share again. `Done`."""

    node_id: int
    on: bool


class Remove(msgspec.Struct, frozen=True, tag="remove", array_like=True):
    """A node that holds no replicas any more leaves for good. Answered by `Done`."""

    node_id: int


class Rebalance(msgspec.Struct, frozen=True, tag="rebalance", array_like=True):
    """Bring the replicas into balance by the ring, away from draining nodes. Answered by `Moves`.

    `fewer`: topics may lose replicas, where there are too few nodes for them. `leaving`: plan as if these nodes were
    draining, too. What is begun at once is bounded: asked again, the controller goes on with the rest.
    """

    dry_run: bool = False
    fewer: bool = False
    leaving: tuple[int, ...] = ()


class Moves(msgspec.Struct, frozen=True, tag="moves", array_like=True):
    """(topic, partition, replicas before, replicas after)."""

    moves: tuple[tuple[str, int, tuple[int, ...], tuple[int, ...]], ...]


class Describe(msgspec.Struct, frozen=True, tag="describe", array_like=True):
    """How the quorum and the nodes are. Answered by `Described`."""


class NodeHealth(msgspec.Struct, frozen=True, array_like=True):
    node_id: int
    host: str
    port: int
    rack: str | None
    state: str  # alive, fenced, draining
    voter: bool
    applied: int
    seen_ms_ago: int  # -1: never
    skew_ms: float | None = None


class Described(msgspec.Struct, frozen=True, tag="described", array_like=True):
    cluster_id: str
    leader: int
    term: int
    commit: int
    nodes: tuple[NodeHealth, ...]


class Done(msgspec.Struct, frozen=True, tag="done", array_like=True):
    """`index`: of the metadata entry that holds it. Who has applied it sees what was done."""

    index: int = 0


class Refused(msgspec.Struct, frozen=True, tag="refused", array_like=True):
    """`ask` raises it as an ApiError."""

    code: int
    message: str


Command = (
    Join
    | Register
    | Beat
    | AlterInSync
    | OfflineReplicas
    | ShortLeader
    | TakeProducerIds
    | EnsureTopic
    | Drain
    | Remove
    | Rebalance
    | Describe
)
Answer = Joined | Registered | Beaten | InSyncAltered | ProducerIdsTaken | Moves | Described | Done | Refused


class Quorum(Protocol):
    """What the rest of a broker needs to know of the others who decide."""

    @property
    def leader(self) -> int | None:
        """The node that decides, as far as is known here."""

    @property
    def leads(self) -> bool:
        """Whether this node decides, and its image holds everything that was decided before."""

    async def ask(self, command: Command, *, timeout_s: float = 10.0) -> Answer:
        """Put a command to the leader, wherever it is, and again if it moves. Raises ApiError."""


Addresses = Mapping[int, tuple[str, int]]
