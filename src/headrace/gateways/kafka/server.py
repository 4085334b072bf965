"""The listener on the Kafka port: admits connections, watches their manners, closes them at the end.

Rules:
- Connections are capped in all and per address, and by the file descriptors that the system lets us have, of which some
  are kept for files, pages and nodes; one too many is closed at once and counted. Other nodes are not counted
  among the clients: in a cluster, a few connections over the limits may prove in time that they are nodes.
- Idle peers, peers that stop in the middle of a frame and peers that never read their answers are closed.
- Memory for requests and answers is shared by all (`budget`). While somebody waits for some, progress is watched.
  Freed memory goes back to the system when a flood is over.
- Complaints about peers are rate-limited: bad input must not fill the log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from headrace.core.errors import ConfigError, ProtocolError
from headrace.gateways.kafka.account import Memory
from headrace.gateways.kafka.connection import Connection
from headrace.gateways.kafka.hello import Answerer, Membership

if TYPE_CHECKING:
    from headrace.broker.service import Service
    from headrace.core.ports import Dice, Listening, Network
    from headrace.gateways.kafka.settings import KafkaSettings

logger = logging.getLogger(__name__)

SWEEP_SECONDS = 5.0
HALF_FRAME_SECONDS = 30.0
UNREAD_ANSWER_SECONDS = 60.0
COMPLAINTS_PER_SWEEP = 5
PROBATION_SECONDS = 2.0
ON_PROBATION = 64  # connections
LOOK_SECONDS: Final = 0.5  # between looks at the progress of those for whose memory somebody waits
FLOOD: Final = 8  # an eighth of the memory: freed memory is given back when so much of it was used and is free again


class KafkaServer:
    """See the module."""

    def __init__(
        self,
        settings: KafkaSettings,
        service: Service | None,
        network: Network,
        membership: Membership | None = None,
        dice: Dice | None = None,
        release_memory: Callable[[], object] | None = None,
    ) -> None:
        """Without a membership nobody is believed to be a node. `release_memory`: give what is free to the system."""
        self.memory = Memory(settings.memory_bytes, longest=settings.max_request_bytes)
        for pool in self.memory.pools.values():
            pool.on_pressure = self._under_pressure
        self._settings = settings
        self._given = service
        self._network = network
        self._membership = membership
        self._dice = dice
        self._most = settings.max_connections
        self._connections: dict[Connection, None] = {}
        self._on_probation: dict[Connection, None] = {}
        self._peers: dict[Connection, None] = {}
        self._by_host: dict[str, int] = {}
        self._listening: Listening | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        self._looker: asyncio.TimerHandle | None = None
        self._release_memory = release_memory
        self._complaints = 0
        if service is not None:
            self.use(service)

    @property
    def _service(self) -> Service:
        assert self._given is not None, "there is no service yet"
        return self._given

    async def bind(self) -> int:
        """Take the port, without answering yet; returns its number."""
        host, port = self._settings.host, self._settings.port
        allowed = self._network.most_connections
        if allowed is not None and allowed < self._most:
            about = {"kafka.max_connections": self._most, "connections": allowed}
            logger.warning("the limit of open files (ulimit -n) allows fewer connections", extra=about)
            self._most = allowed
        try:
            self._listening = await self._network.listen(host, port, self._connection)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another --port or --host") from error
        return self._listening.port

    @property
    def port(self) -> int:
        assert self._listening is not None
        return self._listening.port

    def use(self, service: Service) -> None:
        """Serve this one: before the start, if it was not known when the port was taken."""
        self._given = service
        service.counters.memory = {kind: pool.counters for kind, pool in self.memory.pools.items()}

    async def start(self) -> None:
        """Answer from now on."""
        assert self._listening is not None and self._given is not None
        if self._sweeper is not None:
            return
        await self._listening.start()
        self._sweeper = asyncio.get_running_loop().call_later(SWEEP_SECONDS, self._sweep)

    def refuse_new(self) -> None:
        """Take no more connections; those that are there go on."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        if self._looker is not None:
            self._looker.cancel()
        if self._listening is not None:
            self._listening.close()

    async def stop(self) -> None:
        """Stop listening and close every connection."""
        self.refuse_new()
        for connection in self._everybody():
            connection.close()
        if self._listening is not None:
            await self._listening.wait_closed()

    def _connection(self) -> Connection:
        return Connection(self, self._service, self.memory.longest)

    def _everybody(self) -> tuple[Connection, ...]:
        return (*self._connections, *self._peers, *self._on_probation)

    # -- called by connections

    def admit(self, connection: Connection) -> bool:
        counters, host = self._service.counters, connection.host
        counters.connections_total += 1
        crowded = len(self._connections) >= self._most
        if crowded or self._by_host.get(host, 0) >= self._settings.max_connections_per_ip:
            if self._may_be_a_node():
                connection.on_probation = True
                self._on_probation[connection] = None
                asyncio.get_running_loop().call_later(PROBATION_SECONDS, self._end_probation, connection)
                return True
            counters.connections_refused += 1
            self.complain(host, "too many connections")
            return False
        self._connections[connection] = None
        self._by_host[host] = self._by_host.get(host, 0) + 1
        counters.connections = len(self._connections)
        return True

    def _may_be_a_node(self) -> bool:
        return len(self._service.image.brokers) > 1 and len(self._on_probation) < ON_PROBATION

    def _end_probation(self, connection: Connection) -> None:
        if connection in self._on_probation:
            self._service.counters.connections_refused += 1
            self.complain(connection.host, "too many connections")
            connection.close()

    def answerer(self, *, local: bool) -> Answerer:
        """Who answers a caller that says it is a node. Raises ProtocolError."""
        if self._membership is None or self._dice is None:
            raise ProtocolError("PeerHello to a node that has no peers")
        return Answerer(self._membership, self._dice.randbytes, local=local)

    def admit_peer(self, connection: Connection) -> None:
        """It is a node: it does not count among the clients any more."""
        self.forget(connection)
        connection.on_probation = False
        self._peers[connection] = None

    def forget(self, connection: Connection) -> None:
        self._peers.pop(connection, None)
        self._on_probation.pop(connection, None)
        if connection not in self._connections:
            return
        del self._connections[connection]
        left = self._by_host[connection.host] - 1
        if left:
            self._by_host[connection.host] = left
        else:
            del self._by_host[connection.host]
        self._service.counters.connections = len(self._connections)

    def complain(self, host: str, reason: str) -> None:
        self._complaints += 1
        if self._complaints <= COMPLAINTS_PER_SWEEP:
            logger.warning("a connection was closed", extra={"client_host": host, "reason": reason})

    # -- housekeeping

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        if self._complaints > COMPLAINTS_PER_SWEEP:
            logger.warning("more connections were closed", extra={"count": self._complaints - COMPLAINTS_PER_SWEEP})
        self._complaints = 0
        idle_seconds = self._settings.idle_ms / 1000
        for connection in self._everybody():
            silent = now - connection.last_active
            patience = HALF_FRAME_SECONDS if connection.half_frame else idle_seconds
            if connection.is_read and silent > patience:
                connection.close()
            elif connection.stalled_since is not None and now - connection.stalled_since > UNREAD_ANSWER_SECONDS:
                self.complain(connection.host, "answers were not read")
                connection.close()
        self._sweeper = loop.call_later(SWEEP_SECONDS, self._sweep)
        self._give_back()

    def _give_back(self) -> None:
        pools = self.memory.pools.values()
        peak, total = sum(pool.peak for pool in pools), sum(pool.total for pool in pools)
        if peak > self._settings.memory_bytes // FLOOD and 4 * total < peak and self._release_memory is not None:
            for pool in pools:
                pool.peak = pool.total
            self._release_memory()

    def _under_pressure(self) -> None:
        if self._looker is None:
            self._look()

    def _look(self) -> None:
        """Close those who hold much and do not move, as long as somebody waits for it."""
        loop = asyncio.get_running_loop()
        now, self._looker = loop.time(), None
        for kind, pool in self.memory.pools.items():
            for share in tuple(pool.holders) if pool.line else ():
                share.owner.note_progress(now)
            for share in pool.overdue(now):
                logger.warning("memory is short: a peer did not move", extra={"kind": kind, "bytes": share.used})
                share.owner.close_for(f"its {kind} took memory that others wait for")
        if any(pool.line for pool in self.memory.pools.values()):
            self._looker = loop.call_later(LOOK_SECONDS, self._look)
