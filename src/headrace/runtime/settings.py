"""Log lines: the section `log`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.config import setting

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["auto", "json", "pretty"]


@dataclass(frozen=True, slots=True)
class LogSettings:
    level: Level = setting("info", help="Least level that is written.")
    format: Format = setting("auto", help="JSON lines, pretty ones, or pretty on a terminal and JSON elsewhere.")
