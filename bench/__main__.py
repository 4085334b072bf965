"""`python -m bench`: what `headrace bench` measures, and the same for peers whose programs are found."""

from __future__ import annotations

import sys

import typer

from bench import peers
from headrace.cli import bench as verb
from headrace.cli.options import Json
from headrace.cli.output import note
from headrace.cli.report import report
from headrace.testing.load import cases
from headrace.testing.load.crew import LoadError

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def main(
    modes: verb.Modes = None,
    seconds: verb.Seconds = 3.0,
    size: verb.Sizes = verb.SIZES,
    flush: verb.Flushes = verb.FLUSHES,
    clients: verb.Clients = 2,
    connections: verb.Connections = 4,
    in_flight: verb.InFlight = 32,
    data_dir: verb.Directory = None,
    markdown: verb.Markdown = False,
    json: Json = False,
    with_peers: bool = typer.Option(True, "--peers/--no-peers", help="Measure peers whose programs are found."),
) -> None:
    """Measure Headrace, and its peers in the same run."""
    plan = verb.plan_of(modes, seconds, size, flush, clients, connections, in_flight, data_dir)
    rows = list(cases.run(plan))
    if with_peers:
        for peer in peers.PEERS:
            try:
                rows += peer(plan)  # rows that came before a failure stay
            except (peers.AbsentError, LoadError) as reason:
                note(f"skipped: {reason}")
    verb.show(rows, markdown=markdown, json=json)


if __name__ == "__main__":
    try:
        app(standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        sys.exit(report(error))
