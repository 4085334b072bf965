"""`headrace cluster drain|remove|rebalance|reassign|elect`: what moves replicas and leaderships."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.cluster_status import describe
from headrace.cli.operating import NoWait, Secret, await_, open_cluster, places
from headrace.cli.options import BOOTSTRAP, TIMEOUT_S, Bootstrap, Json, Properties, Timeout, Yes, confirm
from headrace.cli.report import UsageError
from headrace.core.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.client.admin import Place
    from headrace.client.cluster import Cluster, Move, NodeView, Outcome, Placed

Number = Annotated[int, typer.Argument(metavar="NODE", min=0, help="The node's number; see: headrace cluster nodes")]

NEARLY_DONE = 10  # moves under way: time to begin the next


def drain(
    number: Number,
    off: Annotated[bool, typer.Option("--off", help="Let the node take its share again.")] = False,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Move its replicas away, too: for a node that shall leave for good.")
    ] = False,
    no_wait: NoWait = False,
    yes: Yes = False,
    secret: Secret = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006 - Typer copies it
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Take the load off a node, or give it back.

    A draining node gives its leaderships away and gets no new replicas.

    \b
      headrace cluster drain 3              before maintenance; waits until node 3 leads nothing
      headrace cluster drain 3 --off        afterwards: leaderships come back by themselves
      headrace cluster drain 3 --replicas   before `cluster remove 3`; waits until it holds nothing

    A draining node goes on to follow: what it holds stays in sync. Draining also works for a node that is dead.
    """
    if off and replicas:
        raise UsageError("--off and --replicas contradict")
    with open_cluster(bootstrap, properties, timeout, secret) as cluster:
        _node(cluster, number)
        if replicas:  # refused before anything has changed
            _confirm_fewer(cluster.rebalance(dry_run=True, fewer=True, leaving=[number]), yes)
        cluster.drain(number, on=not off)
        moves: list[Move] = []
        if not off and replicas:
            moves = cluster.rebalance(fewer=True)
        if not off and not no_wait:
            _await_drained(cluster, number, replicas)
        found = _node(cluster, number)
        if json:
            document: dict[str, Any] = {"node": number, "draining": not off, "leaders": found.leaders}
            document |= {"replicas": found.replicas, "moves": [asdict(move) for move in moves]}
            output.emit(document)
        elif off:
            print(f"node {number} takes its share again; leaderships come back by themselves")
        elif no_wait:
            print(f"node {number} is draining: it leads {found.leaders} partitions and holds {found.replicas} replicas")
        elif replicas:
            print(f"node {number} holds nothing any more; stop it, then: headrace cluster remove {number}")
        else:
            print(f"node {number} leads nothing any more; it still holds {output.number(found.replicas)} replicas")


