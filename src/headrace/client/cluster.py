"""A cluster as its operator sees it: nodes, the metadata quorum, partitions; and what can be done to them.

Rules:
- Kafka's own APIs where Kafka has one (ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments,
  DescribeQuorum, Metadata); Headrace's ClusterAdmin, JSON in a Kafka frame, for the rest. Plaintext only.
- Any node will do: it hands on to the controller. A node that does not answer is passed over for the next; addresses
  that were learned count too, so that an operation outlives the node that it began with.
- What only operators may do is preceded by `greet`, once per connection.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from headrace.client.connection import Connection, addresses
from headrace.client.errors import ClientError
from headrace.client.raw import Place, RawConnection
from headrace.core.errors import ErrorCode

# After headrace.core.errors, which keeps kio's import light.
from kio.schema.alter_partition_reassignments.v0 import request as moving  # isort: skip
from kio.schema.alter_partition_reassignments.v0.response import AlterPartitionReassignmentsResponse  # isort: skip
from kio.schema.describe_quorum.v1 import request as asking  # isort: skip
from kio.schema.describe_quorum.v1.response import DescribeQuorumResponse  # isort: skip
from kio.schema.elect_leaders.v2 import request as electing  # isort: skip
from kio.schema.elect_leaders.v2.response import ElectLeadersResponse  # isort: skip
from kio.schema.list_partition_reassignments.v0.request import ListPartitionReassignmentsRequest  # isort: skip
from kio.schema.list_partition_reassignments.v0.response import ListPartitionReassignmentsResponse  # isort: skip
from kio.schema.metadata.v12.request import MetadataRequest  # isort: skip
from kio.schema.metadata.v12.response import MetadataResponse  # isort: skip

ADMIN_KEY: Final = 32004
LOCAL_KEY: Final = 32005
METADATA_TOPIC: Final = "__cluster_metadata"
PASSING: Final = frozenset({"UNREACHABLE", "TIMED_OUT", "NOT_CONTROLLER", "REQUEST_TIMED_OUT"})  # may be gone next time

_HEADER: Final = struct.Struct(">hhih")

T = TypeVar("T")
Replicas = tuple[int, ...]
Greeting = Callable[[RawConnection], None]


@dataclass(frozen=True, slots=True)
class NodeView:
    """`state`: alive, fenced (not heard, or stopped) or draining. `skew_ms`: of its clock, if anybody knows."""

    node_id: int
    host: str
    port: int
    rack: str | None
    state: str
    voter: bool
    applied: int
    seen_ms_ago: int
    skew_ms: float | None
    replicas: int
    leaders: int


@dataclass(frozen=True, slots=True)
class Placed:
    """One partition: who leads it, who holds it, and who shall."""

    topic: str
    index: int
    leader: int | None
    replicas: Replicas
    isr: Replicas
    adding: Replicas = ()
    removing: Replicas = ()

    @property
    def is_offline(self) -> bool:
        return self.leader is None

    @property
    def is_under_replicated(self) -> bool:
        """Replicas that are being added do not count: they were never in sync."""
        return any(node not in self.isr for node in self.replicas if node not in self.adding)

    @property
    def is_led_by_another(self) -> bool:
        """Led, and not by its preferred replica."""
        return self.leader is not None and self.leader != self.replicas[0]

    @property
    def is_moving(self) -> bool:
        return bool(self.adding or self.removing)


@dataclass(frozen=True, slots=True)
class Member:
    """Of the metadata quorum. `lag`: entries behind the controller's log; None if that is not known."""

    node_id: int
    votes: bool
    lag: int | None


@dataclass(frozen=True, slots=True)
class ClusterView:
    cluster_id: str
    controller: int
    term: int
    commit: int
    nodes: tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class Sighting:
    """A node as another one sees it. `state`: what the controller said last; `gossip`: what gossip believes."""

    node_id: int
    host: str
    port: int
    voter: bool
    state: str | None
    gossip: str | None

    @property
    def is_seen(self) -> bool:
        return self.gossip in ("alive", "suspect")


@dataclass(frozen=True, slots=True)
class LocalView:
    """What one node sees, whether or not there is a controller."""

    cluster_id: str
    node_id: int
    leader: int | None
    last_leader: int | None
    term: int
    commit: int
    nodes: tuple[Sighting, ...]

    @property
    def voters(self) -> tuple[Sighting, ...]:
        return tuple(node for node in self.nodes if node.voter)


