"""`headrace bench`: measure a broker on this machine. It starts its own, on a temporary directory and a free port."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Json
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.testing.load.cases import Plan
    from headrace.testing.load.results import Measured

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Modes = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODE]...", help="raw, client, latency, startup, memory; all when none is named."),
]
Seconds = Annotated[float, typer.Option("--seconds", min=0.1, max=600, help="How long one case runs.")]
Sizes = Annotated[list[int], typer.Option("--size", metavar="BYTES", help="Size of a value; may be repeated.")]
Flushes = Annotated[list[str], typer.Option("--flush", metavar="ack|os", help="Durability; may be repeated.")]
Clients = Annotated[int, typer.Option("--clients", min=1, max=64, help="Most producer or consumer processes.")]
Connections = Annotated[int, typer.Option("--connections", min=1, max=1000, help="Connections of the raw mode.")]
InFlight = Annotated[int, typer.Option("--in-flight", min=1, max=1000, help="Requests in flight per connection.")]
Directory = Annotated[Path | None, typer.Option("--data-dir", help="Where temporary data directories are made.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="Print Markdown tables.")]

SIZES = [100, 1000]
FLUSHES = ["os", "ack"]


@app.command()
def bench(
    modes: Modes = None,
    seconds: Seconds = 3.0,
    size: Sizes = SIZES,
    flush: Flushes = FLUSHES,
    clients: Clients = 2,
    connections: Connections = 4,
    in_flight: InFlight = 32,
    data_dir: Directory = None,
    markdown: Markdown = False,
    json: Json = False,
) -> None:
    """Measure a broker on this machine: raw requests, real clients, latency, start-up, idle memory.

    \b
    headrace bench                      everything, some minutes
    headrace bench raw --flush os       ready-made requests over raw sockets only
    headrace bench startup memory --json
    """
    from headrace.testing.load import cases

    plan = plan_of(modes, seconds, size, flush, clients, connections, in_flight, data_dir)
    show(list(cases.run(plan)), markdown=markdown, json=json)


def plan_of(
    modes: list[str] | None,
    seconds: float,
    sizes: list[int],
    flushes: list[str],
    clients: int,
    connections: int,
    in_flight: int,
    data_dir: Path | None,
) -> Plan:
    """The options as a plan. Raises UsageError."""
    from headrace.cli.output import note
    from headrace.testing.load import cases

    for word, known, option in (
        *((mode, cases.MODES, "MODE") for mode in modes or ()),
        *((flush, ("ack", "os"), "--flush") for flush in flushes),
    ):
        if word not in known:
            raise UsageError(f"{option} {word!r} is not one of {', '.join(known)}")
    if any(not 1 <= size <= 900_000 for size in sizes):
        raise UsageError("--size takes 1 to 900000 bytes")
    return cases.Plan(
        seconds=seconds,
        value_bytes=tuple(sizes),
        flushes=tuple(flushes),
        modes=tuple(modes or cases.MODES),
        clients=clients,
        connections=connections,
        in_flight=in_flight,
        data_dir=data_dir,
        announce=lambda text: note(f"measuring: {text}"),
    )


def show(rows: list[Measured], *, markdown: bool, json: bool) -> None:
    """Print what was measured."""
    from headrace.cli import output
    from headrace.testing.load import machine, results

    if json:
        output.emit(results.document(rows, machine.description()))
        return
    described = machine.description()
    print(
        f"{described['cores']} cores, {described['processor']}, {described['system']}, Python {described['python']}\n"
    )
    if markdown:
        print(results.markdown(rows))
        return
    for title, group in results.tables(rows):
        columns, cells = results.shown(group)
        output.table([name if name in results.LEFT else f">{name}" for name in columns], cells, title=title)
        print()
    for title, case, peer, ratio in results.ratios(rows):
        print(f"{title}, {case}: headrace does {ratio:.2f} times the requests of {peer}")
