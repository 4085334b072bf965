"""`headrace pipeline dlq`: look at the records that a pipeline put aside, and send them again."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli import output
from headrace.cli.options import Json
from headrace.cli.payload import encode

if TYPE_CHECKING:
    from headrace.spark.pipeline.letters import DeadLetters, Letter

app = typer.Typer(
    help="Look at dead letters (records that did not decode), and send them again.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Folder = Annotated[Path, typer.Argument(metavar="[FOLDER]", help="The folder with pipeline.yml.", show_default=False)]
Source = Annotated[str, typer.Option("--source", metavar="NAME", help="Only those of this source.")]
HERE = Path(".")
SHOWN = 60


@app.command()
def show(
    folder: Folder = HERE,
    source: Source = "",
    limit: Annotated[int, typer.Option("--limit", "-n", metavar="N", min=1, help="How many at most.")] = 20,
    replayed: Annotated[bool, typer.Option("--all", help="Also those that were replayed.")] = False,
    json: Json = False,
) -> None:
    """Show the dead letters that wait: where each came from, and why it did not decode."""
    letters = _letters(folder, source).waiting(replayed=replayed)
    found = list(islice(letters, limit))
    if json:
        for each in found:
            output.emit_line(_document(each))
    elif not found:
        output.note("no dead letters wait")
    else:
        output.table(["SOURCE", "RECORD", "TIME", "WHY", "VALUE"], [_cells(each) for each in found])
    if next(letters, None) is not None:
        output.note(f"there are more than {limit}; --limit shows them")


@app.command()
def replay(
    folder: Folder = HERE,
    source: Source = "",
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="Not to where they came from, but here.")] = "",
    limit: Annotated[int | None, typer.Option("--limit", "-n", metavar="N", min=1, help="How many at most.")] = None,
) -> None:
    """Send waiting dead letters to the topics that they came from, each once.

    \b
    Mend the schema first; then the running pipeline decodes them as new records.
    """
    sent = _letters(folder, source).replay(to, limit)
    if not sent:
        output.note("no dead letters wait")
    for topic, count in sorted(sent.items()):
        print(f"{topic}: {output.number(count)} replayed")


def _letters(folder: Path, source: str) -> DeadLetters:
    from headrace.spark.pipeline.config import load
    from headrace.spark.pipeline.letters import DeadLetters

    return DeadLetters(load(folder), folder if folder.is_dir() else folder.parent, source)


def _cells(letter: Letter) -> tuple[str, ...]:
    value = "-" if letter.value is None else output.clipped(letter.value.decode("utf-8", "replace"), SHOWN)
    origin = f"{letter.topic}-{letter.partition}-{letter.offset}" if letter.topic else "?"
    return letter.source, origin, letter.time or "-", letter.error or "-", value


def _document(letter: Letter) -> dict[str, Any]:
    return {
        "source": letter.source,
        "topic": letter.topic,
        "partition": letter.partition,
        "offset": letter.offset,
        "time": letter.time,
        "error": letter.error,
        "key": encode(letter.key),
        "value": encode(letter.value),
        "headers": [[name, encode(value)] for name, value in letter.headers],
    }
