"""`headrace demo`: a day of orders goes through a broker and Spark, and every order is accounted for.

A broker starts on a temporary directory; shops send orders, payments and clicks; a pipeline on Spark rolls them up by
the hour and archives them in a Delta table. In the middle the pipeline is killed (kill -9) and started again. At the
end every order must be counted exactly once. Without Spark, a smaller play shows the broker alone.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

REPORT = Path("headrace-demo.html")

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command(help=__doc__)
def demo(
    orders: Annotated[int, typer.Option(min=1000, help="How many orders the shops get.")] = 24_000,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long the day takes, at least.")] = 30.0,
    report: Annotated[Path, typer.Option(metavar="FILE", help="Where the report goes.")] = REPORT,
    spark: Annotated[bool, typer.Option("--spark/--no-spark", help="With Spark, or the broker alone.")] = True,
    keep: Annotated[bool, typer.Option(help="Keep the directory with all data, and say where it is.")] = False,
) -> int:
    from rich.console import Console

    from headrace.cli.demo import tills

    console = Console()
    if spark:
        lack = missing()
        if not lack:
            if not report.absolute().parent.is_dir():
                from headrace.cli.report import UsageError

                raise UsageError(f"--report {report}: there is no directory {report.parent}")
            return _play(console, orders, seconds, report, keep)
        console.print(f"{lack}.\nSo this is the broker alone; the roll-up, the archive and SQL are left out.\n")
    return tills.run(console, orders, min(seconds, tills.SECONDS), keep)


def missing() -> str:
    """Why Spark cannot run here; empty if it can."""
    from importlib.util import find_spec

    from headrace.core.errors import ConfigError

    if any(find_spec(name) is None for name in ("pyspark", "numba", "pyarrow", "deltalake")):
        return "Spark is not installed (try: pip install 'headrace[spark]')"
    from headrace.spark.java import java_home

    try:
        java_home()
    except ConfigError as error:
        return str(error)
    return ""


def _play(console: Console, orders: int, seconds: float, report: Path, keep: bool) -> int:
    from headrace.cli.demo import page
    from headrace.cli.demo.board import Board, verdict
    from headrace.cli.demo.play import Play

    def interrupted(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupted)
    board = Board(console)
    play = Play(orders, seconds, board.show, board.tell)
    board.start()
    try:
        good = play.run()
        board.stop(play)
        assert play.shops is not None and play.tally is not None
        page.write(report, play.story, play.shops.day.truth, play.tally)
        verdict(console, play.story, str(report.resolve()))
    except KeyboardInterrupt:
        board.stop()
        console.print("stopped; cleaning up ...")
        raise
    finally:
        patient = signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever is impatient must not leave processes behind
        board.stop()
        play.close(keep=keep)
        signal.signal(signal.SIGINT, patient)
        signal.signal(signal.SIGTERM, before)
        if keep:
            console.print(f"Kept: {play.folder}; try: headrace table verify {play.home}/lake/archive")
    return 0 if good else 1
