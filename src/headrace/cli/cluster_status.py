"""`headrace cluster status` and `headrace cluster nodes`: how a cluster is."""

from __future__ import annotations

import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from headrace.cli import lost_quorum, output
from headrace.cli.operating import open_cluster
from headrace.cli.options import BOOTSTRAP, TIMEOUT_S, Bootstrap, Json, Properties, Timeout

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster, ClusterView, LocalView, Member, NodeView, Placed

SKEW_MS: Final = 500.0
SHOWN: Final = 10  # partitions of each kind; --json has all
CLEAR: Final = "\x1b[H\x1b[2J"


@dataclass(frozen=True, slots=True)
class Status:
    """All that one look finds."""

    view: ClusterView
    quorum: tuple[Member, ...]
    partitions: list[Placed]
    skew_limit_ms: float

    @property
    def offline(self) -> list[Placed]:
        return [part for part in self.partitions if part.is_offline]

    @property
    def under_replicated(self) -> list[Placed]:
        return [part for part in self.partitions if part.is_under_replicated]

    @property
    def not_preferred(self) -> list[Placed]:
        return [part for part in self.partitions if part.is_led_by_another]

    @property
    def moving(self) -> list[Placed]:
        return [part for part in self.partitions if part.is_moving]

    @property
    def warnings(self) -> list[str]:
        found = [f"node {node.node_id} is down" for node in self.view.nodes if node.state == "fenced"]
        for node in self.view.nodes:
            skew_ms = skew(node)
            if skew_ms is not None and abs(skew_ms) > self.skew_limit_ms:
                direction = "ahead of" if skew_ms > 0 else "behind"
                found.append(
                    f"the clock of node {node.node_id} is {abs(skew_ms):,.0f} ms {direction} the controller's "
                    f"(limit {self.skew_limit_ms:g} ms): check its time synchronisation"
                )
        return found


def status(
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Look again and again, until Ctrl-C.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="Between two looks, with --watch.")
    ] = 2.0,
    skew_limit_ms: Annotated[
        float, typer.Option("--skew-limit-ms", metavar="MS", min=0, help="Warn of clocks that differ by more.")
    ] = SKEW_MS,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006 - Typer copies it
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> int:
    """Show controller, nodes, and partitions that need care.

    \b
      headrace cluster status                     exit code 1 if a partition is offline, or nobody decides
      headrace cluster status --watch             until Ctrl-C
      headrace cluster status --json | jq .partitions.offline

    \b
    ROLE     controller, voter (votes on metadata) or observer (follows)
    LOG LAG  metadata entries that a node has not copied
    BEHIND   metadata entries that a node has not applied
    SEEN     when the controller last heard of it
    CLOCK    how far its clock is from the controller's, if that is known
    \b
    A partition is offline when nobody leads it: it can be neither written nor read. It is under-replicated when a
    replica is not in sync. It is not led by its preferred replica after a failure; that mends itself, or at once with
    `headrace cluster elect`.

    Without a controller (more than half of the nodes that vote are gone) it shows what one node sees.
    """
    with open_cluster(bootstrap, properties, timeout) as cluster:
        while True:
            found = observe(cluster, skew_limit_ms)
            if watch and not json and sys.stdout.isatty():
                print(CLEAR, end="")
            if json:
                seen = document(found) if isinstance(found, Status) else lost_quorum.document(found)
                (output.emit_line if watch else output.emit)(seen)
            elif isinstance(found, Status):
                show(found)
            else:
                lost_quorum.show(found)
            if not watch:
                return 0 if isinstance(found, Status) and not found.offline else 1
            sys.stdout.flush()
            time.sleep(interval)
            if not json and not sys.stdout.isatty():
                print()


