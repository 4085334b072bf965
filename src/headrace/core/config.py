"""The settings machinery: a setting is declared once, as a dataclass field.

Rules:
- Flags, environment variables, the YAML file, Kafka's names and the reference page all come from the declaration.
- A flag beats the environment, the environment beats the file, the file beats the default.
- Whatever is unknown or bad is a ConfigError of one line that names the setting, the value and its source.
- Nothing here reads files or the process's environment; the caller passes what it has read.
"""

from __future__ import annotations

import dataclasses
import operator
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, Literal

from headrace.core import units
from headrace.core.errors import ConfigError

Check = Callable[[Any], str | None]
Unit = Literal["bytes", "bytes_per_second", "ms"]

DEFAULT: Final = "default"
PREFIX: Final = "HEADRACE_"
_METADATA: Final = "headrace.setting"
_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")
_KAFKA_UNITS_MS: Final = {"seconds": units.SECOND_MS, "minutes": units.MINUTE_MS, "hours": units.HOUR_MS}
# Kubernetes puts the addresses of a service called "headrace" into every pod under these names.
_SERVICE_LINK: Final = re.compile(
    r"HEADRACE_(PORT|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_\w+)?))\Z"
)


class ConfigType(IntEnum):
    """Kafka's type codes, as DescribeConfigs answers them."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


def setting(
    default: Any,
    *,
    help: str,
    unit: Unit | None = None,
    check: Check | None = None,
    kafka: str | None = None,
    choices: Sequence[str] | None = None,
    flag: str | None = None,
) -> Any:
    """Declare a setting. `check` says what is wrong with a value, or None; a Literal type brings its own choices.

    `kafka` is the broker config of the same meaning; one that ends in `.minutes` is converted. `flag` is a short form.
    """
    details = {"help": help, "unit": unit, "check": check, "kafka": kafka, "choices": choices, "short_flag": flag}
    return dataclasses.field(default=default, metadata={_METADATA: details})


def at_least(least: float) -> Check:
    return lambda value: None if value >= least else f"must be at least {least}"


def between(least: float, most: float) -> Check:
    return lambda value: None if least <= value <= most else f"must be between {least} and {most}"


def not_empty(value: str) -> str | None:
    return None if value else "must not be empty"


@dataclass(frozen=True, slots=True)
class Setting:
    """A declared setting, with its place."""

    section: str
    field: str
    kind: type  # int, float, bool or str
    optional: bool
    default: Any
    help: str
    unit: Unit | None = None
    check: Check | None = None
    kafka: str | None = None
    choices: tuple[str, ...] = ()
    short_flag: str | None = None

    @property
    def name(self) -> str:
        return f"{self.section}.{self.field}"

    @property
    def variable(self) -> str:
        return f"{PREFIX}{self.section}_{self.field}".upper()

    @property
    def flag(self) -> str:
        return self.short_flag or self.long_flag

    @property
    def long_flag(self) -> str:
        return f"--{self.section}-{self.field}".replace("_", "-")

    def parse(self, text: str, source: str) -> Any:
        """The value that `text` stands for. Raises ConfigError."""
        try:
            value = self._convert(text)
        except ValueError as error:
            raise ConfigError(f"{self.name}: {text!r} {error} (from {source})") from None
        fault = self.check(value) if self.check is not None and value is not None else None
        if fault is not None:
            raise ConfigError(f"{self.name}: {text!r} {fault} (from {source})")
        return value

    def _convert(self, text: str) -> Any:
        if self.optional and text == "":
            return None
        if self.choices:
            if text not in self.choices:
                raise ValueError(f"is not one of {', '.join(self.choices)}{suggestion(text, self.choices)}")
            return text
        if self.kind is bool:
            word = text.strip().lower()
            if word not in _TRUE + _FALSE:
                raise ValueError("is not true or false")
            return word in _TRUE
        if self.unit in ("bytes", "bytes_per_second"):
            return units.parse_bytes(text)
        if self.unit == "ms":
            return units.parse_ms(text)
        try:
            return self.kind(text)
        except ValueError:
            raise ValueError("is not a whole number" if self.kind is int else "is not a number") from None

    def show(self, value: Any) -> str:
        """`value` as text that `parse` reads back."""
        if value is None:
            return ""
        if self.kind is bool:
            return "true" if value else "false"
        if self.unit in ("bytes", "bytes_per_second"):
            return units.show_bytes(value)
        return units.show_ms(value) if self.unit == "ms" else str(value)

    @property
    def kafka_type(self) -> ConfigType:
        if self.kind is int:
            return ConfigType.LONG if self.unit else ConfigType.INT
        if self.kind is float:
            return ConfigType.DOUBLE
        return ConfigType.BOOLEAN if self.kind is bool else ConfigType.STRING

    def kafka_text(self, value: Any) -> str | None:
        """`value` as Kafka writes it under the name `kafka`: plain numbers, in that name's unit."""
        if value is None:
            return None
        if self.kind is bool:
            return "true" if value else "false"
        if self.unit == "ms" and self.kafka is not None:
            return str(value // _KAFKA_UNITS_MS.get(self.kafka.rpartition(".")[2], 1))
        return str(value)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A YAML file that the caller has read."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """One setting as DescribeConfigs shows it for a broker."""

    name: str
    value: str | None
    default: str | None
    is_default: bool
    type: ConfigType
    doc: str


def declared(section: str, owner: type) -> tuple[Setting, ...]:
    """The settings that the dataclass `owner` declares, in order."""
    hints = typing.get_type_hints(owner)
    found = []
    for field in dataclasses.fields(owner):
        details = dict(field.metadata[_METADATA])
        kind, optional, literals = _kind(hints[field.name])
        details["choices"] = tuple(details["choices"] or literals)
        found.append(Setting(section, field.name, kind, optional, field.default, **details))
    return tuple(found)


def _kind(hint: Any) -> tuple[type, bool, tuple[str, ...]]:
    """A type hint as (plain type, may be None, choices)."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        inner = [option for option in typing.get_args(hint) if option is not type(None)]
        kind, _, choices = _kind(inner[0])
        return kind, True, choices
    if typing.get_origin(hint) is Literal:
        return str, False, typing.get_args(hint)
    assert hint in (int, float, bool, str), f"a setting cannot be of type {hint}"
    return hint, False, ()


def suggestion(wrong: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing."""
    import difflib  # only a refusal pays for it

    near = difflib.get_close_matches(wrong, list(known), n=1, cutoff=0.6)
    return f"; did you mean {near[0]!r}?" if near else ""


def resolve(
    settings: Sequence[Setting],
    *,
    flags: Mapping[str, str],
    environ: Mapping[str, str],
    file: ConfigFile | None = None,
    other_variables: Iterable[str] = (),
    given_as: Callable[[Setting], str] = operator.attrgetter("flag"),
) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and sources by dotted name. `flags` is by dotted name too. Raises ConfigError.

    `given_as`: what a flag is called where it was given.
    """
    by_name = {item.name: item for item in settings}
    for name in flags:
        if name not in by_name:
            raise ConfigError(f"{name}: no such setting (from the command line){suggestion(name, by_name)}")
    variables = _variables(settings, environ, other_variables)
    contents = {} if file is None else _file_values(by_name, file)
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for item in settings:
        if item.name in flags:
            text, source = flags[item.name], given_as(item)
        elif item.name in variables:
            text, source = variables[item.name], item.variable
        elif item.name in contents and file is not None:
            text, source = contents[item.name], file.name
        else:
            values[item.name], sources[item.name] = item.default, DEFAULT
            continue
        values[item.name], sources[item.name] = item.parse(text, source), source
    return values, sources


def _variables(settings: Sequence[Setting], environ: Mapping[str, str], others: Iterable[str]) -> dict[str, str]:
    by_variable = {item.variable: item.name for item in settings}
    allowed = frozenset(others)
    found = {}
    for variable, text in environ.items():
        if variable in by_variable:
            found[by_variable[variable]] = text
        elif variable.startswith(PREFIX) and variable not in allowed and not _SERVICE_LINK.match(variable):
            hint = suggestion(variable, [*by_variable, *allowed])
            raise ConfigError(f"{variable}: no such setting (from the environment, value {text!r}){hint}")
    return found


def yaml_fault(error: Exception) -> str:
    """What YAML says, in one line, without the name that it makes up for a text."""
    return " ".join(str(error).replace('in "<unicode string>", ', "").split())


def _file_values(by_name: Mapping[str, Setting], file: ConfigFile) -> dict[str, str]:
    """The file's settings as text by dotted name."""
    import yaml  # only a start with a file pays for it

    try:
        content = yaml.safe_load(file.text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{file.name}: not YAML: {yaml_fault(error)}") from None
    sections = {item.section for item in by_name.values()}
    found: dict[str, str] = {}
    for section, fields in _mapping(content, file.name, "the file").items():
        if section not in sections:
            hint = suggestion(str(section), sections)
            raise ConfigError(f"{section}: no such section (from {file.name}, value {fields!r}){hint}")
        for field, value in _mapping(fields, file.name, section).items():
            name = f"{section}.{field}"
            if name not in by_name:
                hint = suggestion(name, by_name)
                raise ConfigError(f"{name}: no such setting (from {file.name}, value {value!r}){hint}")
            found[name] = _scalar(name, value, file.name)
    return found


def _mapping(value: Any, source: str, what: str) -> dict[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{what}: {value!r} is not a table of settings (from {source})")
    return value


def _scalar(name: str, value: Any, source: str) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    raise ConfigError(f"{name}: {value!r} is not a single value (from {source})")


def flags_of(settings: Sequence[Setting], args: Sequence[str]) -> dict[str, str]:
    """Read `--flag value`, `--flag=value`, `--switch` and `--no-switch` into texts by dotted name."""
    by_flag = {flag: item for item in settings for flag in (item.long_flag, item.short_flag) if flag}
    found: dict[str, str] = {}
    rest = list(args)
    while rest:
        flag, equals, text = rest.pop(0).partition("=")
        negated = by_flag.get("--" + flag.removeprefix("--no-")) if flag.startswith("--no-") else None
        if flag not in by_flag and negated is not None and negated.kind is bool and not equals:
            found[negated.name] = "false"
            continue
        if flag not in by_flag:
            raise ConfigError(f"{flag}: no such flag{suggestion(flag, by_flag)}")
        item = by_flag[flag]
        if not equals:
            if item.kind is bool:  # alone, or with its value as every other flag
                text = rest.pop(0) if rest and rest[0].lower() in _TRUE + _FALSE else "true"
            elif rest:
                text = rest.pop(0)
            else:
                raise ConfigError(f"{flag}: needs a value ({item.name})")
        found[item.name] = text
    return found


def broker_configs(settings: Iterable[Setting], values: Mapping[str, Any]) -> tuple[BrokerConfig, ...]:
    """What DescribeConfigs tells of a broker: every setting that has a Kafka name."""
    return tuple(
        BrokerConfig(
            name=item.kafka,
            value=item.kafka_text(values[item.name]),
            default=item.kafka_text(item.default),
            is_default=values[item.name] == item.default,
            type=item.kafka_type,
            doc=item.help,
        )
        for item in settings
        if item.kafka is not None
    )
