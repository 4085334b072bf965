"""Connections are served in turn: counted in requests and passes of the loop, with a clock that only requests move."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.apis import TABLE
from headrace.apis.api import Api, Encoded
from headrace.broker.turns import TURN_SECONDS, Turns
from headrace.core.counters import Counters
from headrace.gateways.kafka import connection
from headrace.gateways.kafka.account import Memory
from headrace.gateways.kafka.connection import Connection
from headrace.testing.peer import frame, payload

VERSIONS, METADATA = 18, 3
SLOW_SECONDS, QUICK_SECONDS = 0.001, 0.00001


class Wire(asyncio.Transport):
    """Notes what is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = 0

    def write(self, data: Any) -> None:
        self.answers += 1

    def writelines(self, list_of_data: Any) -> None:
        self.answers += len(list(list_of_data))

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Door:
    """A door whose requests take a known time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1.0
        self.slow = 0
        clock = SimpleNamespace(monotonic=lambda: self.seconds)
        self.service: Any = SimpleNamespace(
            clock=clock, turns=Turns(clock.monotonic), counters=Counters(), serving=True
        )
        memory = Memory(1 << 28, longest=1 << 20)
        self.server: Any = SimpleNamespace(admit=lambda each: True, forget=lambda each: None, memory=memory)
        monkeypatch.setattr(connection, "TABLE", {key: self._timed(api) for key, api in TABLE.items()})

    def _timed(self, api: Api) -> Api:
        def handle(ctx: Any, request: Any) -> Encoded:
            self.slow += api.key == METADATA
            self.seconds += SLOW_SECONDS if api.key == METADATA else QUICK_SECONDS
            return Encoded((b"",))

        return replace(api, handle=handle)

    def connect(self, peer: int | None = None) -> tuple[Connection, Wire]:
        made, wire = Connection(self.server, self.service, 1 << 20), Wire()
        made.connection_made(wire)
        if peer is not None:
            made._context.peer, made._is_node = peer, True
        return made, wire


SLOW = frame(payload(METADATA, 9, {"topics": None}))
QUICK = frame(payload(VERSIONS, 0, {}))


@pytest.mark.parametrize("floods", [1, 20, 200])
def test_a_small_request_waits_for_a_pass_whatever_others_have_sent(floods: int, monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        door = Door(monkeypatch)
        for _ in range(floods):
            door.connect()[0].data_received(SLOW * 100)
        assert door.slow * SLOW_SECONDS <= TURN_SECONDS + SLOW_SECONDS, "the rest waits"
        small, wire = door.connect()
        for asked in range(1, 50):
            before = door.slow
            small.data_received(QUICK)
            for _ in range(2):
                await asyncio.sleep(0)
            assert wire.answers == asked
            assert (door.slow - before) * SLOW_SECONDS <= 2 * (TURN_SECONDS + 2 * SLOW_SECONDS)

    asyncio.run(scenario())


def test_a_flood_is_served_to_its_end(monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        door = Door(monkeypatch)
        floods = [door.connect() for _ in range(5)]
        for flood, _ in floods:
            flood.data_received(SLOW * 50)
        for _ in range(200):
            await asyncio.sleep(0)
        assert [wire.answers for _, wire in floods] == [50] * 5

    asyncio.run(scenario())


def test_a_node_does_not_queue_with_clients(monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        door = Door(monkeypatch)
        for _ in range(20):
            door.connect()[0].data_received(SLOW * 100)
        node, wire = door.connect(peer=2)
        before = door.slow
        node.data_received(QUICK * 3)
        assert wire.answers == 3
        assert door.slow == before

    asyncio.run(scenario())
