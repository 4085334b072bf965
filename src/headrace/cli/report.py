"""Failures as one line for people: what went wrong, and what to do about it.

Rule: a traceback is shown only with --debug or HEADRACE_DEBUG.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from headrace.core.errors import ApiError, ConfigError, HeadraceError

FAILURE, USAGE, INTERRUPTED = 1, 2, 130
SPARK_MODULES = frozenset({"deltalake", "fastavro", "google", "numba", "numpy", "pandas", "pyarrow", "pyspark"})

_REMEDIES = {
    "UNREACHABLE": "is a broker running? try: headrace serve",
    "_TRANSPORT": "is a broker running? try: headrace serve",
    "_ALL_BROKERS_DOWN": "is a broker running? try: headrace serve",
    "_RESOLVE": "check the host name given with --bootstrap",
    "_TIMED_OUT": "is that a Kafka listener? a longer --timeout may help",
    "TIMED_OUT": "is that a Kafka listener? a longer --timeout may help",
    "UNKNOWN_TOPIC_OR_PART": "see: headrace topic list",
    "_UNKNOWN_TOPIC": "see: headrace topic list",
    "_UNKNOWN_PARTITION": "see: headrace topic describe TOPIC",
    "TOPIC_ALREADY_EXISTS": "add --if-not-exists to accept that",
    "GROUP_ID_NOT_FOUND": "see: headrace group list",
    "NON_EMPTY_GROUP": "stop its consumers first",
    "UNKNOWN_MEMBER_ID": "stop the group's consumers first",
    "GROUP_SUBSCRIBED_TO_TOPIC": "stop the consumers of that topic first",
    "TOPIC_EXCEPTION": "a name has letters, digits, '.', '_' and '-', at most 249 of them",
    "INVALID_REPLICATION_FACTOR": "there are fewer brokers than that",
    "MSG_SIZE_TOO_LARGE": "raise -X message.max.bytes=N and the topic's max.message.bytes",
    "OFFSET_OUT_OF_RANGE": "see: headrace topic describe TOPIC",
}


class UsageError(HeadraceError):
    """The command line asks for something that makes no sense. Exit code 2."""


@dataclass(frozen=True, slots=True)
class Complaint:
    line: str
    exit_code: int = FAILURE


def report(error: Exception, *, debug: bool = False) -> int:
    """Print the complaint about `error`; the exit code."""
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error, file=sys.stderr)
        return USAGE
    complaint = complain(error)
    if debug or os.environ.get("HEADRACE_DEBUG"):
        import traceback

        traceback.print_exception(error)
    print(f"headrace: {complaint.line}", file=sys.stderr)
    return complaint.exit_code


def complain(error: Exception) -> Complaint:
    """What to tell about `error`."""
    if type(error).__name__ == "Abort":  # Typer's; it is not imported to start a broker
        return Complaint("stopped; nothing was changed")
    if hasattr(error, "format_message"):  # Typer's own: a bad flag, a missing argument
        return _usage(error)
    if isinstance(error, (ConfigError, UsageError)):
        return Complaint(_line(str(error)), USAGE)
    if isinstance(error, HeadraceError):
        name = error.code.name.upper() if isinstance(error, ApiError) else str(getattr(error, "code", ""))
        remedy = _REMEDIES.get(name, "")
        return Complaint(_line(str(error)) + (f"; {remedy}" if remedy else ""))
    if isinstance(error, OSError) and error.filename is not None:
        return Complaint(f"{error.filename}: {(error.strerror or str(error)).lower()}")
    if isinstance(error, OSError):
        return Complaint(_line(str(error)))
    if isinstance(error, ImportError):
        return Complaint(_absent(error))
    if type(error).__name__ == "KafkaException":
        from headrace.client.errors import translate

        return complain(translate(error))  # type: ignore[arg-type]
    what = f"{type(error).__name__}: {_line(str(error))}"
    return Complaint(f"unexpected {what}; this is a fault in headrace: headrace --debug shows where")


def _absent(error: ImportError) -> str:
    """A module is not there: that of an extra, or one that should be."""
    top = (error.name or "").partition(".")[0]
    if top in SPARK_MODULES:
        return f"Spark is not installed ({top} is missing): pip install 'headrace[spark]'"
    return f"{_line(str(error))}; the installation is not whole: pip install headrace"


def _usage(error: Exception) -> Complaint:
    message = _line(error.format_message())  # type: ignore[attr-defined]
    ctx, param = getattr(error, "ctx", None), getattr(error, "param", None)
    causes = getattr(error.__cause__, "errors", None)
    if causes is not None and param is not None:  # Typer leaves out what was given
        cause = causes()[0]
        reason = str(cause["msg"]).removeprefix("Value error, ")
        message = f"{param.opts[0]} {cause['input']!r}: {reason[:1].lower()}{reason[1:]}"
    path = ctx.command_path if ctx is not None else "headrace"
    return Complaint(f"{message[:1].lower()}{message[1:]}".rstrip(".") + f"; try: {path} --help", USAGE)


def _line(text: str) -> str:
    return " ".join(text.split())
