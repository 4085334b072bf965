"""Spark's description of a variant, such as OBJECT<id: BIGINT, tags: ARRAY<STRING>>, as a schema.

Rules:
- Decimals become doubles, as JSON does not say what its numbers are. What was only null, or of several kinds, is text
  in the schema: its values will not fit, with reasons, unless the schema is mended by hand.
- Field names may be quoted by backticks.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import types as t

from headrace.core.errors import ConfigError

_TOKEN: Final = re.compile(r"\s*(`(?:[^`]|``)*`|[^\s<>:,`()]+|[<>:,]|\([^)]*\))")
_SIMPLE: Final[dict[str, t.DataType]] = {
    "BIGINT": t.LongType(),
    "BOOLEAN": t.BooleanType(),
    "DATE": t.DateType(),
    "DECIMAL": t.DoubleType(),
    "DOUBLE": t.DoubleType(),
    "FLOAT": t.DoubleType(),
    "STRING": t.StringType(),
    "TIMESTAMP": t.TimestampType(),
    "VARIANT": t.StringType(),
    "VOID": t.StringType(),
}


def struct_of_variant(text: str) -> t.StructType:
    """Raises ConfigError."""
    tokens = _TOKEN.findall(text)[::-1]
    try:
        found = _type(tokens)
    except (IndexError, KeyError):
        raise ConfigError(f"the inferred schema {text!r} cannot be understood") from None
    if not isinstance(found, t.StructType):
        raise ConfigError(f"values are not objects but {text}")
    return found


def _type(tokens: list[str]) -> t.DataType:
    name = tokens.pop()
    if name == "ARRAY":
        tokens.pop()
        element = _type(tokens)
        tokens.pop()
        return t.ArrayType(element)
    if name == "OBJECT":
        return _object(tokens)
    if tokens and tokens[-1].startswith("("):
        tokens.pop()
    return _SIMPLE[name]


def _object(tokens: list[str]) -> t.StructType:
    fields: list[t.StructField] = []
    tokens.pop()
    while tokens[-1] != ">":
        name = tokens.pop()
        tokens.pop()
        plain = name[1:-1].replace("``", "`") if name.startswith("`") else name
        fields.append(t.StructField(plain, _type(tokens), True))
        if tokens[-1] == ",":
            tokens.pop()
    tokens.pop()
    return t.StructType(fields)
