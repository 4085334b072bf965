"""What the verbs of `headrace cluster` have in common: the secret, a connection that may operate, and progress.

Rules:
- Before it changes anything the command proves that it knows the cluster's secret. A cluster without one believes its
  own machine.
- Whatever takes time goes on in the cluster, whether or not somebody looks: Ctrl-C ends the looking, and says so.
- While waiting, a controller that moves or a node that dies is not an error, unless it lasts.
"""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from headrace.cli import output
from headrace.cli.options import connect
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.client.cluster import Cluster, Placed
    from headrace.client.raw import RawConnection

Secret = Annotated[
    str | None,
    typer.Option(
        "--secret",
        envvar="HEADRACE_CLUSTER_SECRET",
        metavar="TEXT",
        help="The cluster's secret; not needed on the machine of a cluster that has none. The variable is safer.",
        show_envvar=True,
    ),
]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Begin, and do not wait for the end.")]

LOOK_S: Final = 0.25
PATIENCE_S: Final = 30.0  # with a cluster that does not answer while we wait for it
T = TypeVar("T")


def open_cluster(bootstrap: str, properties: list[str], timeout_s: float, secret: str | None = None) -> Cluster:
    from headrace.client.cluster import Cluster

    return Cluster(connect(bootstrap, properties, timeout_s), lambda raw: _greet(raw, secret or None))


def _greet(raw: RawConnection, secret: str | None) -> None:
    """Prove that we may operate the cluster. Raises ClientError."""
    from headrace.client.errors import ClientError
    from headrace.core.errors import ProtocolError
    from headrace.gateways.kafka import hello

    local = hello.both_local(*raw.ends)
    us = hello.Membership(hello.OPERATOR, "", secret)
    caller = hello.Caller(us, os.urandom, target_id=hello.ANYBODY, local=local)
    header = struct.pack(">hhih", hello.API_KEY, hello.API_VERSION, 0, -1)
    try:
        message: bytes | None = caller.hello()
        while message is not None:
            message = caller.answer(raw.exchange(header + message, "the greeting")[4:])
    except (hello.RefusedError, ProtocolError) as error:
        what = "this is not its secret" if secret else "give its secret: --secret or HEADRACE_CLUSTER_SECRET"
        raise ClientError(f"the cluster does not let us change it ({error}); {what}", "REFUSED") from None


def places(cluster: Cluster, spec: str) -> list[Placed]:
    """The partitions that `TOPIC` or `TOPIC:P,P` names. Raises UsageError, or ClientError if there is no such topic."""
    from headrace.client.errors import ClientError

    topic, colon, numbers = spec.partition(":")
    if colon and not all(number.isdigit() for number in numbers.split(",")):
        raise UsageError(f"{spec!r} is not TOPIC or TOPIC:P,P")
    known: dict[int, Placed] = {}
    for pause_s in (0.1, 0.3, 0.6, 0.0):  # the node that is asked may not have heard of a new topic yet
        known = {part.index: part for part in cluster.partitions() if part.topic == topic}
        if known:
            break
        time.sleep(pause_s)
    if not known:
        raise ClientError(f"topic {topic} does not exist", "UNKNOWN_TOPIC_OR_PART")
    wanted = sorted({int(number) for number in numbers.split(",")}) if colon else sorted(known)
    for index in wanted:
        if index not in known:
            raise UsageError(f"topic {topic} has no partition {index}; it has 0 to {len(known) - 1}")
    return [known[index] for index in wanted]


class Progress:
    """One line on stderr that changes: in place on a terminal, a line for every change elsewhere."""

    def __init__(self) -> None:
        self._last = ""

    def say(self, text: str) -> None:
        if text == self._last:
            return
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
        else:
            output.note(text)
        self._last = text

    def end(self) -> None:
        if self._last and sys.stderr.isatty():
            print(file=sys.stderr, flush=True)
        self._last = ""


def await_(step: Callable[[], str | None], goes_on: str) -> None:
    """Call `step` until it returns None; else it says how things are. `goes_on`: what to say on Ctrl-C."""
    from headrace.client.cluster import PASSING
    from headrace.client.errors import ClientError

    progress, silent_since = Progress(), None
    try:
        while True:
            try:
                text = step()
            except ClientError as error:
                silent_since = silent_since or time.monotonic()
                if error.code not in PASSING or time.monotonic() - silent_since > PATIENCE_S:
                    raise
                text = "waiting for the controller"
            else:
                silent_since = None
            if text is None:
                return
            progress.say(text)
            time.sleep(LOOK_S)
    except KeyboardInterrupt:
        progress.end()
        output.note(f"{goes_on}; see: headrace cluster status")
        raise
    finally:
        progress.end()
