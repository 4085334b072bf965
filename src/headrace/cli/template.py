"""How `consume` writes a message: a template compiled to a function from message to bytes.

%k key   %v %s value   %t topic   %p partition   %o offset   %T timestamp (ms)   %D date   %h headers
%K key length   %S value length   %% a percent sign   \\n \\t \\r \\0 \\\\ as usual
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.cli import output
from headrace.cli.report import UsageError

if TYPE_CHECKING:
    from headrace.client.message import Message

Part = Callable[["Message"], bytes]

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}
_FIELDS: dict[str, Part] = {
    "k": lambda message: message.key or b"",
    "v": lambda message: message.value or b"",
    "s": lambda message: message.value or b"",
    "t": lambda message: message.topic.encode(),
    "p": lambda message: b"%d" % message.partition,
    "o": lambda message: b"%d" % message.offset,
    "T": lambda message: b"%d" % message.timestamp_ms,
    "D": lambda message: output.moment(message.timestamp_ms).encode(),
    "h": lambda message: b",".join(name.encode() + b"=" + (value or b"") for name, value in message.headers),
    "K": lambda message: b"%d" % (-1 if message.key is None else len(message.key)),
    "S": lambda message: b"%d" % (-1 if message.value is None else len(message.value)),
}


def compile_template(template: str) -> Callable[[Message], bytes]:
    """Raises UsageError."""
    parts: list[bytes | Part] = []
    position = 0
    while position < len(template):
        letter, after = template[position], template[position + 1 : position + 2]
        if letter == "%" and after == "%":
            parts.append(b"%")
        elif letter == "%":
            if after not in _FIELDS:
                raise UsageError(f"--format has no %{after}; known: {' '.join('%' + name for name in _FIELDS)}")
            parts.append(_FIELDS[after])
        elif letter == "\\" and after in _ESCAPES:
            parts.append(_ESCAPES[after].encode())
        else:
            parts.append(letter.encode(errors="surrogateescape"))
            position -= 1
        position += 2

    def write(message: Message) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(message) for part in parts)

    return write


def default_template(*, keys: bool, headers: bool, timestamps: bool, offsets: bool) -> str:
    """Tab-separated columns, then the value."""
    columns = ["%D"] * timestamps + ["%t-%p:%o"] * offsets + ["%h"] * headers + ["%k"] * keys + ["%v"]
    return "\\t".join(columns) + "\\n"
