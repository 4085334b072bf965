"""What an option is, for every table of options: how its text is read, and what is wrong with it.

Rules:
- A reader takes text and raises ValueError with the rest of a sentence: "must be true or false".
- Names are case-insensitive, as everywhere in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

from headrace.core.errors import ConfigError

Mode = Literal["batch", "stream"]

# What Spark itself puts among the options.
OF_SPARK: Final = frozenset({"queryname", "checkpointlocation", "__hive_compatible_bucketed_table_insertion__"})


@dataclass(frozen=True, slots=True)
class Option:
    """One row of a table."""

    name: str
    read: Callable[[str], Any]
    meaning: str
    only: Mode | None = None


def read(option: Option, value: object) -> Any:
    """What an option was set to. Raises ConfigError, which names it."""
    try:
        return option.read(str(value))
    except ValueError as error:
        raise ConfigError(f"option {option.name!r} {error}, but it is {str(value)!r}") from None


def text(value: str) -> str:
    if not value.strip():
        raise ValueError("must not be empty")
    return value.strip()


def flag(value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return value.strip().lower() == "true"


def whole(low: int) -> Callable[[str], int]:
    def read(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if number < low:
            raise ValueError(f"must be at least {low}")
        return number

    return read


_UNITS_MS: Final = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


def duration_ms(value: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise ValueError("must be a duration such as 500ms, 30s, 15m or 1h")
    return int(found[1]) * _UNITS_MS[found[2]]


def names(value: str) -> tuple[str, ...]:
    found = tuple(dict.fromkeys(name for piece in value.split(",") if (name := piece.strip())))
    if not found:
        raise ValueError("must name at least one")
    return found


def one_of(*words: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.strip().lower() not in words:
            raise ValueError(f"must be {' or '.join(words)}")
        return value.strip().lower()

    return read
