"""DescribeConfigs, versions 1-4: configs of topics and of this broker, with their sources, synonyms and documentation.

A broker is named by its id; the empty name stands for the dynamic defaults of all brokers. Null or empty keys ask for
all configs; unknown keys are left out. A broker's loggers are an empty list.

Differs from Kafka: groups and client metrics have no configs here (INVALID_REQUEST); a resource may appear once in a
request (INVALID_REQUEST), since a name of a few bytes asks for some kilobytes.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

from headrace.apis.api import Answer, Api, Context, in_turns
from headrace.broker.configs import Entry, ResourceType
from headrace.core.errors import ApiError, ErrorCode
from headrace.wire.encoder import Joined
from headrace.wire.messages import element_encoder, joined

AT_ONCE: Final = 4  # resources: each has dozens of configs


async def handle(ctx: Context, request: Any) -> Answer:
    asked: set[tuple[int, str]] = set()
    results = []
    rows = _Rows(ctx, request)
    async for resource in in_turns(ctx, request.resources, AT_ONCE):
        named = (resource.resource_type, resource.resource_name)
        results.append(_describe(rows, resource, repeated=named in asked))
        asked.add(named)
    return {"results": results}


def _describe(rows: _Rows, resource: Any, *, repeated: bool) -> Answer:
    answer: dict[str, Any] = {
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }
    try:
        if repeated:
            raise ApiError(ErrorCode.invalid_request, "Each resource must appear at most once.")
        answer["configs"] = rows.of(resource)
    except ApiError as error:
        return {**answer, "error_code": error.code, "error_message": str(error)}
    return answer


class _Rows:
    """The configs of one answer. Topics with the same configs have the same rows, which are encoded once."""

    def __init__(self, ctx: Context, request: Any) -> None:
        self._ctx = ctx
        self._synonyms = request.include_synonyms
        self._documentation = getattr(request, "include_documentation", False)
        self._write = element_encoder(API.key, ctx.version, "results", "configs")
        self._known: dict[Hashable, Joined] = {}

    def of(self, resource: Any) -> Joined:
        """Raises ApiError."""
        kind, name = resource.resource_type, resource.resource_name
        keys = frozenset(resource.configuration_keys or ())
        topic = self._ctx.service.image.topics.get(name) if kind == ResourceType.TOPIC else None
        same = (keys, (kind, name) if topic is None else frozenset(topic.configs.items()))
        rows = self._known.get(same)
        if rows is None:
            entries = self._ctx.service.configs.describe(kind, name)
            shown = [
                _entry(entry, synonyms=self._synonyms, documentation=self._documentation)
                for entry in entries
                if not keys or entry.name in keys
            ]
            rows = self._known[same] = joined(self._write, shown)
        return rows


def _entry(entry: Entry, *, synonyms: bool, documentation: bool) -> Answer:
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": entry.sensitive,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": synonym.source}
            for synonym in (entry.synonyms if synonyms else ())
        ],
        "config_type": entry.type,
        "documentation": entry.doc if documentation else None,
    }


API = Api(key=32, name="DescribeConfigs", versions=(1, 4), handle=handle)
