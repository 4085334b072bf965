"""`headrace pipeline`: run data pipelines on Spark, made from a folder or ready-made."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import dlq, output, ready
from headrace.cli.options import Json
from headrace.cli.prepare import prepare
from headrace.cli.report import UsageError
from headrace.core.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.spark.pipeline.check import Finding
    from headrace.spark.pipeline.config import Pipeline
    from headrace.spark.pipeline.state import State

app = typer.Typer(
    help="Run data pipelines on Spark: from a folder with a pipeline.yml, or ready-made.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder with pipeline.yml.", show_default=False)]
Master = Annotated[
    str, typer.Option("--master", metavar="URL", help="Spark's master: local[4], spark://..., yarn, k8s://...")
]
Once = Annotated[bool, typer.Option("--once", help="Do what is there now, then end.")]
HERE = Path(".")
STOP_SECONDS = 120.0


@app.command()
def init(folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A folder to make.")]) -> None:
    """Make a working example: orders from a topic, cleaned, summed up and archived."""
    from headrace.spark.pipeline.ready import example

    example(folder)
    print(f"made {folder / 'pipeline.yml'}")
    output.note(f"next: headrace pipeline check {folder}, then: headrace pipeline run {folder}")


@app.command()
def check(folder: Folder = HERE, master: Master = "", json: Json = False) -> None:
    """Dry run: settings, connection, topics, schemas and SQL; nothing is written."""
    from headrace.spark.pipeline.check import before_spark
    from headrace.spark.pipeline.check import check as dry_run
    from headrace.spark.pipeline.config import load

    pipeline = load(folder)
    found: list[dict[str, Any]] = []

    def tell(finding: Finding) -> None:
        found.append({"what": finding.what, "told": finding.told, "good": finding.good})
        if not json:
            print(f"{'ok  ' if finding.good else 'FAIL'}  {finding.what}: {finding.told}", flush=True)

    for finding in before_spark(pipeline):
        tell(finding)
    if not found or found[0]["good"]:  # without its broker nothing more can be said
        for finding in dry_run(_session(pipeline, folder, master), pipeline, _home(folder)):
            tell(finding)
    if json:
        output.emit(found)
    faults = sum(not finding["good"] for finding in found)
    if faults:
        raise UsageError(f"{faults} thing{'s' * (faults != 1)} to mend in {pipeline.name}")


@app.command()
def run(folder: Folder = HERE, once: Once = False, master: Master = "") -> None:
    """Run a pipeline until Ctrl-C, `stop`, or (--once) until it has done what is there. It goes on where it was."""
    from headrace.spark.pipeline.config import load

    run_folder(folder, load(folder), once=once, master=master)


def run_folder(folder: Path, pipeline: Pipeline, *, once: bool, master: str) -> None:
    """Run, with a line on stderr whenever something was done."""
    from headrace.spark.pipeline.check import before_spark
    from headrace.spark.pipeline.runner import Runner
    from headrace.spark.pipeline.state import State

    State(_home(folder)).check_free()
    for finding in before_spark(pipeline):
        if not finding.good:
            raise HeadraceError(f"{finding.what}: {finding.told}")
    spark = _session(pipeline, folder, master)
    runner = Runner(pipeline, _home(folder), spark, once=once, say=output.note)

    def stop(number: int, frame: Any) -> None:
        if runner.stop_asked:
            raise KeyboardInterrupt
        runner.stop_asked = True
        output.note("stopping after this batch (Ctrl-C again: at once) ...")

    before = [(each, signal.signal(each, stop)) for each in (signal.SIGINT, signal.SIGTERM)]
    output.note(f"running {pipeline.name}; headrace pipeline status {folder} shows how it goes, Ctrl-C stops it")
    try:
        runner.run()
    except Exception as error:
        if isinstance(error, ConnectionError) or type(error).__name__ == "Py4JNetworkError":
            log = State(_home(folder)).log_file
            raise HeadraceError(f"Spark's Java has ended (its log: {log}); a new run goes on where it was") from error
        raise
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    for name, query in runner.queries.items():
        output.note(f"{name}: {output.number(query['rows'])} records, {query['batch'] + 1} batches")


@app.command()
def status(
    folder: Folder = HERE,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep showing; Ctrl-C ends.")] = False,
    json: Json = False,
) -> None:
    """Show rate, lag, batch time and last error of every query."""
    from headrace.spark.pipeline.state import State

    _check_there(folder)
    state = State(_home(folder))
    if json:
        output.emit(state.read())
        return
    if not watch:
        _show({"name": str(folder), **state.read()})
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(), auto_refresh=False, screen=False) as live:
        while True:
            live.update(_view({"name": str(folder), **state.read()}), refresh=True)
            time.sleep(0.5)


@app.command()
def stop(folder: Folder = HERE) -> None:
    """Stop a running pipeline after its batch."""
    from headrace.spark.pipeline import state as states

    _check_there(folder)
    state = states.State(_home(folder))
    name = state.read().get("name", folder)
    if state.bury():
        print(f"stopped {name}: it had been killed; run goes on where it was")
        return
    if not state.is_held():
        raise UsageError(f"the pipeline in {folder} does not run")
    state.ask_to_stop()
    _wait_for_end(state)
    print(f"stopped {state.read().get('name', folder)}")


def _wait_for_end(state: State) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    while state.is_held():
        if time.monotonic() > deadline:
            raise UsageError("it did not stop in time; its batch takes long, or its machine is gone")
        time.sleep(0.2)


@app.command("list")
def list_pipelines(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where to look.", show_default=False)] = HERE,
    json: Json = False,
) -> None:
    """List the pipelines in a folder and below, and whether they run."""
    from headrace.core.errors import ConfigError
    from headrace.spark.pipeline.config import FILE, load
    from headrace.spark.pipeline.state import NEVER, State

    rows = []
    for path in sorted([*folder.glob(FILE), *folder.glob(f"*/{FILE}"), *folder.glob(f"*/*/{FILE}")]):
        found = State(path.parent).read()
        try:
            pipeline = load(path)
            name, sinks = pipeline.name, ", ".join(sink.name for sink in pipeline.sinks)
        except ConfigError as error:
            name, sinks = path.parent.name, f"({error})"
            found = {**found, "state": "invalid"} if found["state"] == NEVER else found
        lag = sum(each.get("lag") or 0 for each in found["queries"].values()) if found["queries"] else None
        rows.append({"name": name, "state": found["state"], "lag": lag, "folder": str(path.parent), "sinks": sinks})
    if json:
        output.emit(rows)
    elif not rows:
        output.note(f"no pipelines in {folder}; headrace pipeline init makes one")
    else:
        output.table(
            ["NAME", "STATE", ">LAG", "FOLDER", "SINKS"],
            [(row["name"], row["state"], output.number(row["lag"]), row["folder"], row["sinks"]) for row in rows],
        )


@app.command("export-sdp")
def export_sdp(
    folder: Folder = HERE,
    to: Annotated[Path | None, typer.Option("--to", metavar="DIR", help="Where to write; default FOLDER/sdp.")] = None,
) -> None:
    """Write the pipeline as a Spark Declarative Pipeline: spark-pipeline.yml and transformations/."""
    from headrace.spark.pipeline.config import load
    from headrace.spark.pipeline.sdp import export

    place = to or _home(folder) / "sdp"
    for path in export(load(folder), _home(folder), place):
        print(path)
    output.note(
        f"run it: cd {place} && spark-pipelines run --remote 'local[2]' --conf spark.sql.catalogImplementation=hive"
    )


def _check_there(folder: Path) -> None:
    from headrace.spark.pipeline.config import FILE
    from headrace.spark.pipeline.state import FOLDER

    if not folder.is_file() and not (folder / FILE).exists() and not (folder / FOLDER).exists():
        raise UsageError(f"there is no pipeline in {folder}; see: headrace pipeline list")


def _home(folder: Path) -> Path:
    return folder if folder.is_dir() else folder.parent


def _session(pipeline: Pipeline, folder: Path, master: str) -> Any:
    from headrace.spark.pipeline.state import State
    from headrace.spark.session import quiet_errors, spark_session

    quiet_errors()
    return spark_session(
        f"headrace {pipeline.name}",
        master or pipeline.spark.master,
        {name: str(value) for name, value in pipeline.spark.conf.items()},
        say=output.note,
        log_file=State(_home(folder)).log_file,
    )


def _cells(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            name,
            output.number(each.get("batch", -1) + 1),
            output.number(each.get("rows")),
            f"{each.get('rate', 0):,.0f}/s",
            output.number(each.get("lag")),
            f"{each.get('batch_ms', 0):,} ms",
            _last_error(each),
        )
        for name, each in sorted(found["queries"].items())
    ]


def _last_error(query: dict[str, Any]) -> str:
    if not query.get("error"):
        return "-"
    at = query.get("error_at")
    return query["error"] if at is None else f"{query['error']} ({_span(time.time() - at)} ago)"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


COLUMNS = ["QUERY", ">BATCHES", ">RECORDS", ">RATE", ">LAG", ">BATCH", "LAST ERROR"]


def _title(found: dict[str, Any]) -> str:
    age = time.time() - found["written_at"] if "written_at" in found else None
    since = "" if age is None else f", heard of {_span(age)} ago"
    why = f": {found['error']}" if found.get("error") else ""
    return f"{found.get('name', 'pipeline')}: {found['state']}{since}{why}"


def _show(found: dict[str, Any]) -> None:
    print(_title(found))
    if found["queries"]:
        output.table(COLUMNS, _cells(found))


def _view(found: dict[str, Any]) -> Any:
    from rich.table import Table
    from rich.text import Text

    view = Table(box=None, pad_edge=False, title=_title(found), title_justify="left", header_style="bold")
    for name in COLUMNS:
        view.add_column(name.lstrip(">"), justify="right" if name.startswith(">") else "left")
    for row in _cells(found):
        view.add_row(*(Text(str(cell)) for cell in row))
    return view


app.command()(prepare)
ready.register(app)
app.add_typer(dlq.app, name="dlq")
