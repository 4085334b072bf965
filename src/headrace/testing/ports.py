"""Ports for processes that are started again on the port that they had.

Rules:
- They lie below those that the system hands out by itself: nobody is given one of them while its owner is down.
- No port is handed out twice, and processes that test side by side begin at different ones.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

FIRST: Final = 10_000
COUNT: Final = 22_000
APART: Final = 600  # between two processes with neighbouring numbers

_turns = itertools.count()


def free_port(host: str = "127.0.0.1") -> int:
    """A port of this host that is free, and likely to stay so. Raises OSError if there is none."""
    for turn in itertools.islice(_turns, COUNT):
        port = FIRST + (os.getpid() * APART + turn) % COUNT
        with socket.socket() as taken:
            try:
                taken.bind((host, port))
            except OSError:
                continue
            return port
    raise OSError(f"{host} has no free port between {FIRST} and {FIRST + COUNT}")
