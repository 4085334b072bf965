"""The options of `format("headracelake")`. Unknown ones are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from headrace.core.config import suggestion
from headrace.core.errors import ConfigError
from headrace.spark.lake.place import Place
from headrace.spark.option import OF_SPARK

_KNOWN: Final = ("path", "partitionBy", "maxRowsPerTrigger", "columns", "version", "txnAppId", "txnVersion")


@dataclass(frozen=True, slots=True)
class LakeOptions:
    path: str
    partition_by: tuple[str, ...] = ()
    max_rows: int | None = None
    version: int | None = None
    transaction: tuple[str, int] | None = None  # of a batch write that may be repeated: name and version

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
        elif lower not in OF_SPARK:
            raise ConfigError(f"option {name!r} is not known{suggestion(name, _KNOWN)}")
    if not values.get("path"):
        raise ConfigError("option 'path' is missing: where the table lies")
    application, version = values.get("txnAppId"), _whole("txnVersion", values.get("txnVersion"), 0)
    if (application is None) != (version is None):
        raise ConfigError("options 'txnAppId' and 'txnVersion' need each other")
    return LakeOptions(
        Place.of(values["path"]).uri,
        tuple(each.strip() for each in values.get("partitionBy", "").split(",") if each.strip()),
        _whole("maxRowsPerTrigger", values.get("maxRowsPerTrigger"), 1),
        _whole("version", values.get("version"), 0),
        None if application is None or version is None else (application, version),
    )


def _whole(name: str, text: str | None, low: int) -> int | None:
    if text is None:
        return None
    if not text.isdigit() or int(text) < low:
        raise ConfigError(f"option {name!r} must be a whole number from {low} on, but it is {text!r}")
    return int(text)
