"""Supervised processes, real ones: a broker that serves alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import ClassVar

import pytest

from headrace.supervisor import watching
from headrace.supervisor.console import Console, Reply
from headrace.supervisor.doors import ConsoleServer, StatusServer
from headrace.supervisor.plan import Choices, plan
from headrace.supervisor.supervisor import Supervisor
from headrace.supervisor.watching import Watched
from headrace.testing.ports import free_port

PATIENCE_S = 100.0


@pytest.fixture
def supervisor(tmp_path):
    choices = Choices(brokers=1, base_port=free_port(), http_base_port=free_port(), data_dir=str(tmp_path))
    return Supervisor(plan(choices), str(tmp_path), lambda _: None)


async def until(condition) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():
            await asyncio.sleep(0.05)


def test_a_broker_that_is_killed_is_started_again_and_a_stopped_one_is_not(supervisor):
    async def run() -> None:
        [one] = supervisor.watched
        try:
            await supervisor.start()
            first = one.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)

            async def is_back() -> bool:
                return one.pid not in (None, first) and await one.is_ready()

            await until(is_back)
            assert (one.restarts, one.last_exit) == (1, -signal.SIGKILL)
            console = Console(supervisor)
            assert (await console.answer("broker stop 0")).text == "broker-0 has stopped"
            assert one.last_exit == 0, "a stop is clean"
            assert await one.state() == "stopped"
            assert (await console.answer("broker start 0")).text.startswith("broker-0 is starting")
            await until(one.is_ready)
        finally:
            await supervisor.stop()
        assert one.pid is None

    asyncio.run(run())


@pytest.fixture
def sleeper(tmp_path, monkeypatch):
    """A service that does nothing; `launched` are the processes that were started for it."""
    service = plan(Choices(brokers=1, base_port=free_port(), data_dir=str(tmp_path))).services[0]
    one = Watched(service, tmp_path / "log")
    one.launched = []

    async def launch() -> None:
        if one.launched and one.launched[-1] is None:
            one.launched.append(await asyncio.create_subprocess_exec("true"))
            raise OSError("no descriptors")
        one._process = await asyncio.create_subprocess_exec("sleep", "1000")
        one.launched.append(one._process)

    monkeypatch.setattr(one, "_launch", launch)
    return one


def test_orders_of_several_consoles_are_carried_out_one_after_the_other(sleeper):
    async def run() -> None:
        assert sorted(await asyncio.gather(sleeper.start(), sleeper.start())) == [False, True]
        assert len(sleeper.launched) == 1
        await asyncio.gather(sleeper.restart(), sleeper.start(), sleeper.restart(), sleeper.stop())
        assert [process.returncode is None for process in sleeper.launched] == [False, False, False]
        await asyncio.gather(sleeper.stop(for_good=True), sleeper.restart())
        assert len(sleeper.launched) == 3, "who restarts everything while everything ends is late"

    asyncio.run(run())


def test_a_start_that_fails_is_tried_again(sleeper, monkeypatch):
    monkeypatch.setattr(watching, "FIRST_PAUSE_S", 0.01)

    async def run() -> None:
        await sleeper.start()
        sleeper.launched.append(None)
        sleeper.launched[0].kill()

        async def is_back() -> bool:
            return sleeper.restarts == 2 and sleeper.pid is not None

        await until(is_back)
        await sleeper.stop()

    asyncio.run(run())


def test_the_console_and_the_status_page_answer_on_their_ports(supervisor):
    async def run() -> None:
        console, status = ConsoleServer(Console(supervisor), "hello"), StatusServer(supervisor)
        console_port = await console.start("127.0.0.1", 0)
        status_port = await status.start("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", console_port)
        assert await reader.readuntil(b"> ") == b"hello\n> "
        writer.write(b"broker list\n")
        assert b"stopped" in await reader.readuntil(b"\n> ")
        writer.write(b"quit\n")
        assert await reader.read() == b"bye\n"
        writer.close()
        rude, rude_writer = await asyncio.open_connection("127.0.0.1", console_port)
        await rude.readuntil(b"> ")
        rude_writer.write(b"x" * 100_000)
        with contextlib.suppress(ConnectionResetError):  # what it did not read may end it this way
            assert await rude.read() == b""
        rude_writer.close()
        for path, wanted in (("/readyz", b" 503 "), ("/healthz", b" 200 "), ("/status", b"broker-0"), ("/x", b" 404 ")):
            page, page_writer = await asyncio.open_connection("127.0.0.1", status_port)
            page_writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
            assert wanted in await page.read()
            page_writer.close()
        await console.stop()
        await status.stop()

    asyncio.run(run())


def test_a_port_that_is_taken_is_said_before_anything_starts(tmp_path):
    async def run() -> None:
        taken = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        port = taken.sockets[0].getsockname()[1]
        choices = Choices(brokers=1, base_port=port, data_dir=str(tmp_path))
        supervisor = Supervisor(plan(choices), str(tmp_path), lambda _: None)
        with pytest.raises(Exception, match="is in use"):
            await supervisor.start()
        assert all(one.pid is None for one in supervisor.watched)
        taken.close()

    asyncio.run(run())


def test_a_web_page_cannot_give_orders():
    class Orders:
        given: ClassVar[list[str]] = []

        async def answer(self, line: str) -> Reply:
            self.given.append(line)
            return Reply("")

    async def run() -> None:
        server = ConsoleServer(Orders(), "hello")
        port = await server.start("127.0.0.1", 0)
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 13\r\n\r\nrestart all\r\n")
            assert await reader.read() == b"hello\n> "
            writer.close()
        finally:
            await server.stop()
        assert Orders.given == []

    asyncio.run(run())
