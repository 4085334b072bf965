"""Nodes that have just gone, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.broker.departures import LINGER_S, PATIENCE_S, Departures
from headrace.broker.image import BrokerRecord, Image, RemoveBrokerRecord, apply
from headrace.core.ports import Contact
from headrace.testing.sim.loop import SimLoop

THREE = apply(Image(), [BrokerRecord(node, f"h{node}", 9092) for node in (1, 2, 3)])
WITHOUT_2 = apply(THREE, [BrokerRecord(2, "h2", 9092, fenced=True)])


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    loop = SimLoop()
    try:
        loop.run_until_complete(scenario())
    finally:
        loop.close()


def now() -> float:
    return asyncio.get_running_loop().time()


async def waits_s(departures: Departures, *leaders: int) -> float:
    begun = now()
    await departures.settled(lambda: leaders)
    return now() - begun


def test_nobody_waits_while_all_is_well():
    async def scenario() -> None:
        departures = Departures()
        departures.contact(2, Contact.MADE)
        assert not departures.is_in_doubt
        assert await waits_s(departures, 1, 2, 3) == 0

    run(scenario)


def test_only_who_asks_for_a_doubted_leader_waits_and_only_for_a_while():
    async def scenario() -> None:
        departures = Departures()
        departures.contact(2, Contact.LOST)
        assert departures.is_in_doubt
        assert await waits_s(departures, 1, 3) == 0
        await asyncio.sleep(0.25)
        departures.contact(2, Contact.REFUSED)  # the same doubt
        assert await waits_s(departures, 1, 2) == PATIENCE_S - 0.25
        departures.contact(2, Contact.REFUSED)
        assert not departures.is_in_doubt
        assert await waits_s(departures, 2) == 0

    run(scenario)


def test_the_wait_ends_when_somebody_else_leads():
    async def scenario() -> None:
        departures = Departures()
        leaders = [2]
        departures.contact(2, Contact.REFUSED)
        waiting = asyncio.ensure_future(departures.settled(lambda: leaders))
        await asyncio.sleep(0.1)
        departures.changed(THREE, THREE)  # something else has changed
        await asyncio.sleep(0.1)
        assert not waiting.done()
        leaders[:] = [3]
        departures.changed(THREE, WITHOUT_2)
        await asyncio.sleep(0)
        await waiting
        assert now() == 0.2

    run(scenario)


def test_the_wait_ends_when_the_node_is_there_after_all_and_a_new_doubt_is_a_new_one():
    async def scenario() -> None:
        departures = Departures()
        departures.contact(2, Contact.LOST)
        asyncio.get_running_loop().call_later(0.1, departures.contact, 2, Contact.MADE)
        assert await waits_s(departures, 2) == 0.1
        departures.contact(2, Contact.LOST)
        assert await waits_s(departures, 2) == PATIENCE_S

    run(scenario)


def test_refusals_are_passed_on_and_lost_connections_are_not():
    async def scenario() -> None:
        told: list[tuple[str, int]] = []
        departures = Departures([lambda node: told.append(("a", node)), lambda node: told.append(("b", node))])
        departures.contact(2, Contact.LOST)
        departures.contact(2, Contact.MADE)
        assert told == []
        departures.contact(2, Contact.REFUSED)
        assert told == [("a", 2), ("b", 2)]

    run(scenario)


def test_a_fenced_node_lingers_for_a_while_and_is_not_doubted():
    async def scenario() -> None:
        departures = Departures()
        assert not departures.lingers(2)
        departures.changed(THREE, WITHOUT_2)
        departures.contact(2, Contact.REFUSED)
        assert departures.lingers(2)
        assert not departures.lingers(3)
        assert not departures.is_in_doubt
        await asyncio.sleep(LINGER_S)
        assert not departures.lingers(2)
        departures.changed(WITHOUT_2, THREE)  # it is back
        departures.contact(2, Contact.LOST)
        assert departures.is_in_doubt

    run(scenario)


def test_a_node_that_was_removed_is_forgotten():
    async def scenario() -> None:
        departures = Departures()
        departures.contact(2, Contact.LOST)
        departures.changed(THREE, WITHOUT_2)
        departures.changed(WITHOUT_2, apply(WITHOUT_2, [RemoveBrokerRecord(2)]))
        assert not departures.is_in_doubt
        departures.contact(3, Contact.LOST)
        departures.changed(THREE, apply(THREE, [RemoveBrokerRecord(3)]))
        assert not departures.is_in_doubt

    run(scenario)
