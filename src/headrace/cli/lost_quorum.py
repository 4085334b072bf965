"""What `headrace cluster status` shows when nobody decides: the cluster as one node sees it."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from headrace.cli import output

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster, LocalView

ELECTION_S: Final = 3.0  # for which a cluster may be without a controller, and nothing is wrong
LOOK_S: Final = 0.2


def without_controller(cluster: Cluster) -> LocalView | None:
    """What a node sees, if it has known no controller for a while."""
    until = time.monotonic() + ELECTION_S
    while (view := cluster.local_view()) is not None and view.leader is None:
        if time.monotonic() >= until:
            return view
        time.sleep(LOOK_S)
    return None


def verdict(view: LocalView) -> str:
    """The matter in one line."""
    seen, voters = sum(node.is_seen for node in view.voters), len(view.voters)
    if voters == 1:
        return "no controller: the node that votes has not begun to decide"
    needed = voters // 2 + 1
    if seen >= needed:
        return (
            f"no controller: {seen} of {voters} nodes that vote are seen, and that should do; an election is under way"
        )
    return f"quorum lost: {seen} of {voters} nodes that vote are seen, and {needed} are needed"


def advice(view: LocalView) -> str:
    missing = [node for node in view.voters if not node.is_seen]
    where = ", ".join(
        f"node {node.node_id} ({node.host}:{node.port})" if node.host else f"node {node.node_id}" for node in missing
    )
    start = f"start {where}, or mend the network between them" if missing else "look into the nodes' logs"
    return (
        f"topics, leaders and in-sync sets cannot change until there is a controller: {start}. "
        "What was acknowledged is on the disks."
    )


def document(view: LocalView) -> dict[str, Any]:
    return {
        "cluster_id": view.cluster_id,
        "controller": None,
        "last_controller": view.last_leader,
        "term": view.term,
        "commit_index": view.commit,
        "seen_by": view.node_id,
        "voters": len(view.voters),
        "voters_seen": sum(node.is_seen for node in view.voters),
        "nodes": [asdict(node) for node in view.nodes],
        "warnings": [verdict(view), advice(view)],
    }


def show(view: LocalView) -> None:
    last = "not known" if view.last_leader is None else f"node {view.last_leader}"
    print(f"cluster {view.cluster_id}: {verdict(view)}")
    print(
        f"as node {view.node_id} sees it: last controller {last}, term {view.term}, "
        f"metadata entry {output.number(view.commit)}"
    )
    output.table(
        [">NODE", "ADDRESS", "ROLE", "GOSSIP", "LAST STATE"],
        [
            (
                node.node_id,
                f"{node.host}:{node.port}" if node.host else None,
                "voter" if node.voter else "observer",
                "itself" if node.node_id == view.node_id else node.gossip or "unknown",
                "down" if node.state == "fenced" else node.state,
            )
            for node in view.nodes
        ],
    )
    output.note(advice(view))