def nodes(
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """List the nodes: where they are, and how."""
    with open_cluster(bootstrap, properties, timeout) as cluster:
        view = describe(cluster)
        if json:
            output.emit([asdict(node) for node in view.nodes])
            return
        output.table(
            [">NODE", "ADDRESS", "RACK", "STATE", "ROLE", ">LEADS", ">REPLICAS"],
            [
                (
                    node.node_id,
                    f"{node.host}:{node.port}",
                    node.rack,
                    state(node),
                    role(node, view),
                    node.leaders,
                    node.replicas,
                )
                for node in view.nodes
            ],
        )


def describe(cluster: Cluster) -> ClusterView:
    """The cluster, or a complaint that says what a silent controller means."""
    from headrace.client.errors import ClientError

    try:
        return cluster.describe()
    except ClientError as error:
        if error.code in ("NOT_CONTROLLER", "TIMED_OUT", "REQUEST_TIMED_OUT"):
            raise ClientError(
                f"no controller answers ({error}): more than half of the nodes that vote must be up", error.code
            ) from None
        raise


def observe(cluster: Cluster, skew_limit_ms: float) -> Status | LocalView:
    """All that one look finds; without a controller, what a node sees."""
    from headrace.client.cluster import PASSING
    from headrace.client.errors import ClientError

    lost = lost_quorum.without_controller(cluster)
    if lost is not None:
        return lost
    try:
        return look(cluster, skew_limit_ms)
    except ClientError as error:  # it may have gone meanwhile
        lost = lost_quorum.without_controller(cluster) if error.code in PASSING else None
        if lost is None:
            raise
        return lost


def look(cluster: Cluster, skew_limit_ms: float) -> Status:
    return Status(describe(cluster), cluster.quorum(), cluster.partitions(), skew_limit_ms)


def state(node: NodeView) -> str:
    return "down" if node.state == "fenced" else node.state


def skew(node: NodeView) -> float | None:
    """Of a node that is heard: what was known of another is old."""
    return None if node.state == "fenced" else node.skew_ms


def role(node: NodeView, view: ClusterView) -> str:
    if node.node_id == view.controller:
        return "controller"
    return "voter" if node.voter else "observer"


def document(found: Status) -> dict[str, Any]:
    def listed(parts: list[Placed]) -> list[dict[str, Any]]:
        return [asdict(part) for part in parts]

    return {
        "cluster_id": found.view.cluster_id,
        "controller": found.view.controller,
        "term": found.view.term,
        "commit_index": found.view.commit,
        "quorum": [asdict(member) for member in found.quorum],
        "nodes": [asdict(node) for node in found.view.nodes],
        "partitions": {
            "count": len(found.partitions),
            "offline": listed(found.offline),
            "under_replicated": listed(found.under_replicated),
            "not_preferred_leader": listed(found.not_preferred),
            "moving": listed(found.moving),
        },
        "warnings": found.warnings,
    }


def show(found: Status) -> None:
    view = found.view
    lags = {member.node_id: member.lag for member in found.quorum}
    print(
        f"cluster {view.cluster_id}: controller node {view.controller}, term {view.term}, "
        f"metadata entry {output.number(view.commit)}"
    )
    output.table(
        [">NODE", "ADDRESS", "RACK", "STATE", "ROLE", ">LOG LAG", ">BEHIND", ">SEEN", ">CLOCK", ">LEADS", ">REPLICAS"],
        [
            (
                node.node_id,
                f"{node.host}:{node.port}",
                node.rack,
                state(node),
                role(node, view),
                lags.get(node.node_id),
                None if node.state == "fenced" else max(0, view.commit - node.applied),
                _ago(node.seen_ms_ago),
                None if skew(node) is None else f"{node.skew_ms:+,.1f} ms",
                node.leaders,
                node.replicas,
            )
            for node in view.nodes
        ],
    )
    print(_summary(found))
    for title, parts in (
        ("offline", found.offline),
        ("under-replicated", found.under_replicated),
        ("not led by the preferred replica", found.not_preferred),
        ("moving", found.moving),
    ):
        _list(title, parts)
    for warning in found.warnings:
        output.note(f"warning: {warning}")


def _summary(found: Status) -> str:
    count = len(found.partitions)
    if not count:
        return "no partitions yet"
    facts = (
        (len(found.offline), "offline"),
        (len(found.under_replicated), "under-replicated"),
        (len(found.not_preferred), "not led by their preferred replica"),
        (len(found.moving), "moving"),
    )
    troubles = ", ".join(f"{output.number(number)} {what}" for number, what in facts if number)
    return (
        f"{output.number(count)} partition{'s' * (count != 1)}: {troubles or 'all in sync, led where they should be'}"
    )


def _list(title: str, parts: list[Placed]) -> None:
    if not parts:
        return
    print(f"\n{title}:")
    output.table(
        ["TOPIC", ">PARTITION", ">LEADER", "REPLICAS", "IN SYNC", "ADDING", "REMOVING"],
        [
            (
                part.topic,
                part.index,
                "none" if part.leader is None else part.leader,
                *(",".join(map(str, nodes)) or None for nodes in (part.replicas, part.isr, part.adding, part.removing)),
            )
            for part in parts[:SHOWN]
        ],
    )
    if len(parts) > SHOWN:
        print(f"and {output.number(len(parts) - SHOWN)} more; --json has all")


def _ago(milliseconds: int) -> str:
    if milliseconds < 0:
        return "never"
    if milliseconds < 1000:
        return "now"
    seconds = milliseconds // 1000
    if seconds < 120:
        return f"{seconds} s ago"
    return f"{seconds // 60} min ago" if seconds < 7200 else f"{seconds // 3600} h ago"
