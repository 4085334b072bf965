"""What may be asked of the groups, and what they answer.

Rules:
- A command carries everything that its decision needs: ids that were drawn by lot and wall time are given in.
- What depends on a request's version comes in as a named fact, never as a version number.
- Every command carries a token; its answer goes out under that token, in the same decision or a later one.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from headrace.core.errors import ErrorCode
from headrace.group.consumer_records import MemberFacts
from headrace.group.records import Record
from headrace.group.topics import Grouped

Token = int
NONE = ErrorCode.none


class Now(NamedTuple):
    """Two clocks: `ms` is monotonic, for timeouts; `wall_ms` is for commit times and for retention."""

    ms: int
    wall_ms: int


class Join(msgspec.Struct, frozen=True, kw_only=True):
    """`new_id` is the member id to give if one is needed. `protocols`: (name, metadata), the most wanted first."""

    token: Token
    group: str
    member_id: str
    new_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    must_know_id: bool = True  # JoinGroup 4 and newer: a dynamic member first gets an id, then joins with it
    may_skip_assignment: bool = True  # JoinGroup 9 and newer: a returning static leader need not assign


class Sync(msgspec.Struct, frozen=True, kw_only=True):
    """`assignments`: (member id, assignment), sent by the leader only."""

    token: Token
    group: str
    member_id: str
    generation: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class Heartbeat(msgspec.Struct, frozen=True, kw_only=True):
    token: Token
    group: str
    member_id: str
    generation: int
    instance_id: str | None = None


class Leave(msgspec.Struct, frozen=True, kw_only=True):
    """`members`: (member id, instance id); an empty member id leaves by instance id."""

    token: Token
    group: str
    members: tuple[tuple[str, str | None], ...]


class ConsumerHeartbeat(msgspec.Struct, frozen=True, kw_only=True):
    """KIP-848: join (epoch 0), stay, or leave (-1, or -2 for a static member that will be back).

    None means: as before. `new_id` is the member id to give if one is needed.
    """

    token: Token
    group: str
    member_id: str
    new_id: str = ""
    member_epoch: int
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: int | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Grouped | None = None
    must_bring_id: bool = True  # ConsumerGroupHeartbeat 1 and newer


class OffsetToCommit(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """`unknown_group` is the error for a generation of a group that is not there: it depends on the version.

    `producer`: id and epoch of the one in whose transaction this happens.
    """

    token: Token
    group: str
    offsets: tuple[OffsetToCommit, ...]
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    retention_ms: int | None = None
    unknown_group: ErrorCode = ErrorCode.group_id_not_found
    producer: tuple[int, int] | None = None
    knows_epochs: bool = True  # OffsetCommit 9 and newer: members of the new protocol may use it


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """`partitions` None: all that were committed. `member_id` and `member_epoch`: of one who asks as a member."""

    token: Token
    group: str
    partitions: tuple[tuple[str, int], ...] | None = None
    member_id: str | None = None
    member_epoch: int = -1


class Describe(msgspec.Struct, frozen=True, kw_only=True):
    token: Token
    group: str


class DescribeConsumer(msgspec.Struct, frozen=True, kw_only=True):
    token: Token
    group: str


class ListGroups(msgspec.Struct, frozen=True, kw_only=True):
    token: Token


class Delete(msgspec.Struct, frozen=True, kw_only=True):
    token: Token
    group: str


class DeleteOffsets(msgspec.Struct, frozen=True, kw_only=True):
    token: Token
    group: str
    partitions: tuple[tuple[str, int], ...]


class ForgetTopics(msgspec.Struct, frozen=True, kw_only=True):
    """The topics are deleted: their committed offsets go too."""

    token: Token
    topics: frozenset[str]


Command = (
    Join
    | Sync
    | Heartbeat
    | Leave
    | ConsumerHeartbeat
    | Commit
    | Fetch
    | Describe
    | DescribeConsumer
    | ListGroups
    | Delete
    | DeleteOffsets
    | ForgetTopics
)


class JoinedMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorCode = NONE
    member_id: str
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


class SyncAnswer(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorCode = NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class HeartbeatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answers ConsumerHeartbeat. `assignment` None: as before."""

    error: ErrorCode = NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Grouped | None = None


class Outcome(msgspec.Struct, frozen=True):
    """Done, or why not. Answers Heartbeat, Delete and ForgetTopics."""

    error: ErrorCode = NONE


class LeaveAnswer(msgspec.Struct, frozen=True):
    """`members`: (member id, instance id, error), as asked."""

    members: tuple[tuple[str, str | None, ErrorCode], ...]


class PartitionErrors(msgspec.Struct, frozen=True):
    """Answers Commit and DeleteOffsets. `errors`: in the order of the partitions; `error`: of the whole request."""

    error: ErrorCode
    errors: tuple[ErrorCode, ...]


class FetchedOffset(msgspec.Struct, frozen=True):
    """`unstable`: a transaction that has not ended may change it."""

    topic: str
    partition: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    unstable: bool = False


class FetchAnswer(msgspec.Struct, frozen=True):
    offsets: tuple[FetchedOffset, ...]
    error: ErrorCode = NONE


class DescribedMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class Description(msgspec.Struct, frozen=True, kw_only=True):
    group: str
    found: bool = True
    fault: str | None = None  # why it was not found
    state: str
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class DescribedConsumer(msgspec.Struct, frozen=True, kw_only=True):
    member_id: str
    facts: MemberFacts
    epoch: int
    assigned: Grouped
    target: Grouped


class ConsumerDescription(msgspec.Struct, frozen=True, kw_only=True):
    """`fault`: why there is nothing to describe."""

    group: str
    fault: str | None = None
    state: str = ""
    group_epoch: int = 0
    assignment_epoch: int = 0
    assignor: str = ""
    members: tuple[DescribedConsumer, ...] = ()


class ListedGroup(NamedTuple):
    """`kind`: "classic" or "consumer", by the protocol that the group uses."""

    group: str
    protocol_type: str
    state: str
    kind: str = "classic"


class Listing(msgspec.Struct, frozen=True):
    groups: tuple[ListedGroup, ...]


Answer = (
    JoinAnswer
    | SyncAnswer
    | HeartbeatAnswer
    | Outcome
    | LeaveAnswer
    | PartitionErrors
    | FetchAnswer
    | Description
    | ConsumerDescription
    | Listing
)


class Decision(NamedTuple):
    """Append `records`; when they and all records decided before are committed, send `answers`.

    `producer`: id and epoch of the one in whose transaction they are to be appended.
    """

    records: tuple[Record, ...]
    answers: tuple[tuple[Token, Answer], ...]
    producer: tuple[int, int] | None = None


class Outbox:
    """Where a decision is gathered."""

    __slots__ = ("answers", "producer", "records")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.answers: list[tuple[Token, Answer]] = []
        self.producer: tuple[int, int] | None = None

    def answer(self, token: Token, answer: Answer) -> None:
        self.answers.append((token, answer))

    def decision(self) -> Decision:
        return Decision(tuple(self.records), tuple(self.answers), self.producer)
