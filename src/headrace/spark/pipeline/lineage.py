"""Which sources a view comes from, and which query carries the dead letters of a source.

Rules:
- It is told from the text: a step comes from the views that it speaks of. A view too many does no harm, and one that
  is not found only gives dead letters a query of their own.
- Nothing here touches Spark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from headrace.spark.pipeline.config import Pipeline, Sink, Step, TableSink, TopicSink, TopicSource


def origins(pipeline: Pipeline, folder: Path) -> dict[str, frozenset[str]]:
    """The sources of every view."""
    found = {name: frozenset([name]) for name in pipeline.sources}
    for step in pipeline.transform:
        words = {word.lower() for word in re.findall(r"\w+", _text(step, folder))}
        found[step.name] = frozenset[str]().union(*(found[name] for name in found if name.lower() in words))
    return found


def with_letters(pipeline: Pipeline) -> list[str]:
    """The sources whose misfits go to a dead-letter topic or table."""
    return [
        name
        for name, source in pipeline.sources.items()
        if isinstance(source, TopicSource) and source.decode is not None and source.decode.on_error == "dlq"
    ]


def couriers(pipeline: Pipeline, folder: Path) -> dict[str, str]:
    """By source, the sink whose query carries its dead letters: the first one that comes from it and writes once."""
    known = origins(pipeline, folder)
    found = {}
    for source in with_letters(pipeline):
        for sink in pipeline.sinks:
            if source in known[sink.view] and _writes_once(sink):
                found[source] = sink.name
                break
    return found


def carried(by: str, found: Mapping[str, str]) -> list[str]:
    """The sources whose letters a sink carries."""
    return [source for source, sink in found.items() if sink == by]


def _writes_once(sink: Sink) -> bool:
    """An archive keeps misfits among its records, and a console keeps nothing."""
    return isinstance(sink, TableSink) or (isinstance(sink, TopicSink) and sink.delivery != "at_least_once")


def _text(step: Step, folder: Path) -> str:
    if step.dedup is not None:
        return step.dedup.view
    text = step.sql.strip()
    if text and not text.endswith(".sql"):
        return text
    try:
        return (folder / (step.python or text)).read_text(encoding="utf-8")
    except OSError:
        return ""  # whoever makes the views says so
