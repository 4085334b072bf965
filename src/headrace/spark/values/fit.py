"""Does an object from JSON fit a type of Spark? Compiled once per schema into small functions.

Rules:
- Strict: text is not a number, a fraction is not a whole number, and what does not fit in its bits is refused.
- Dates and times are ISO 8601 text; a time without a zone is UTC. Binary is base64. A decimal is a number or text.
- A missing field is null; a required one that is missing or null does not fit. Unknown fields are left out.
"""

from __future__ import annotations

import base64
import datetime
import decimal
from collections.abc import Callable
from typing import Any, Final

from pyspark.sql import types as t

from headrace.core.errors import ConfigError
from headrace.spark.values.codec import MisfitError

Fit = Callable[[Any, str], Any]

_BITS: Final[dict[type, int]] = {t.ByteType: 8, t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}


def compile_fit(schema: t.StructType) -> Callable[[Any], Any]:
    """A function that returns what Arrow takes for the struct, or raises MisfitError. Raises ConfigError now."""
    fit = _struct(schema)
    return lambda found: fit(found, "")


def _refuse(path: str, wanted: str, found: Any) -> MisfitError:
    names = {dict: "an object", list: "an array", str: "text", bool: "true or false", type(None): "null"}
    what = names.get(type(found), f"{found!r}")
    return MisfitError(f"{path or 'the record'} must be {wanted}, not {what}")


def _of(kind: t.DataType, path: str) -> Fit:
    if isinstance(kind, t.StructType):
        return _struct(kind, path)
    if isinstance(kind, t.ArrayType):
        return _array(kind, path)
    if isinstance(kind, t.MapType):
        return _map(kind, path)
    if type(kind) in _BITS:
        return _whole(_BITS[type(kind)])
    if isinstance(kind, t.DecimalType):
        return _decimal(kind)
    simple = _SIMPLE.get(type(kind))
    if simple is None:
        raise ConfigError(f"field {path}: values of type {kind.simpleString()} cannot be read from JSON")
    return simple


def _struct(kind: t.StructType, path: str = "") -> Fit:
    under = f"{path}." if path else ""
    fields = [(each.name, not each.nullable, _of(each.dataType, under + each.name)) for each in kind.fields]

    def fit(found: Any, at: str) -> Any:
        if type(found) is not dict:
            raise _refuse(at, "an object", found)
        result = {}
        for name, required, inner in fields:
            value = found.get(name)
            if value is not None:
                result[name] = inner(value, f"{at}.{name}" if at else name)
            elif required:
                raise MisfitError(f"{at}.{name} is missing" if at else f"{name} is missing")
        return result

    return fit


def _array(kind: t.ArrayType, path: str) -> Fit:
    inner = _of(kind.elementType, f"{path}[]")

    def fit(found: Any, at: str) -> Any:
        if type(found) is not list:
            raise _refuse(at, "an array", found)
        if not kind.containsNull and None in found:
            raise MisfitError(f"{at} has a null element")
        return [None if each is None else inner(each, f"{at}[{index}]") for index, each in enumerate(found)]

    return fit


def _map(kind: t.MapType, path: str) -> Fit:
    if not isinstance(kind.keyType, t.StringType):
        raise ConfigError(f"field {path}: keys of a map in JSON are text")
    inner = _of(kind.valueType, f"{path}{{}}")

    def fit(found: Any, at: str) -> Any:
        if type(found) is not dict:
            raise _refuse(at, "an object", found)
        return [(key, None if each is None else inner(each, f"{at}.{key}")) for key, each in found.items()]

    return fit


def _whole(bits: int) -> Fit:
    high = 1 << (bits - 1)

    def fit(found: Any, at: str) -> Any:
        if type(found) is not int or not -high <= found < high:
            raise _refuse(at, f"a whole number of {bits} bits", found)
        return found

    return fit


def _decimal(kind: t.DecimalType) -> Fit:
    quantum = decimal.Decimal(1).scaleb(-kind.scale)
    context = decimal.Context(prec=kind.precision, traps=[decimal.InvalidOperation])

    def fit(found: Any, at: str) -> Any:
        try:
            if type(found) not in (int, float, str):
                raise ValueError
            number = decimal.Decimal(str(found))
            exact = number.quantize(quantum, context=context)
            if exact != number:
                raise ValueError
            return exact
        except (ValueError, decimal.InvalidOperation):
            raise _refuse(at, f"a {kind.simpleString()}", found if type(found) is not str else _Text(found)) from None

    return fit


class _Text(str):
    """Text that is shown as it is."""


def _float(found: Any, at: str) -> Any:
    if type(found) not in (int, float):
        raise _refuse(at, "a number", found)
    return float(found)


def _text(found: Any, at: str) -> Any:
    if type(found) is not str:
        raise _refuse(at, "text", found)
    return found


def _bool(found: Any, at: str) -> Any:
    if type(found) is not bool:
        raise _refuse(at, "true or false", found)
    return found


def _binary(found: Any, at: str) -> Any:
    try:
        return base64.b64decode(found, validate=True) if type(found) is str else _raise()
    except ValueError:
        raise _refuse(at, "base64", found) from None


def _date(found: Any, at: str) -> Any:
    try:
        return datetime.date.fromisoformat(found) if type(found) is str else _raise()
    except ValueError:
        raise _refuse(at, "a date such as 2025-01-31", _Text(found) if type(found) is str else found) from None


def _timestamp(found: Any, at: str) -> Any:
    try:
        moment = datetime.datetime.fromisoformat(found) if type(found) is str else _raise()
    except ValueError:
        shown = _Text(found) if type(found) is str else found
        raise _refuse(at, "a time such as 2025-01-31T12:00:00Z", shown) from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)


def _local(found: Any, at: str) -> Any:
    moment = _timestamp(found, at)
    return moment.replace(tzinfo=None)


def _raise() -> Any:
    raise ValueError


_SIMPLE: Final[dict[type, Fit]] = {
    t.FloatType: _float,
    t.DoubleType: _float,
    t.StringType: _text,
    t.BooleanType: _bool,
    t.BinaryType: _binary,
    t.DateType: _date,
    t.TimestampType: _timestamp,
    t.TimestampNTZType: _local,
}