def remove(
    number: Number,
    secret: Secret = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Forget a node that has left for good.

    It must hold no replicas, and be stopped.

    \b
      headrace cluster drain 3 --replicas    move away what it holds (it may be dead)
      (stop node 3)
      headrace cluster remove 3

    It leaves the metadata quorum too. Its number may be used again, with an empty data directory.
    """
    with open_cluster(bootstrap, properties, timeout, secret) as cluster:
        found = _node(cluster, number)
        if found.replicas:
            what = f"{output.number(found.replicas)} replica{'s' * (found.replicas != 1)}"
            raise HeadraceError(f"node {number} holds {what}; try: headrace cluster drain {number} --replicas")
        cluster.remove(number)
        if json:
            output.emit({"removed": number})
        else:
            print(f"removed node {number}")


def rebalance(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would move.")] = False,
    no_wait: NoWait = False,
    yes: Yes = False,
    secret: Secret = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Spread replicas evenly over the nodes.

    Away from nodes that are draining, across racks, and with as few moves as it can. A new replica is in sync before an
    old one goes. No topic is left with fewer replicas than its min.insync.replicas.

    \b
      headrace cluster rebalance --dry-run    what would move
      headrace cluster rebalance              move it, and show progress

    New nodes get nothing of what is there until this is done. All nodes must be up, but those that are draining. What
    may be copied per second is each node's setting cluster.replica_throttle_bytes_per_second.
    """
    with open_cluster(bootstrap, properties, timeout, secret) as cluster:
        moves = cluster.rebalance(dry_run=True, fewer=True)
        if not json:
            _show_moves(moves)
        if moves and not dry_run:
            _confirm_fewer(moves, yes)
            moves = cluster.rebalance(fewer=True)
        if moves and not dry_run and not no_wait:
            _await_balanced(cluster, moves)
        if json:
            output.emit({"dry_run": dry_run, "moves": [asdict(move) for move in moves]})
        elif not moves:
            print("the cluster is in balance: nothing moves")
        elif dry_run:
            output.note("nothing was changed (--dry-run)")
        else:
            print(f"{_count(moves)} {'to move; some have begun: say it again for the rest' if no_wait else 'moved'}")


def reassign(
    what: Annotated[str, typer.Argument(metavar="TOPIC[:P,P]|list", help="A topic, some of its partitions, or list.")],
    replicas: Annotated[
        str | None, typer.Option("--replicas", "-r", metavar="N,N,N", help="The nodes; the first one is preferred.")
    ] = None,
    cancel: Annotated[bool, typer.Option("--cancel", help="Go back to where the move came from.")] = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Put partitions on nodes of your choice.

    This is how a topic's replication factor is changed, too.

    \b
      headrace cluster reassign orders:0 --replicas 1,2,3   partition 0 on these, led by node 1
      headrace cluster reassign orders --replicas 1,2,3     all partitions, each begins with another of the nodes
      headrace cluster reassign list                        what is under way
      headrace cluster reassign orders --cancel             go back

    Nothing is taken away before the new replicas are in sync.
    """
    with open_cluster(bootstrap, properties, timeout) as cluster:
        if what == "list" and replicas is None and not cancel:
            _list_moves(cluster, json)
            return
        if (replicas is None) != cancel:
            raise UsageError("give --replicas N,N,N or --cancel")
        wanted = _nodes(replicas) if replicas is not None else None
        found = places(cluster, what)
        if wanted is None:
            found = [part for part in found if part.is_moving]
            if not found:
                raise HeadraceError(f"nothing of {what} is on the move; see: headrace cluster reassign list")
        targets = _targets(found, wanted, spread=":" not in what)
        _refused(cluster.reassign(targets))
        if not no_wait:
            _await_moved(cluster, list(targets))
        if json:
            rows = [{"topic": topic, "partition": index, "replicas": to} for (topic, index), to in targets.items()]
            output.emit({"cancelled": cancel, "partitions": rows})
        elif cancel:
            print(f"cancelled: {_count(targets)} back where they were")
        else:
            print(f"{_count(targets)} {'on the move' if no_wait else 'moved'}")


def elect(
    what: Annotated[
        str | None, typer.Argument(metavar="[TOPIC[:P,P]]", help="A topic, or some of its partitions; else all.")
    ] = None,
    unclean: Annotated[
        bool, typer.Option("--unclean", help="Let a replica lead that is not in sync. RECORDS MAY BE LOST.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Have partitions led by their preferred replicas.

    Or, with --unclean, by anybody at all.

    \b
      headrace cluster elect                      everywhere; the cluster does it by itself before long
      headrace cluster elect orders:3 --unclean   the last resort, if all replicas in sync are gone for good

    An unclean election gives up every record that the chosen replica does not have, though it was acknowledged.
    """
    if unclean and what is None:
        raise UsageError("--unclean needs a topic: it may lose records")
    with open_cluster(bootstrap, properties, timeout) as cluster:
        chosen = [(part.topic, part.index) for part in places(cluster, what)] if what is not None else None
        if unclean:
            confirm(f"Elect leaders for {what} that may lack acknowledged records?", yes)
        outcomes = cluster.elect(chosen, unclean=unclean)
        needless = [outcome for outcome in outcomes if outcome.code == "ELECTION_NOT_NEEDED"]
        elected = [outcome for outcome in outcomes if not outcome.code]
        if json:
            output.emit([asdict(outcome) for outcome in outcomes])
        elif elected:
            print(f"elected leaders for {_count(elected)}")
        _refused([outcome for outcome in outcomes if outcome not in needless])
        if not elected and not json:
            print("every partition is led already" if unclean else "every partition is led by its preferred replica")


def _node(cluster: Cluster, number: int) -> NodeView:
    view = describe(cluster)
    for node in view.nodes:
        if node.node_id == number:
            return node
    raise HeadraceError(f"there is no node {number}; there are {output.ranges(node.node_id for node in view.nodes)}")


def _confirm_fewer(moves: Sequence[Move], yes: bool) -> None:
    count = sum(len(move.after) < len(move.before) for move in moves)
    if count:
        what = f"{output.number(count)} partition{'s' * (count != 1)}"
        confirm(f"There are too few nodes: {what} will have fewer replicas than now. Go on?", yes)


def _await_drained(cluster: Cluster, number: int, replicas: bool) -> None:
    def step() -> str | None:
        node = _node(cluster, number)
        if replicas:
            if not node.replicas:
                return None
            _, waits = _go_on(cluster)
            return f"node {number} leads {node.leaders} and holds {node.replicas} replicas{waits}"
        if not node.leaders:
            return None
        cluster.drain(number)  # what could not be moved before may be in sync elsewhere by now
        led = [part for part in cluster.partitions() if part.leader == number]
        alone = [part for part in led if len(part.replicas) == 1]
        if led and len(alone) == len(led):
            raise HeadraceError(
                f"node {number} goes on to lead {_count(alone)} that nobody else holds ({_names(alone)}); "
                f"to move them: headrace cluster drain {number} --replicas"
            )
        return f"node {number} leads {node.leaders} partitions" if led else None

    await_(step, f"node {number} goes on draining; to end that: headrace cluster drain {number} --off")


def _go_on(cluster: Cluster) -> tuple[bool, str]:
    """Begin the next moves when few are left under way. Whether all is done, and what hinders."""
    from headrace.client.cluster import PASSING
    from headrace.client.errors import ClientError

    if len(cluster.reassignments()) > NEARLY_DONE:
        return False, ""
    try:
        return not cluster.rebalance(fewer=True) and not cluster.reassignments(), ""
    except ClientError as error:
        if error.code in PASSING:
            raise
        return False, f" ({error})"  # a node went down, for example: it may come back


def _await_balanced(cluster: Cluster, moves: Sequence[Move]) -> None:
    def step() -> str | None:
        done, waits = _go_on(cluster)
        return None if done else f"{_count(moves)} to move, {len(cluster.reassignments())} under way{waits}"

    await_(step, "the cluster goes on with what has begun; say it again for the rest")


def _await_moved(cluster: Cluster, wanted: Sequence[Place]) -> None:
    def step() -> str | None:
        under_way = cluster.reassignments()
        left = sum(place in under_way for place in wanted)
        if not left:
            return None
        return f"{output.number(len(wanted) - left)} of {_count(wanted)} moved"

    await_(step, "the cluster goes on with it")


def _list_moves(cluster: Cluster, json: bool) -> None:
    parts = [part for part in cluster.partitions() if part.is_moving]
    if json:
        output.emit([asdict(part) for part in parts])
    elif not parts:
        output.note("nothing is on the move")
    else:
        output.table(
            ["TOPIC", ">PARTITION", "REPLICAS", "IN SYNC", "ADDING", "REMOVING"],
            [
                (
                    part.topic,
                    part.index,
                    *(",".join(map(str, nodes)) for nodes in (part.replicas, part.isr, part.adding, part.removing)),
                )
                for part in parts
            ],
        )


def _nodes(text: str) -> list[int]:
    numbers = [word.strip() for word in text.split(",")]
    if not all(number.isdigit() for number in numbers):
        raise UsageError(f"--replicas {text!r} is not N,N,N")
    found = [int(number) for number in numbers]
    if len(set(found)) < len(found):
        raise UsageError(f"--replicas {text} names a node twice")
    return found


def _targets(found: list[Placed], wanted: list[int] | None, *, spread: bool) -> dict[Place, list[int] | None]:
    """Where each partition goes. `spread`: each begins with another node, so that not one leads all."""
    targets: dict[Place, list[int] | None] = {}
    for part in found:
        turn = part.index % len(wanted) if wanted and spread else 0
        targets[part.topic, part.index] = None if wanted is None else wanted[turn:] + wanted[:turn]
    return targets


def _refused(outcomes: Sequence[Outcome]) -> None:
    """Raise the first refusal, and say how many there are."""
    bad = [outcome for outcome in outcomes if outcome.code]
    if not bad:
        return
    first = bad[0]
    reason = first.message.rstrip(".") or first.code.replace("_", " ").lower()
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    raise HeadraceError(f"{first.topic}:{first.index}: {reason}{more}")


def _show_moves(moves: Sequence[Move]) -> None:
    if moves:
        output.table(
            ["TOPIC", ">PARTITION", "FROM", "TO"],
            [
                (move.topic, move.index, ",".join(map(str, move.before)), ",".join(map(str, move.after)))
                for move in moves
            ],
        )


def _count(things: Sequence[Any] | dict[Any, Any]) -> str:
    return f"{output.number(len(things))} partition{'s' * (len(things) != 1)}"


def _names(parts: Sequence[Placed]) -> str:
    shown = ", ".join(f"{part.topic}:{part.index}" for part in parts[:3])
    return shown + (", ..." if len(parts) > 3 else "")
