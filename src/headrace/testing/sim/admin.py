"""An administrator who changes a topic's configuration all the time: the metadata that a cluster must not lose."""

from __future__ import annotations

from headrace.core.errors import ErrorCode
from headrace.testing.sim.clients import LATER, Client, Unknown
from headrace.testing.sim.history import History, Violation

ALTER_CONFIGS = (44, 1)
TOPIC = 2
CONFIG = "max.message.bytes"
LEAST = 1_000_000


class Admin:
    """Counts a setting up. What was acknowledged stays, unless an attempt that nobody knows about came after it."""

    def __init__(self, client: Client, history: History, topic: str) -> None:
        self._client = client
        self._history = history
        self._topic = topic
        self._value = LEAST
        self.acknowledged: int | None = None
        self.unknown: dict[int, None] = {}
        self.running = True

    async def run(self) -> None:
        while self.running:
            await self._set(self._value)
            self._value += 1
            await self._client.pause(0.3)

    async def _set(self, value: int) -> None:
        config = {"name": CONFIG, "config_operation": 0, "value": str(value)}
        resource = {"resource_type": TOPIC, "resource_name": self._topic, "configs": [config]}
        self.unknown[value] = None
        try:
            answer = await self._client.call(self._client.anybody(), ALTER_CONFIGS, {"resources": [resource]})
        except Unknown:
            return
        [row] = answer.responses
        if row.error_code == ErrorCode.none:
            del self.unknown[value]
            self.acknowledged = value
            self._history.count("settings changed")
        elif row.error_code not in LATER:
            raise Violation(f"IncrementalAlterConfigs: {row.error_code.name} {row.error_message}")

    def check(self, found: str | None) -> None:
        """Raises Violation."""
        number = None if found is None else int(found)
        if number != self.acknowledged and number not in self.unknown:
            raise Violation(f"{CONFIG} of {self._topic} is {number}, and {self.acknowledged} was acknowledged")
