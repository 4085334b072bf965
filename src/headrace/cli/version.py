"""`headrace version`: what is installed here."""

from __future__ import annotations

import platform
from importlib import metadata

import typer

from headrace.cli import output
from headrace.cli.options import Json

app = typer.Typer(add_completion=False, rich_markup_mode=None)


def headrace_version() -> str:
    try:
        return metadata.version("headrace")
    except metadata.PackageNotFoundError:  # run from a source tree
        return "0+source"


def versions() -> dict[str, str]:
    import confluent_kafka

    return {
        "headrace": headrace_version(),
        "python": platform.python_version(),
        "kio": metadata.version("kio"),
        "confluent-kafka": metadata.version("confluent-kafka"),
        "librdkafka": confluent_kafka.libversion()[0],
        "platform": platform.platform(),
    }


@app.command()
def version(json: Json = False) -> None:
    """Print the versions of headrace and of what it stands on."""
    found = versions()
    if json:
        output.emit(found)
    else:
        for name, text in found.items():
            print(f"{name:<16} {text}")
