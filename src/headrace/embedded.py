"""A broker inside a Python process: the real one, in a thread and a loop of its own.

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

In memory and on a free port unless told otherwise. Every setting can be given by its dotted name with `_` for `.`:
`Broker(storage_kind="disk", storage_data_dir="orders", kafka_port=9092)`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self

from headrace.app import Node
from headrace.core.errors import ConfigError
from headrace.gateways.addresses import Addresses
from headrace.runtime.thread import LoopThread
from headrace.settings import SETTINGS, Settings, load

if TYPE_CHECKING:
    from types import TracebackType

    from headrace.core.config import Setting

START_SECONDS = 60.0
EMBEDDED = {
    "storage.kind": "memory",
    "kafka.port": "0",
    "http.enabled": "false",
}


class Broker:
    """See the module. Use it as `with` or `async with`, or call `start` and `stop`."""

    def __init__(self, data_dir: str | None = None, *, port: int = 0, **settings: Any) -> None:
        self._settings = _settings(data_dir, port, settings)
        self._thread: LoopThread | None = None
        self._node: Node | None = None
        self._addresses: Addresses | None = None

    def __repr__(self) -> str:
        storage = self._settings.storage
        kept = "in memory" if storage.kind == "memory" else f"data in {storage.data_dir!r}"
        where = "stopped" if self._thread is None or self._addresses is None else self._addresses.bootstrap_servers
        return f"<headrace.Broker {where}, {kept}>"

    def start(self) -> Self:
        """Start and wait until it serves."""
        if self._thread is not None:
            raise RuntimeError("the broker is running already")
        thread = LoopThread("headrace")
        try:
            self._node, self._addresses = thread.run(self._serve(), START_SECONDS)
        except BaseException:
            thread.close()
            raise
        self._thread = thread
        return self

    async def _serve(self) -> tuple[Node, Addresses]:
        node = Node(self._settings)
        return node, await node.start()

    def stop(self) -> None:
        """Stop cleanly; harmless if it does not run."""
        thread, self._thread = self._thread, None
        if thread is not None and self._node is not None:
            try:
                thread.run(self._node.stop(), START_SECONDS)
            finally:
                thread.close()

    @property
    def bootstrap_servers(self) -> str:
        """For every Kafka client: `host:port`."""
        return self._running().bootstrap_servers

    @property
    def http_url(self) -> str | None:
        """Where health and metrics are, if HTTP is on (`http_enabled=True`)."""
        return self._running().http_url

    def _running(self) -> Addresses:
        if self._thread is None or self._addresses is None:
            raise RuntimeError("the broker is not running; use it as a context manager or call start()")
        return self._addresses

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Self:
        return await asyncio.to_thread(self.start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.stop)


def _settings(data_dir: str | None, port: int, given: dict[str, Any]) -> Settings:
    names = {item.name.replace(".", "_"): item for item in SETTINGS}
    flags = {**EMBEDDED, "kafka.port": str(port)}
    if data_dir is not None:
        flags |= {"storage.kind": "disk", "storage.data_dir": data_dir}
    for name, value in given.items():
        item = names.get(name)
        if item is None:
            raise ConfigError(f"Broker() has no setting {name!r}; see docs/settings.md (dots become underscores)")
        flags[item.name] = item.show(value)
    if "http_port" in given and "http_enabled" not in given:
        flags["http.enabled"] = "true"
    if "http_port" not in given:
        flags["http.port"] = "0"
    return load(flags=flags, given_as=lambda item: f"Broker({_argument(item)}=...)").settings


def _argument(item: Setting) -> str:
    """How a setting is given to `Broker`."""
    return {"kafka.port": "port", "storage.data_dir": "data_dir"}.get(item.name, item.name.replace(".", "_"))
