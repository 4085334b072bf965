"""The options of `format("headracelake")`. Unknown ones are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.core.config import suggestion
from headrace.core.errors import ConfigError
from headrace.spark.lake.place import Place

_KNOWN: Final = ("path", "partitionBy", "maxRowsPerTrigger", "columns", "version")
_OF_SPARK: Final = frozenset({"queryname", "checkpointlocation", "__hive_compatible_bucketed_table_insertion__"})


@dataclass(frozen=True, slots=True)
class LakeOptions:
    path: str
    partition_by: tuple[str, ...] = ()
    max_rows: int | None = None
    version: int | None = None

    @property
    def place(self) -> Place:
        return Place.of(self.path)


def parse(given: Mapping[str, str]) -> LakeOptions:
    """Check the options. Raises ConfigError."""
    names = {name.lower(): name for name in _KNOWN}
    values: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        if lower in names:
            values[names[lower]] = value
        elif lower not in _OF_SPARK:
            raise ConfigError(f"option {name!r} is not known{suggestion(name, _KNOWN)}")
    if not values.get("path"):
        raise ConfigError("option 'path' is missing: where the table lies")
    return LakeOptions(
        Place.of(values["path"]).uri,
        tuple(each.strip() for each in values.get("partitionBy", "").split(",") if each.strip()),
        _whole("maxRowsPerTrigger", values.get("maxRowsPerTrigger"), 1),
        _whole("version", values.get("version"), 0),
    )


def _whole(name: str, text: str | None, low: int) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or int(text) < low:
        raise ConfigError(f"option {name!r} must be a whole number from {low} on, but it is {text!r}")
    return int(text)
