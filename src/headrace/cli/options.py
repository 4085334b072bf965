"""Options that several verbs share, and what is made of them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.client.connection import Connection

Bootstrap = Annotated[
    str,
    typer.Option("--bootstrap", "-b", envvar="HEADRACE_BOOTSTRAP", metavar="HOST:PORT", help="Where a broker listens."),
]
Properties = Annotated[
    list[str],
    typer.Option("-X", metavar="KEY=VALUE", help="A librdkafka client property; may be repeated.", show_default=False),
]
Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="How long a call may take.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

BOOTSTRAP = "127.0.0.1:9092"
TIMEOUT_S = 5.0


def connect(bootstrap: str, properties: Iterable[str], timeout_s: float) -> Connection:
    """The options as a Connection."""
    from headrace.client.connection import Connection, addresses

    addresses(bootstrap)
    return Connection(bootstrap, pairs(properties, "-X"), timeout_s)


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """`KEY=VALUE` texts as a mapping. Raises UsageError."""
    return dict(pair_list(texts, option))


def pair_list(texts: Iterable[str], option: str) -> list[tuple[str, str]]:
    found = []
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{option} {text!r} is not KEY=VALUE")
        found.append((key.strip(), value))
    return found


def confirm(question: str, yes: bool) -> None:
    """Ask before something that cannot be undone. Raises Abort on no, UsageError where nobody can be asked."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody is here to ask: add --yes")
    typer.confirm(question, abort=True, err=True)
