"""`headrace topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.options import (
    BOOTSTRAP,
    TIMEOUT_S,
    Bootstrap,
    Json,
    Properties,
    Timeout,
    Yes,
    confirm,
    connect,
    pairs,
)
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.client.admin import TopicView
    from headrace.client.connection import Connection

app = typer.Typer(
    help="Create, list, describe, alter and delete topics.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(metavar="NAME")]
Names = Annotated[list[str], typer.Argument(metavar="NAME...")]
Configs = Annotated[
    list[str],
    typer.Option("--config", "-c", metavar="KEY=VALUE", help="A topic config; may be repeated.", show_default=False),
]


@app.command()
def create(
    name: Name,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", min=1, help="How many partitions.")] = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", min=1, help="How many copies.")
    ] = None,
    config: Configs = [],  # noqa: B006 - Typer copies it
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Accept a topic that is there.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Create a topic. What is not said is the broker's default."""
    from headrace.client.admin import Admin
    from headrace.client.errors import ClientError

    configs = pairs(config, "--config")
    admin = Admin(connect(bootstrap, properties, timeout))
    created = True
    try:
        admin.create_topic(
            name, partitions=partitions or -1, replication_factor=replication_factor or -1, configs=configs
        )
    except ClientError as error:
        if not if_not_exists or error.code != "TOPIC_ALREADY_EXISTS":
            raise
        created = False
    if json:
        output.emit({"topic": name, "created": created})
    else:
        print(f"created topic {name}" if created else f"topic {name} is there already")


@app.command("list")
def list_topics(
    internal: Annotated[bool, typer.Option("--internal", help="Internal topics too.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """List topics with their partitions and offsets.

    Offsets are counted from the start to the end: messages, and also the markers of transactions and what compaction
    has removed.
    """
    from headrace.client.admin import Admin

    views = Admin(connect(bootstrap, properties, timeout)).topics(internal=internal)
    if json:
        output.emit([_summary(view) for view in views])
    elif not views:
        output.note("no topics yet; try: headrace topic create NAME")
    else:
        output.table(
            ["TOPIC", ">PARTITIONS", ">REPLICAS", ">OFFSETS"],
            [(view.name, len(view.partitions), _replication(view), output.number(view.offsets)) for view in views],
        )


@app.command()
def describe(
    names: Names,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show partitions, leaders, replicas, offsets, sizes, and configs that differ from the default."""
    from headrace.client.admin import Admin

    connection = connect(bootstrap, properties, timeout)
    views = Admin(connection).describe_topics(names)
    sizes = _sizes(connection)
    if json:
        output.emit([_whole(view, sizes) for view in views])
        return
    for position, view in enumerate(views):
        if position:
            print()
        _show(view, sizes)


@app.command()
def alter(
    name: Name,
    partitions: Annotated[int | None, typer.Option("--partitions", "-p", min=1, help="Grow to so many.")] = None,
    config: Configs = [],  # noqa: B006
    delete_config: Annotated[
        list[str],
        typer.Option("--delete-config", metavar="KEY", help="Go back to the default.", show_default=False),
    ] = [],  # noqa: B006
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Add partitions, or set and delete configs. Other configs stay as they are."""
    from headrace.client.admin import Admin

    changes = pairs(config, "--config")
    if partitions is None and not changes and not delete_config:
        raise UsageError("nothing to alter: give --partitions, --config or --delete-config")
    admin = Admin(connect(bootstrap, properties, timeout))
    if changes or delete_config:
        admin.alter_configs("topic", name, set_to=changes, delete=delete_config)
    if partitions is not None:
        admin.add_partitions(name, partitions)
    if json:
        output.emit({"topic": name, "partitions": partitions, "set": changes, "deleted": delete_config})
    else:
        print(f"altered topic {name}")


@app.command()
def delete(
    names: Names,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Delete topics and all their messages."""
    from headrace.client.admin import Admin

    confirm(f"Delete {', '.join(names)} with all messages?", yes)
    admin = Admin(connect(bootstrap, properties, timeout))
    for name in names:
        admin.delete_topic(name)
        if not json:
            print(f"deleted topic {name}")
    if json:
        output.emit({"deleted": names})


Sizes = dict[tuple[str, int], int]


def _sizes(connection: Connection) -> Sizes:
    """Bytes by partition; nothing where the broker does not tell."""
    from headrace.client import raw
    from headrace.client.errors import ClientError

    try:
        return raw.partition_bytes(connection)
    except ClientError:
        return {}


def _replication(view: TopicView) -> int:
    return max((len(part.replicas) for part in view.partitions), default=0)


def _summary(view: TopicView) -> dict[str, Any]:
    return {
        "topic": view.name,
        "internal": view.is_internal,
        "partitions": len(view.partitions),
        "replication_factor": _replication(view),
        "offsets": view.offsets,
    }


def _whole(view: TopicView, sizes: Sizes) -> dict[str, Any]:
    return {
        "topic": view.name,
        "topic_id": view.topic_id,
        "internal": view.is_internal,
        "partitions": [
            {
                "partition": part.index,
                "leader": part.leader,
                "replicas": list(part.replicas),
                "isr": list(part.isr),
                "start_offset": part.start_offset,
                "end_offset": part.end_offset,
                "bytes": sizes.get((view.name, part.index)),
            }
            for part in view.partitions
        ],
        "configs": {
            config.name: {"value": config.value, "source": config.source, "default": config.is_default}
            for config in view.configs
        },
    }


def _show(view: TopicView, sizes: Sizes) -> None:
    count = len(view.partitions)
    what = f"{count} partition{'s' * (count != 1)}, {output.number(view.offsets)} offsets"
    print(f"{view.name}: {what}{', internal' if view.is_internal else ''}; id {view.topic_id}")
    for config in view.configs:
        if not config.is_default:
            print(f"  {config.name}={config.value} ({config.source})")
    output.table(
        [">PARTITION", ">LEADER", "REPLICAS", "IN SYNC", ">START", ">END", ">SIZE"],
        [
            (
                part.index,
                "none" if part.leader is None else part.leader,
                ",".join(map(str, part.replicas)),
                ",".join(map(str, part.isr)),
                part.start_offset,
                part.end_offset,
                output.size(sizes.get((view.name, part.index))),
            )
            for part in view.partitions
        ],
    )
