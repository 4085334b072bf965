"""All settings: composes the sections that the packages declare.

Nothing is read here: the command line passes flags, environment and the file's text to `load`.
"""

from __future__ import annotations

import operator
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from headrace.broker.cluster_settings import ClusterSettings
from headrace.broker.settings import BrokerSettings
from headrace.core import config
from headrace.core.config import BrokerConfig, ConfigFile, Setting
from headrace.gateways.http.settings import HttpSettings
from headrace.gateways.kafka.settings import KafkaSettings
from headrace.group.settings import GroupSettings
from headrace.runtime.settings import LogSettings
from headrace.storage.settings import StorageSettings
from headrace.txn.settings import TransactionSettings

# Variables with our prefix that are no settings.
OTHER_VARIABLES: Final[Mapping[str, str]] = {
    "HEADRACE_CONFIG": "Path of the YAML file, as `--config`.",
    "HEADRACE_BOOTSTRAP": "Address of the broker for the verbs that talk to one, as `--bootstrap`.",
    "HEADRACE_DEBUG": "Show tracebacks, as `--debug`.",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that can be chosen about a broker."""

    kafka: KafkaSettings = field(default_factory=KafkaSettings)
    storage: StorageSettings = field(default_factory=StorageSettings)
    broker: BrokerSettings = field(default_factory=BrokerSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    group: GroupSettings = field(default_factory=GroupSettings)
    transactions: TransactionSettings = field(default_factory=TransactionSettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    log: LogSettings = field(default_factory=LogSettings)

    def value(self, item: Setting) -> Any:
        return getattr(getattr(self, item.section), item.field)

    def broker_configs(self) -> tuple[BrokerConfig, ...]:
        """The settings that Kafka has a name for, as DescribeConfigs shows them."""
        return config.broker_configs(SETTINGS, {item.name: self.value(item) for item in SETTINGS})


_SECTIONS: Final[Mapping[str, type]] = typing.get_type_hints(Settings)
SETTINGS: Final[tuple[Setting, ...]] = tuple(
    item for name, owner in _SECTIONS.items() for item in config.declared(name, owner)
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Settings, and where each came from: a flag, a variable, a file's name, or "default"."""

    settings: Settings
    sources: Mapping[str, str]


def load(
    flags: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: ConfigFile | None = None,
    given_as: Callable[[Setting], str] = operator.attrgetter("flag"),
) -> Loaded:
    """Flags (texts by dotted name) beat the environment, which beats the file. Raises ConfigError.

    `given_as`: what an error calls a flag.
    """
    values, sources = config.resolve(
        SETTINGS,
        flags=flags or {},
        environ=environ or {},
        file=file,
        other_variables=OTHER_VARIABLES,
        given_as=given_as,
    )
    sections = {
        name: owner(**{item.field: values[item.name] for item in SETTINGS if item.section == name})
        for name, owner in _SECTIONS.items()
    }
    return Loaded(Settings(**sections), sources)


def flags_of(args: Sequence[str]) -> dict[str, str]:
    """Command-line words (`--port 9093`, `--storage-flush=os`, `--no-http`) as flags for `load`."""
    return config.flags_of(SETTINGS, args)


@cache
def setting(name: str) -> Setting:
    """The declared setting with this dotted name. Raises KeyError."""
    return {item.name: item for item in SETTINGS}[name]
