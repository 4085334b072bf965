"""`headrace cluster`: several brokers as one; `cluster up` runs them all on this machine.

The verbs for a cluster that runs are in `cluster_status` and `cluster_moves`, `init` is in `cluster_init`.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import cluster_init, cluster_moves, cluster_status, output
from headrace.core.errors import ConfigError

if TYPE_CHECKING:
    from headrace.supervisor.plan import Choices, Plan

app = typer.Typer(
    help="Several brokers as one cluster: prepare it, look at it, move what it holds.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
app.command()(cluster_init.init)
for verb in (
    cluster_status.status,
    cluster_status.nodes,
    cluster_moves.drain,
    cluster_moves.remove,
    cluster_moves.rebalance,
    cluster_moves.reassign,
    cluster_moves.elect,
):
    app.command()(verb)


@app.command()
def up(
    nodes: Annotated[int | None, typer.Option("--nodes", "-n", metavar="N", help="How many brokers. [5]")] = None,
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE", help="A YAML file of choices.")] = None,
    data_dir: Annotated[str | None, typer.Option("--data-dir", metavar="DIR", help="Where brokers keep data.")] = None,
    base_port: Annotated[int | None, typer.Option("--base-port", metavar="PORT", help="Of broker 0. [9092]")] = None,
    console_port: Annotated[int | None, typer.Option("--console-port", metavar="PORT", help="[8081]")] = None,
    status_port: Annotated[int | None, typer.Option("--status-port", metavar="PORT", help="[8080]")] = None,
    memory: Annotated[bool, typer.Option("--memory", help="Keep nothing once everything has stopped.")] = False,
) -> None:
    """Run a whole cluster on this machine, with a console.

    Starts the brokers, watches them, restarts what dies.

    \b
      headrace cluster up                     five brokers on 9092 to 9096, data in ./headrace-data
      headrace cluster up --nodes 3 --memory  three, and nothing is left behind
      headrace console                        the console from another terminal (port 8081)

    Ctrl-C, or `quit` on this terminal, stops everything.
    """
    from headrace.supervisor.plan import plan

    choices, notes = _chosen(config, nodes, data_dir, base_port, console_port, status_port, memory)
    made = plan(choices, doors=_doors(), notes=notes)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_supervise(made, choices.data_dir))


def _chosen(
    config: Path | None,
    nodes: int | None,
    data_dir: str | None,
    base_port: int | None,
    console_port: int | None,
    status_port: int | None,
    memory: bool,
) -> tuple[Choices, tuple[str, ...]]:
    from dataclasses import replace

    from headrace.supervisor.plan import Choices, read

    choices, notes = Choices(), list[str]()
    if config is not None:
        try:
            choices, notes = read(config.read_text(encoding="utf-8"), str(config))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--config {config}: {getattr(error, 'strerror', None) or error}") from error
    given: dict[str, Any] = {
        "brokers": nodes,
        "data_dir": data_dir,
        "base_port": base_port,
        "console_port": console_port,
        "status_port": status_port,
        "storage": "memory" if memory else None,
    }
    return replace(choices, **{name: value for name, value in given.items() if value is not None}), tuple(notes)


def _doors() -> frozenset[str]:
    """The services besides brokers that this release has."""
    from headrace.cli import VERBS

    return frozenset({"producer", "consumer"} & set(VERBS))


async def _supervise(plan: Plan, data_dir: str) -> None:
    from headrace.supervisor.console import Console
    from headrace.supervisor.doors import ConsoleServer, StatusServer, Terminal
    from headrace.supervisor.supervisor import Supervisor

    for note in plan.notes:
        output.note(f"note: {note}")
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    supervisor = Supervisor(plan, data_dir, output.note)
    console = Console(supervisor)
    lines = ConsoleServer(console, f"headrace: {len(plan.services)} services; try: help")
    status = StatusServer(supervisor)
    terminal: Terminal | None = None
    try:
        console_port = await lines.start(plan.host, plan.console_port)
        status_port = await status.start(plan.host, plan.status_port)
        starting = asyncio.create_task(supervisor.start())
        waiting = asyncio.create_task(stopping.wait())
        await asyncio.wait([starting, waiting], return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        starting.result()
        print(
            f"cluster ready: kafka {plan.bootstrap_servers} console {plan.host}:{console_port} "
            f"status http://{plan.host}:{status_port}/status",
            flush=True,
        )
        if sys.stdin.isatty():
            terminal = Terminal(console, stopping.set)
            terminal.start()
        await waiting
    finally:
        if terminal is not None:
            await terminal.leave()
        output.note("stopping everything")
        await lines.stop()
        await status.stop()
        await supervisor.stop()