@dataclass(frozen=True, slots=True)
class Move:
    topic: str
    index: int
    before: Replicas
    after: Replicas


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one partition. `code` is "" if all went well."""

    topic: str
    index: int
    code: str
    message: str


class Cluster:
    """See the module. Every method raises ClientError, or UnreachableError if nobody answers."""

    def __init__(self, connection: Connection, greet: Greeting | None = None) -> None:
        protocol = connection.properties.get("security.protocol", "plaintext")
        if protocol.lower() != "plaintext":
            raise ClientError(f"this needs a plaintext listener, not {protocol}", "UNSUPPORTED")
        self._addresses = dict.fromkeys(addresses(connection.address))
        self._timeout_s = connection.timeout_s
        self._greet = greet
        self._raw: RawConnection | None = None
        self._greeted = False

    # looking

    def describe(self) -> ClusterView:
        found = self._admin("describe")
        nodes = tuple(NodeView(**_known(node)) for node in sorted(found["nodes"], key=lambda node: node["node_id"]))
        self._addresses |= dict.fromkeys((node.host, node.port) for node in nodes)
        return ClusterView(found["cluster_id"], found["leader"], found["term"], found["commit"], nodes)

    def local_view(self) -> LocalView | None:
        """The cluster as the first node sees it that answers; None if it is of a release that cannot tell."""

        def ask(raw: RawConnection) -> Any:
            return json.loads(raw.exchange(_HEADER.pack(LOCAL_KEY, 0, 0, -1), "LocalView")[4:])

        try:
            found = self._anywhere(ask)
        except ClientError as error:
            if error.code == "TIMED_OUT":
                return None
            raise
        nodes = tuple(Sighting(**{name: node[name] for name in Sighting.__slots__}) for node in found["nodes"])
        self._addresses |= dict.fromkeys((node.host, node.port) for node in nodes if node.host)
        facts = {name: found[name] for name in LocalView.__slots__ if name != "nodes"}
        return LocalView(**facts, nodes=nodes)

    def quorum(self) -> tuple[Member, ...]:
        """Voters first."""
        part = asking.PartitionData(partition_index=0)  # type: ignore[arg-type]
        topic = asking.TopicData(topic_name=METADATA_TOPIC, partitions=(part,))  # type: ignore[arg-type]
        answer = self._call(asking.DescribeQuorumRequest(topics=(topic,)), DescribeQuorumResponse)
        _refuse(answer.error_code, "describe the quorum")
        (found,) = answer.topics[0].partitions
        states = {state.replica_id: state.log_end_offset for state in (*found.current_voters, *found.observers)}
        end = states.get(found.leader_id, found.high_watermark)
        voters = {state.replica_id for state in found.current_voters}
        return tuple(
            Member(node, node in voters, max(0, end - reached) if reached >= 0 else None)
            for node, reached in states.items()
        )

    def partitions(self) -> list[Placed]:
        """All, by topic and number, internal topics too."""
        request = MetadataRequest(
            topics=None, allow_auto_topic_creation=False, include_topic_authorized_operations=False
        )
        answer = self._call(request, MetadataResponse)
        moves = self.reassignments()
        found = []
        for topic in sorted(answer.topics, key=lambda topic: str(topic.name)):
            for part in sorted(topic.partitions, key=lambda part: int(part.partition_index)):
                place = (str(topic.name), int(part.partition_index))
                leader = part.leader_id if part.leader_id >= 0 else None
                under_way = moves.get(place, ((), (), ()))
                isr, replicas = tuple(part.isr_nodes), tuple(part.replica_nodes)
                found.append(Placed(*place, leader, replicas, isr, under_way[1], under_way[2]))
        return found

    def reassignments(self) -> dict[Place, tuple[Replicas, Replicas, Replicas]]:
        """By partition: all replicas, those that are being added, those that are being removed."""
        answer = self._call(ListPartitionReassignmentsRequest(topics=None), ListPartitionReassignmentsResponse)
        _refuse(answer.error_code, "list reassignments", answer.error_message)
        return {
            (topic.name, part.partition_index): (
                tuple(part.replicas),
                tuple(part.adding_replicas),
                tuple(part.removing_replicas),
            )
            for topic in answer.topics
            for part in topic.partitions
        }

    # changing

    def drain(self, node: int, *, on: bool = True) -> None:
        self._admin("drain", node=node, on=on)

    def remove(self, node: int) -> None:
        self._admin("remove", node=node)

    def rebalance(self, *, dry_run: bool = False, fewer: bool = False, leaving: Sequence[int] = ()) -> list[Move]:
        """All that is to move; some of it begins. `fewer`: topics may lose replicas. `leaving`: as if these drained."""
        more = ({"fewer": True} if fewer else {}) | ({"leaving": list(leaving)} if leaving else {})
        found = self._admin("rebalance", dry_run=dry_run, **more)["moves"]
        return [Move(topic, index, tuple(before), tuple(after)) for topic, index, before, after in found]

    def reassign(self, targets: Mapping[Place, Sequence[int] | None]) -> list[Outcome]:
        """Begin to move partitions; None goes back to where a move came from."""
        topics = tuple(
            moving.ReassignableTopic(
                name=topic,  # type: ignore[arg-type]
                partitions=tuple(
                    moving.ReassignablePartition(
                        partition_index=index,  # type: ignore[arg-type]
                        replicas=None if replicas is None else tuple(replicas),  # type: ignore[arg-type]
                    )
                    for index, replicas in indexes
                ),
            )
            for topic, indexes in _by_topic((topic, (index, to)) for (topic, index), to in targets.items()).items()
        )
        answer = self._call(
            moving.AlterPartitionReassignmentsRequest(topics=topics), AlterPartitionReassignmentsResponse
        )
        _refuse(answer.error_code, "reassign", answer.error_message)
        return [
            Outcome(topic.name, part.partition_index, _name(part.error_code), part.error_message or "")
            for topic in answer.responses
            for part in topic.partitions
        ]

    def elect(self, places: Iterable[Place] | None, *, unclean: bool = False) -> list[Outcome]:
        """Have leaders elected; None: everywhere, and then those that need none are not mentioned."""
        asked = None
        if places is not None:
            asked = tuple(
                electing.TopicPartitions(topic=topic, partitions=tuple(indexes))  # type: ignore[arg-type]
                for topic, indexes in _by_topic(places).items()
            )
        request = electing.ElectLeadersRequest(election_type=int(unclean), topic_partitions=asked)  # type: ignore[arg-type]
        answer = self._call(request, ElectLeadersResponse)
        _refuse(answer.error_code, "elect leaders")
        return [
            Outcome(topic.topic, part.partition_id, _name(part.error_code), part.error_message or "")
            for topic in answer.replica_election_results
            for part in topic.partition_result
        ]

    def close(self) -> None:
        raw, self._raw = self._raw, None
        if raw is not None:
            raw.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # asking

    def _admin(self, do: str, **fields: Any) -> Any:
        frame = _HEADER.pack(ADMIN_KEY, 0, 0, -1) + json.dumps({"do": do, **fields}).encode()

        def ask(raw: RawConnection) -> Any:
            if do != "describe":
                self._introduce(raw)
            answer = json.loads(raw.exchange(frame, f"`{do}`")[4:])
            if answer["error_code"]:
                raise ClientError(answer["error_message"], _name(answer["error_code"]))
            return answer

        return self._anywhere(ask)

    def _call(self, request: Any, answer: type[Any]) -> Any:
        return self._anywhere(lambda raw: raw.call(request, answer))

    def _introduce(self, raw: RawConnection) -> None:
        if self._greet is not None and not self._greeted:
            self._greet(raw)
            self._greeted = True

    def _anywhere(self, ask: Callable[[RawConnection], T]) -> T:
        """What the first node answers that answers: the one we talk with, or any other."""
        if self._raw is not None:
            try:
                return ask(self._raw)
            except ClientError as error:
                if error.code not in PASSING:
                    raise
                self.close()
        faults: list[ClientError] = []
        for host, port in self._addresses:
            try:
                self._raw, self._greeted = RawConnection(host, port, self._timeout_s), False
                return ask(self._raw)
            except ClientError as error:
                if error.code not in PASSING:
                    raise
                self.close()
                faults.append(error)
        if all(fault.code == "UNREACHABLE" for fault in faults):
            raise faults[0]
        raise next(fault for fault in faults if fault.code != "UNREACHABLE")


def _known(node: Mapping[str, Any]) -> dict[str, Any]:
    """What we know of a node; a newer broker may say more."""
    return {name: node[name] for name in NodeView.__slots__}


def _by_topic(pairs: Iterable[tuple[str, T]]) -> dict[str, list[T]]:
    found: dict[str, list[T]] = {}
    for topic, each in pairs:
        found.setdefault(topic, []).append(each)
    return found


def _name(code: Any) -> str:
    """The protocol's name of an error; "" for none."""
    value = int(getattr(code, "value", code))
    if not value:
        return ""
    try:
        return ErrorCode(value).name.upper()
    except ValueError:
        return f"ERROR_{value}"


def _refuse(code: Any, doing: str, message: str | None = None) -> None:
    if name := _name(code):
        raise ClientError(f"cannot {doing}: {message or name.replace('_', ' ').lower()}", name)
