"""`headrace config`: a broker's settings before it starts, and its configs and those of topics while it runs."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli import output
from headrace.cli.options import BOOTSTRAP, TIMEOUT_S, Bootstrap, Json, Properties, Timeout, connect, pairs
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.client.admin import Admin
    from headrace.core.config import ConfigFile

app = typer.Typer(
    help="Show and check settings; read and change configs of a running broker and its topics.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)


class Kind(StrEnum):
    topic = "topic"
    broker = "broker"


KindOf = Annotated[Kind, typer.Argument(metavar="topic|broker")]
Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="A topic's name or a broker's id.")]


@app.command()
def show(
    config: Annotated[
        str | None, typer.Option("--config", envvar="HEADRACE_CONFIG", metavar="FILE", help="A YAML file.")
    ] = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not the default.")] = False,
    json: Json = False,
) -> None:
    """Show the settings that `headrace serve` would use here, and where each comes from."""
    from headrace.settings import SETTINGS, load

    loaded = load({}, os.environ, _file(config))
    items = [item for item in SETTINGS if not changed or loaded.sources[item.name] != "default"]
    if json:
        output.emit(
            {item.name: {"value": loaded.settings.value(item), "source": loaded.sources[item.name]} for item in items}
        )
        return
    output.table(
        ["SETTING", "VALUE", "SOURCE"],
        [(item.name, item.show(loaded.settings.value(item)), loaded.sources[item.name]) for item in items],
    )


@app.command()
def check(file: Annotated[str, typer.Argument(metavar="FILE")], json: Json = False) -> None:
    """Check a settings file. Exit 2 and one line if something in it is unknown or bad."""
    from headrace.settings import load

    loaded = load({}, {}, _file(file))
    found = sorted(name for name, source in loaded.sources.items() if source != "default")
    if json:
        output.emit({"file": file, "ok": True, "settings": found})
    else:
        print(f"{file} is good: {len(found)} settings")


@app.command()
def describe(
    kind: KindOf,
    name: Name = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not the default.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Show the configs of a topic or a broker of a running cluster."""
    from headrace.client.admin import Admin

    admin = Admin(connect(bootstrap, properties, timeout))
    target = _target(admin, kind, name)
    found = [each for each in admin.configs(kind.value, target) if not changed or not each.is_default]
    if json:
        output.emit(
            {each.name: {"value": each.value, "source": each.source, "read_only": each.is_read_only} for each in found}
        )
        return
    output.table(["CONFIG", "VALUE", "SOURCE"], [(each.name, _shown(each.value), each.source) for each in found])


@app.command()
def alter(
    kind: KindOf,
    name: Name = None,
    set_to: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Set a config; may be repeated.")
    ] = None,
    delete: Annotated[
        list[str] | None, typer.Option("--delete", metavar="KEY", help="Go back to the default; may be repeated.")
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP,
    properties: Properties = [],  # noqa: B006
    timeout: Timeout = TIMEOUT_S,
    json: Json = False,
) -> None:
    """Change configs of a topic or a broker of a running cluster. Others stay as they are."""
    from headrace.client.admin import Admin

    changes = pairs(set_to or [], "--set")
    if not changes and not delete:
        raise UsageError("nothing to alter: give --set or --delete")
    admin = Admin(connect(bootstrap, properties, timeout))
    target = _target(admin, kind, name)
    admin.alter_configs(kind.value, target, set_to=changes, delete=delete or [])
    if json:
        output.emit({"kind": kind.value, "name": target, "set": changes, "deleted": delete or []})
    else:
        print(f"altered {kind.value} {target}")


def _target(admin: Admin, kind: Kind, name: str | None) -> str:
    """The resource's name; the only broker's id need not be given."""
    if name is not None:
        if kind is Kind.broker and not name.isdigit():
            raise UsageError(f"{name!r} is not a broker's id")
        return name
    if kind is Kind.topic:
        raise UsageError("which topic? give its name")
    brokers = admin.broker_ids()
    if len(brokers) != 1:
        raise UsageError(f"which broker? give one of {', '.join(map(str, brokers))}")
    return str(brokers[0])


def _shown(value: str | None) -> str:
    return "-" if value is None else value


def _file(path: str | None) -> ConfigFile | None:
    from headrace.core.config import ConfigFile
    from headrace.core.errors import ConfigError

    if path is None:
        return None
    try:
        return ConfigFile(path, Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
