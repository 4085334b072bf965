"""`headrace group`: list groups, show their lag, move or delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output, reset
from headrace.cli.options import BOOTSTRAP, TIMEOUT_S, Bootstrap, Json, Properties, Timeout, Yes, confirm, connect
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.client.groups import Groups, GroupView

app = typer.Typer(
    help="List groups, show their lag, reset or delete them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="GROUP")]
Names = Annotated[list[str], typer.Argument(metavar="GROUP...")]
States = Annotated[
    list[str] | None, typer.Option("--state", metavar="STATE", help="Only groups in this state: stable, empty, ...")
]
Kinds = Annotated[
    list[str] | None, typer.Option("--type", metavar="TYPE", help="Only groups of this protocol: classic or consumer.")
]
TopicSpecs = Annotated[
    list[str] | None,
    typer.Option("--topic", "-t", metavar="TOPIC[:P,P]", help="A topic, or some of its partitions; may be repeated."),
]


@app.command("list")
def list_groups(
    state: States = None,
    kind: Kinds = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """List consumer groups and their states."""
    from headrace.client.groups import KINDS, STATES

    for option, given, known in (("--state", state, STATES), ("--type", kind, KINDS)):
        for each in given or []:
            if each.lower() not in known:
                raise UsageError(f"{option} {each!r} is not one of {', '.join(known)}")
    rows = _open(bootstrap, properties, timeout).all(state or [], kind or [])
    if json:
        output.emit([{"group": row.name, "state": row.state, "type": row.kind} for row in rows])
    elif not rows:
        output.note("no groups")
    else:
        output.table(["GROUP", "STATE", "TYPE"], [(row.name, row.state, row.kind) for row in rows])


@app.command()
def describe(
    names: Names,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show state, members and their partitions, and how far behind each partition is."""
    groups = _open(bootstrap, properties, timeout)
    views = [groups.describe(name) for name in names]
    if json:
        output.emit([_document(view) for view in views])
        return
    for position, view in enumerate(views):
        if position:
            print()
        _show(view)


@app.command("reset")
def reset_group(
    name: Name,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="WHERE",
            help="earliest, latest, offset:N, time:TIME, shift:N (back: shift:-N) or by-duration:10m.",
        ),
    ],
    topic: TopicSpecs = None,
    all_topics: Annotated[bool, typer.Option("--all-topics", help="All that the group has committed.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would change.")] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Move where a group goes on. Its consumers must be stopped.

    \b
    headrace group reset billing --topic orders --to earliest --dry-run
    headrace group reset billing --topic orders:0,1 --to time:2026-01-31T12:00 --yes
    """
    target = reset.Target.parse(to)
    if bool(topic) == all_topics:
        raise UsageError("give --topic or --all-topics")
    groups = _open(bootstrap, properties, timeout)
    moves = reset.plan(groups, name, topic or [], target)
    if not dry_run:
        if not json:
            _show_moves(moves)
        confirm(f"Move group {name} on {len(moves)} partitions?", yes)
        groups.set_offsets(name, {(move.topic, move.partition): move.after for move in moves})
    if json:
        changes = [
            {"topic": move.topic, "partition": move.partition, "before": move.before, "after": move.after}
            for move in moves
        ]
        output.emit({"group": name, "dry_run": dry_run, "partitions": changes})
    elif dry_run:
        _show_moves(moves)
        output.note("nothing was changed (--dry-run)")
    else:
        print(f"moved group {name}")


@app.command()
def delete(
    names: Names,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Delete groups and what they committed. Their consumers must be stopped."""
    confirm(f"Delete group {', '.join(names)} with all committed offsets?", yes)
    groups = _open(bootstrap, properties, timeout)
    for name in names:
        groups.delete(name)
        if not json:
            print(f"deleted group {name}")
    if json:
        output.emit({"deleted": names})


