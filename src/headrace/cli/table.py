"""`headrace table`: look after Delta tables, and prove that an archive is whole."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli import output
from headrace.cli.moments import duration_ms
from headrace.cli.options import BOOTSTRAP, Bootstrap, Json, Yes, confirm
from headrace.cli.report import UsageError

app = typer.Typer(
    help="Describe, compact, clean up and verify Delta tables.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Path = Annotated[str, typer.Argument(metavar="PATH", help="The table: a directory or a URI.")]


@app.command()
def describe(path: Path, json: Json = False) -> None:
    """Show rows, files, columns, partitions, and what is archived."""
    from dataclasses import asdict

    from headrace.spark.lake import Table

    view = Table(path).describe()
    if json:
        output.emit(asdict(view))
        return
    print(
        f"{view.path}: version {view.version}, {output.number(view.rows)} rows in {output.number(view.files)} files, "
        f"{output.size(view.size_bytes)}"
    )
    print()
    output.table(["COLUMN", "TYPE"], view.columns)
    if view.partition_by:
        print()
        output.table(["PARTITION", ">FILES", ">ROWS"], view.partitions)
    if view.archived:
        print()
        output.table(["TOPIC", ">PARTITION", ">FROM", ">UP TO", ">RECORDS"], view.archived)


@app.command()
def files(path: Path, json: Json = False) -> None:
    """Print the files that are the table now: for DuckDB, pandas, or whatever reads Parquet."""
    from headrace.spark.lake import Table

    found = Table(path).files()
    if json:
        output.emit(found)
        return
    for each in found:
        print(each)


@app.command()
def compact(
    path: Path,
    target_mb: Annotated[int, typer.Option("--target", metavar="MB", min=1, help="Size of the files to make.")] = 128,
    json: Json = False,
) -> None:
    """Join small files. Readers and writers may go on meanwhile."""
    from headrace.spark.lake import Table

    found = Table(path).compact(target_bytes=target_mb << 20)
    if json:
        output.emit({"files_before": found.files_before, "files_after": found.files_after})
    else:
        print(f"{found.files_before} files before, {found.files_after} now ({found.rewritten} rewritten)")


@app.command()
def vacuum(
    path: Path,
    keep: Annotated[str, typer.Option("--keep", metavar="DURATION", help="Keep what is younger.")] = "7d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be deleted.")] = False,
    yes: Yes = False,
    json: Json = False,
) -> None:
    """Delete files that are no part of the table any more, or never were."""
    from headrace.spark.lake import Table

    hours = duration_ms(keep, "--keep") / 3_600_000
    table = Table(path)
    found = table.vacuum(keep_hours=hours, dry_run=True)
    if found and not dry_run:
        confirm(f"Delete {len(found)} files of {path}?", yes)
        found = table.vacuum(keep_hours=hours)
    if json:
        output.emit({"deleted": found, "dry_run": dry_run})
    else:
        print(f"{len(found)} files {'would be ' if dry_run else ''}deleted")


@app.command()
def verify(
    path: Path,
    broker: Annotated[bool, typer.Option("--broker", help="Compare with what the broker still has, too.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte and check it against its checksum.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP,
    json: Json = False,
) -> None:
    """Prove that an archive has no offset missing and none twice. Exit code 1 if it does not hold."""
    from dataclasses import asdict

    from headrace.spark.lake import TableError
    from headrace.spark.lake import verify as prove

    proof = prove(path, bootstrap=bootstrap if broker else None, deep=deep)
    if not proof.partitions:
        raise UsageError(f"{path} is a table, but no archive of topics")
    if json:
        output.emit({**asdict(proof), "holds": proof.holds})
    else:
        output.table(
            ["TOPIC", ">PARTITION", ">FROM", ">UP TO", ">RECORDS", ">GAPS", ">COMPARED", "RESULT"],
            [
                (
                    each.topic,
                    each.partition,
                    each.start,
                    each.end,
                    output.number(each.rows),
                    output.number(each.gaps),
                    output.number(each.compared),
                    "; ".join(each.faults) or "every offset once",
                )
                for each in proof.partitions
            ],
        )
    if not proof.holds:
        raise TableError(f"{path} is not whole")
