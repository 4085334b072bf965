"""The HTTP server: uvicorn's HTTP/1.1 protocol on our own loop.

Rules:
- `start` only opens the port: it must not slow the broker's start. The libraries are loaded by a worker meanwhile;
  connections that come early wait, and hardly anything is read from them.
- No signal handlers, no access log, no second loop: uvicorn's `Server` would bring them, so only its protocol is used.
- A peer gets no more than: so many connections in all, so many bytes of request head, so many seconds per request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from headrace.core.errors import ConfigError
from headrace.core.logs import limited
from headrace.gateways.http.observed import Observed

if TYPE_CHECKING:
    from uvicorn.config import Config
    from uvicorn.server import ServerState

CONNECTIONS: Final = 128
HEAD_BYTES: Final = 16 * 1024
REQUEST_SECONDS: Final = 10.0
KEEP_ALIVE_SECONDS: Final = 15
STOP_SECONDS: Final = 1.0

logger = logging.getLogger("headrace.http")


class HttpSettings(Protocol):
    """What the server reads of the settings."""

    @property
    def host(self) -> str: ...

    @property
    def port(self) -> int: ...


class HttpServer:
    """Serves the pages of one broker."""

    def __init__(
        self,
        settings: HttpSettings,
        service: Observed,
        *,
        version: str,
        addresses: Callable[[], Mapping[str, str]],
        request_seconds: float = REQUEST_SECONDS,
    ) -> None:
        self._settings = settings
        self._service = service
        self._version = version
        self._addresses = addresses
        self._request_seconds = request_seconds
        self._server: asyncio.Server | None = None
        self._loading: asyncio.Task[None] | None = None
        self._uvicorn: tuple[Config, ServerState] | None = None
        self._connections: dict[_Door, None] = {}

    async def start(self) -> int:
        """Open the port and return its number. Raises ConfigError if it cannot be had."""
        host, port = self._settings.host, self._settings.port
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Door(self), host, port, backlog=CONNECTIONS)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ConfigError(f"http.port: cannot listen on {host}:{port}: {reason} (0 picks a free port)") from error
        self._loading = asyncio.create_task(self._load())
        return int(self._server.sockets[0].getsockname()[1])

    async def loaded(self) -> None:
        """Wait until pages are served."""
        assert self._loading is not None
        await asyncio.shield(self._loading)

    async def stop(self) -> None:
        """Close the port; give requests under way a moment."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        if self._loading is not None:
            self._loading.cancel()
        for door in tuple(self._connections):
            door.shutdown()
        deadline = asyncio.get_running_loop().time() + STOP_SECONDS
        while self._connections and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)
        for door in tuple(self._connections):
            door.abort()

    async def _load(self) -> None:
        try:
            self._uvicorn = await asyncio.to_thread(self._make)
        except asyncio.CancelledError:
            raise
        except Exception:
            logger.exception("the HTTP pages could not be loaded")
            for door in tuple(self._connections):
                door.abort()
            return
        for door in tuple(self._connections):
            door.open()

    def _make(self) -> tuple[Config, ServerState]:
        """Slow the first time: imports Starlette, uvicorn and the metrics library."""
        from uvicorn.config import Config
        from uvicorn.server import ServerState

        from headrace.gateways.http.app import application

        config = Config(
            application(self._service, self._version, self._addresses),
            http="h11",
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        config.load()
        return config, ServerState()

    # -- for the doors

    @property
    def request_seconds(self) -> float:
        return self._request_seconds

    def admit(self, door: _Door) -> bool:
        if len(self._connections) >= CONNECTIONS or self._server is None:
            logger.warning("HTTP connection refused: too many", extra=limited("http-refused", limit=CONNECTIONS))
            return False
        self._connections[door] = None
        return True

    def forget(self, door: _Door) -> None:
        self._connections.pop(door, None)

    def protocol(self) -> Any | None:
        """A new HTTP/1.1 protocol, or None while the libraries load."""
        if self._uvicorn is None:
            return None
        config, state = self._uvicorn
        protocol_class: Any = config.http_protocol_class
        return protocol_class(config=config, server_state=state, app_state={})


class _Door(asyncio.Protocol):
    """One connection: waits for the libraries, then passes everything on to uvicorn's protocol, under a deadline."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._inner: Any = None  # uvicorn's protocol, once it is there
        self._early = b""
        self._watch: asyncio.TimerHandle | None = None
        self._seen: Any = None  # the request that was under way when the deadline was last looked at

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not of asyncio's classes
        if not self._server.admit(self):
            self._transport.abort()
            return
        self._look_later()
        self.open()

    def open(self) -> None:
        """Begin to read, if the libraries are there."""
        if self._transport is None or self._inner is not None:
            return
        self._inner = self._server.protocol()
        if self._inner is not None:
            self._inner.connection_made(self._transport)
            if self._early:
                self._transport.resume_reading()
                self._inner.data_received(self._early)

    def data_received(self, data: bytes) -> None:
        if self._inner is not None:
            self._inner.data_received(data)
        elif self._transport is not None:
            self._early += data
            self._transport.pause_reading()  # one read's worth is all that is kept

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.forget(self)
        if self._watch is not None:
            self._watch.cancel()
        if self._inner is not None:
            self._inner.connection_lost(exc)
        self._transport = None

    def shutdown(self) -> None:
        """Close as soon as the request under way is answered."""
        if self._inner is not None:
            self._inner.shutdown()
        else:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _look_later(self) -> None:
        self._watch = asyncio.get_running_loop().call_later(self._server.request_seconds, self._look)

    def _look(self) -> None:
        """Close a peer that began no new request, or whose request is still under way, since the last look."""
        current: Any = None if self._inner is None else self._inner.cycle
        if current is self._seen:
            if current is not None and current.response_complete and self._transport is not None:
                self._transport.close()  # merely idle
            else:
                self.abort()
            return
        self._seen = current
        self._look_later()