@app.command("delete-offsets")
def delete_offsets(
    name: Name,
    topic: TopicSpecs = None,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Forget what a group committed for topics that it no longer reads."""
    if not topic:
        raise UsageError("give --topic")
    groups = _open(bootstrap, properties, timeout)
    commits = groups.commits(name)
    places = [place for place in reset.places(groups, name, topic) if place in commits]
    if not places:
        raise UsageError(f"group {name} has committed nothing for {', '.join(topic)}")
    confirm(f"Delete {len(places)} committed offsets of group {name}?", yes)
    groups.delete_offsets(name, places)
    if json:
        output.emit({"group": name, "deleted": [{"topic": each[0], "partition": each[1]} for each in places]})
    else:
        print(f"deleted {len(places)} committed offsets of group {name}")


def _open(bootstrap: str, properties: list[str], timeout_s: float) -> Groups:
    from headrace.client.groups import Groups

    return Groups(connect(bootstrap, properties, timeout_s))


def _document(view: GroupView) -> dict[str, Any]:
    return {
        "group": view.name,
        "state": view.state,
        "type": view.kind,
        "assignor": view.assignor,
        "coordinator": view.coordinator,
        "group_epoch": view.group_epoch,
        "assignment_epoch": view.assignment_epoch,
        "lag": view.lag,
        "members": [
            {
                "member_id": member.member_id,
                "client_id": member.client_id,
                "host": member.host,
                "instance_id": member.instance_id,
                "protocol": member.protocol,
                "epoch": member.epoch,
                "assignment": _listed(member.assignment),
                "target": None if member.target is None else _listed(member.target),
            }
            for member in view.members
        ],
        "partitions": [
            {
                "topic": each.topic,
                "partition": each.partition,
                "committed": each.committed,
                "end_offset": each.end_offset,
                "lag": each.lag,
                "member_id": each.member_id,
                "metadata": each.metadata,
            }
            for each in view.partitions
        ],
    }


def _listed(places: tuple[tuple[str, int], ...]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition} for topic, partition in places]


def _show(view: GroupView) -> None:
    count = len(view.members)
    assignor = f", assignor {view.assignor}" if view.assignor else ""
    epoch = f", epoch {view.group_epoch}" if view.group_epoch is not None else ""
    members = f"{count} member{'s' * (count != 1)}"
    print(f"{view.name}: {view.state}, {members}, lag {output.number(view.lag)}{assignor}{epoch}")
    unknown = sum(each.committed is None and each.end_offset != 0 for each in view.partitions)
    if unknown:
        print(f"not counted: {unknown} partition{'s' * (unknown != 1)} with records and no committed offset")
    if view.group_epoch is not None and view.assignment_epoch != view.group_epoch:
        print(f"partitions are assigned for epoch {view.assignment_epoch}")
    clients = {member.member_id: member.client_id for member in view.members}
    if view.members:
        print()
        _show_members(view)
    if view.partitions:
        print()
        output.table(
            ["TOPIC", ">PARTITION", ">COMMITTED", ">END", ">LAG", "CLIENT"],
            [
                (
                    each.topic,
                    each.partition,
                    each.committed,
                    each.end_offset,
                    each.lag,
                    clients.get(each.member_id or ""),
                )
                for each in view.partitions
            ],
        )


def _show_members(view: GroupView) -> None:
    if view.group_epoch is None:
        output.table(
            ["MEMBER", "HOST", "PARTITIONS"],
            [
                (member.instance_id or member.member_id, member.host, _owned(member.assignment))
                for member in view.members
            ],
        )
        return
    output.table(
        ["MEMBER", "HOST", "PROTOCOL", ">EPOCH", "PARTITIONS", "TO COME"],
        [
            (
                member.instance_id or member.member_id,
                member.host,
                member.protocol,
                member.epoch,
                _owned(member.assignment),
                _owned(tuple(place for place in member.target or () if place not in member.assignment)),
            )
            for member in view.members
        ],
    )


def _owned(assignment: tuple[tuple[str, int], ...]) -> str:
    topics = dict.fromkeys(topic for topic, _ in assignment)
    return " ".join(
        f"{topic}:{output.ranges(partition for owner, partition in assignment if owner == topic)}" for topic in topics
    )


def _show_moves(moves: list[reset.Move]) -> None:
    output.table(
        ["TOPIC", ">PARTITION", ">BEFORE", ">AFTER"],
        [(move.topic, move.partition, move.before, move.after) for move in moves],
    )
