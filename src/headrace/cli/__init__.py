"""The command `headrace`: one module per verb, imported only when its verb is used.

Rules:
- A verb's module has `app`, a Typer with one command (or several: `topic create`), or `direct(words)` if it must start
  faster than Typer can be imported. It imports what is heavy inside its functions.
- A verb fails by raising; `run` alone turns an exception into one line on stderr and an exit code:
  1 something failed, 2 the command line or the configuration is wrong, 130 Ctrl-C.
- Data goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

VERBS = {
    "serve": "run a broker",
    "demo": "watch a day of orders go through a broker and Spark, with a kill in the middle",
    "cluster": "several brokers as one; `cluster up` runs them all on this machine",
    "console": "the console of a running `cluster up`",
    "topic": "create, list, describe, alter and delete topics",
    "produce": "send messages from arguments, stdin or files",
    "consume": "print messages, old and new",
    "group": "list groups, show their lag, reset or delete them",
    "pipeline": "run data pipelines on Spark: archive, rollup, replay, enrich, dedup, or your own",
    "sql": "ask topics, live and archived, in SQL",
    "table": "describe, compact, clean up and verify Delta tables",
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


HELP = """\
headrace: a message broker that speaks Kafka

Usage: headrace [--debug] VERB ...

Verbs:
{verbs}

Examples:
{examples}
`headrace VERB --help` tells more. The broker's address is 127.0.0.1:9092 unless --bootstrap or
HEADRACE_BOOTSTRAP says otherwise. --version prints the version. --debug shows tracebacks, and
HEADRACE_DEBUG=1 the client library's log, too.
"""


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))


def run(args: Sequence[str]) -> int:
    """Run one command line; the exit code."""
    words = list(args)
    debug = words[:1] == ["--debug"]
    try:
        code = _dispatch(words[1:] if debug else words)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _reader_has_left():  # `headrace ... | head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        from headrace.cli.report import report

        return report(error, debug=debug)
    return code


def _dispatch(words: list[str]) -> int:
    if words and words[0].startswith("-"):
        option = words[0]
        if option in ("--help", "-h"):
            print(_help(), end="")
            return 0
        if option == "--version":
            from headrace.cli.version import headrace_version

            print(f"headrace {headrace_version()}")
            return 0
        raise _usage(f"no such option: {option}; try: headrace --help")
    if not words:
        print(_help(), end="", file=sys.stderr)
        return 2
    verb, *rest = words
    if verb not in VERBS:
        from headrace.core.config import suggestion

        raise _usage(f"no verb {verb!r}{suggestion(verb, VERBS) or '; try: headrace --help'}")
    return _run_verb(verb, rest)


def _run_verb(verb: str, words: list[str]) -> int:
    module = import_module(f"headrace.cli.{verb}")
    if hasattr(module, "direct"):
        outcome = module.direct(words)
    else:
        from typer.main import get_command

        outcome = get_command(module.app).main(args=words, prog_name=f"headrace {verb}", standalone_mode=False)
    return outcome if isinstance(outcome, int) else 0


def _reader_has_left() -> bool:
    """Whether it is stdout that broke, and not a connection to somebody."""
    import select

    looking = select.poll()
    looking.register(sys.stdout.fileno(), 0)
    return any(what & select.POLLERR for _, what in looking.poll(0))


def _help() -> str:
    return HELP.format(verbs="\n".join(f"  {name:<9} {line}" for name, line in VERBS.items()), examples=EXAMPLES)


def _usage(text: str) -> Exception:
    from headrace.cli.report import UsageError

    return UsageError(text)
