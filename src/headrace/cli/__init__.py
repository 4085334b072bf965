"""The command `headrace`: one module per verb, imported only when its verb is used.

Rules:
- A verb's module has `app`, a Typer with one command (or several: `topic create`). It imports what is heavy inside.
- A verb fails by raising; `run` alone turns an exception into one line on stderr and an exit code:
  1 something failed, 2 the command line or the configuration is wrong, 130 Ctrl-C.
- Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
from typer.main import get_command

VERBS = {
    "serve": "run a broker",
    "demo": "watch a small stream of orders go through a broker",
    "topic": "create, list, describe, alter and delete topics",
    "produce": "send messages from arguments, stdin or files",
    "consume": "print messages, old and new",
    "group": "list groups, show their lag, reset or delete them",
    "log": "look into a data directory without a broker: list, dump, verify, recover",
    "bench": "measure a broker",
    "config": "show and check settings; read and change a broker's configs",
    "version": "print versions",
}

EXAMPLES = """\
  headrace serve --memory                          a broker on 127.0.0.1:9092, nothing on disk
  echo '{"id": 1}' | headrace produce orders       send a message (the topic is made on first use)
  headrace consume orders --from-beginning         print what is there, then follow; Ctrl-C ends
"""


class Verbs(TyperGroup):
    """The verbs by name. A verb's module is imported when the verb is chosen, not to list it."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        command = get_command(importlib.import_module(f"headrace.cli.{cmd_name}").app)
        command.name = cmd_name
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from headrace.cli.report import UsageError
            from headrace.core.config import suggestion

            raise UsageError(f"no verb {args[0]!r}{suggestion(args[0], VERBS) or '; try: headrace --help'}")
        return super().resolve_command(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        verbs = "\n".join(f"  {name:<9} {line}" for name, line in VERBS.items())
        formatter.write(
            "headrace: a message broker that speaks Kafka\n\n"
            f"Usage: headrace [--debug] VERB ...\n\nVerbs:\n{verbs}\n\nExamples:\n{EXAMPLES}\n"
            "`headrace VERB --help` tells more. The broker's address is 127.0.0.1:9092 unless --bootstrap or\n"
            "HEADRACE_BOOTSTRAP says otherwise. --debug shows tracebacks; --version prints the version.\n"
        )


app = typer.Typer(cls=Verbs, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


def _print_version(wanted: bool) -> None:
    if wanted:
        from headrace.cli.version import headrace_version

        print(f"headrace {headrace_version()}")
        raise typer.Exit


@app.callback()
def headrace(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and librdkafka's log.")] = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    if debug:
        os.environ["HEADRACE_DEBUG"] = "1"  # the client layer listens to it too


def run(args: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    try:
        outcome = get_command(app).main(args=list(args), prog_name="headrace", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except typer.Exit as error:
        return error.exit_code
    except Exception as error:
        from headrace.cli.report import report

        return report(error)
    return outcome if isinstance(outcome, int) else 0


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))
