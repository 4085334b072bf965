"""Log lines on stderr: one JSON object each, or short coloured lines on a terminal.

Rules:
- Nothing here waits: a line is formatted where it is logged, and written by a thread. When nobody reads stderr the
  queue fills, further lines are dropped and counted, and the broker goes on.
- Lines of one kind (`core.logs.limited`), and lines of other libraries, are capped per ten seconds; what was held back
  is told by one line with a count.
- The fields of a JSON line: `time` (UTC), `level`, `logger`, `event`, the request's fields, the line's own values,
  `error` (a traceback). A value that JSON does not know is written as its `str`.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
from collections import deque
from typing import Any, Final, Protocol, TextIO

import msgspec

from headrace.core.logs import LIMIT, REQUEST

WINDOW_SECONDS: Final = 10.0
LINES_PER_WINDOW: Final = 5
KINDS: Final = 1_000
QUEUED_LINES: Final = 10_000
FLUSH_SECONDS: Final = 2.0

_OWN: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName", "color_message", LIMIT}
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_COLOURS: Final = {"debug": "\033[2m", "info": "\033[36m", "warning": "\033[33m", "error": "\033[31m"}
_PLAIN: Final = "\033[0m"
_DIM: Final = "\033[2m"


class LogSettings(Protocol):
    """What `configure` reads."""

    @property
    def level(self) -> str: ...

    @property
    def format(self) -> str: ...


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """A line's values: those of its request, and its own."""
    values: dict[str, Any] = {}
    request = REQUEST.get()
    if request is not None:
        values.update(request._asdict())
    values.update((key, value) for key, value in record.__dict__.items() if key not in _OWN)
    return values


class JsonFormatter(logging.Formatter):
    """One JSON object in one line."""

    _encode = msgspec.json.Encoder(enc_hook=str).encode

    def format(self, record: logging.LogRecord) -> str:
        moment = time.gmtime(record.created)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', moment)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        for key, value in fields(record).items():
            line[f"{key}_" if key in line else key] = value
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        try:
            return self._encode(line).decode()
        except (TypeError, ValueError, OverflowError, RecursionError):  # lone surrogates, odd keys, cycles
            return self._encode({key: ascii(value) for key, value in line.items()}).decode()


class PrettyFormatter(logging.Formatter):
    """For people: time, level, sentence, values."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = record.levelname.lower()
        values = " ".join(f"{key}={_shown(value)}" for key, value in fields(record).items())
        event = _shown(record.getMessage(), spaces=True)
        if self._colour:
            line = f"{_DIM}{clock}{_PLAIN} {_COLOURS.get(level, '')}{level:<7}{_PLAIN} {event}  {_DIM}{values}{_PLAIN}"
        else:
            line = f"{clock} {level:<7} {event}  {values}"
        if record.exc_info:
            line = f"{line.rstrip()}\n{self.formatException(record.exc_info)}"
        return line.rstrip()


def _shown(value: Any, *, spaces: bool = False) -> str:
    """As text in one line, with control characters escaped: a client's name must not move the cursor."""
    text = value if isinstance(value, str) else str(value)
    if not text.isprintable():
        text = "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
    return repr(text) if not spaces and (" " in text or not text) else text


class Limiter(logging.Filter):
    """Lets a few lines of each kind through per window, and counts the rest."""

    def __init__(self, lines: int = LINES_PER_WINDOW, seconds: float = WINDOW_SECONDS) -> None:
        super().__init__()
        self._lines = lines
        self._seconds = seconds
        self._kinds: dict[str, tuple[float, int]] = {}  # kind -> end of its window, lines seen in it

    def filter(self, record: logging.LogRecord) -> bool:
        kind = _kind(record)
        if kind is None:
            return True
        now = time.monotonic()
        end, seen = self._kinds.get(kind, (0.0, 0))
        if now >= end:
            self._close(kind, seen)
            if len(self._kinds) >= KINDS:
                self.sweep()
            if len(self._kinds) >= KINDS:
                return False  # a flood of kinds is a flood all the same
            end, seen = now + self._seconds, 0
        self._kinds[kind] = (end, seen + 1)
        return seen < self._lines

    def sweep(self) -> None:
        """Tell of what was held back in windows that are over."""
        now = time.monotonic()
        for kind, (end, seen) in list(self._kinds.items()):
            if now >= end:
                self._close(kind, seen)

    def _close(self, kind: str, seen: int) -> None:
        self._kinds.pop(kind, None)
        if seen > self._lines:
            values = {"kind": kind, "held_back": seen - self._lines, "seconds": self._seconds}
            logging.getLogger("headrace.logs").warning("more lines of one kind were held back", extra=values)


def _kind(record: logging.LogRecord) -> str | None:
    kind = record.__dict__.get(LIMIT)
    if kind is not None:
        return str(kind)
    if record.name.startswith("headrace"):
        return None
    return f"{record.name}: {record.msg}"


class Writer(logging.Handler):
    """Hands formatted lines to a thread that writes them."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._lines: deque[str] = deque()
        self._wake = threading.Condition()
        self._dropped = 0
        self._busy = False
        threading.Thread(target=self._write, name="headrace-logs", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        with self._wake:
            if len(self._lines) >= QUEUED_LINES:
                self._dropped += 1
                return
            self._lines.append(line)
            self._wake.notify_all()

    def flush(self) -> None:
        """Wait, for a moment at most, until everything is written."""
        with self._wake:
            self._wake.wait_for(lambda: not self._lines and not self._busy, FLUSH_SECONDS)

    def _write(self) -> None:
        while True:
            with self._wake:
                self._busy = False
                self._wake.notify_all()
                self._wake.wait_for(lambda: self._lines)
                self._busy = True
                lines, dropped = list(self._lines), self._dropped
                self._lines.clear()
                self._dropped = 0
            if dropped:
                values = {"dropped": dropped}
                logging.getLogger("headrace.logs").warning("stderr was not read: lines were dropped", extra=values)
            try:
                self._stream.write("\n".join(lines) + "\n")
                self._stream.flush()
            except (OSError, ValueError):
                pass  # stderr is gone: there is nobody to tell


_writer: Writer | None = None
_limiter: Limiter | None = None


def configure(settings: LogSettings, stream: TextIO | None = None) -> None:
    """Send every log line of this process to `stream` (stderr). A second call replaces the first."""
    global _writer, _limiter
    stream = stream or sys.stderr
    terminal = stream.isatty()
    if settings.format == "json" or (settings.format == "auto" and not terminal):
        formatter: logging.Formatter = JsonFormatter()
    else:
        formatter = PrettyFormatter(colour=terminal)
    root = logging.getLogger()
    if _writer is not None:
        root.removeHandler(_writer)
        _writer.flush()
    else:
        atexit.register(flush)
    _writer, _limiter = Writer(stream), Limiter()
    _writer.setFormatter(formatter)
    _writer.addFilter(_limiter)
    root.addHandler(_writer)
    level = _LEVELS[settings.level]
    root.setLevel(max(level, logging.WARNING))  # other libraries speak up only when something is wrong
    logging.getLogger("headrace").setLevel(level)


def sweep() -> None:
    """Tell of lines that were held back; to be called now and then (the loop's probe does)."""
    if _limiter is not None:
        _limiter.sweep()


def flush() -> None:
    """Write out what is queued."""
    if _writer is not None:
        _writer.flush()
