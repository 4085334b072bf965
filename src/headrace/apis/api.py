"""What an API module is made of.

Rules:
- A module `apis/xyz.py` has a docstring (versions, behaviour, "Differs from Kafka"), `handle`, and `API`.
- `handle(ctx, request)` authorises, translates, calls the broker, translates back. It does no I/O of its own.
- It is a plain function wherever it need not wait; then nothing can come between its check and its write.
  It is `async` only to wait: for durability, for a long poll, for a group.
- The answer is a mapping in the field names of kio's newest response class. Fields that the request's version does
  not have are dropped, missing ones get the schema's default. Times are int milliseconds under kio's field names.
- A request may name thousands of things. What looks at them one by one and need not do so in one go uses `in_turns`.
- Requests of one connection take effect in the order in which they came. A request that is not answered at once holds
  back those behind it, unless its whole effect lies in what it does before it first waits (`hot`, `overlaps`).
- An answer that may be large asks `Context.memory` how large it may be, and waits if none may be made.
- A raised ApiError becomes the answer through `on_error`, or closes the connection if there is none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from headrace.core.limits import FETCH_BYTES
from headrace.core.ports import Buffer

if TYPE_CHECKING:
    from uuid import UUID

    from headrace.broker.service import Service
    from headrace.core.errors import ApiError

Answer = Mapping[str, Any]
T = TypeVar("T")

REQUEST_BYTES = 2 * 1024 * 1024
AT_ONCE: Final = 64  # things of one request that are looked at before the clock is


@dataclass(slots=True)
class Encoded:
    """An answer's body that is already bytes (Produce and Fetch are encoded by hand)."""

    parts: Sequence[Buffer]
    reserved: int = 0  # bytes of memory that were reserved for it, and are the connection's to count from now on


class Memory(Protocol):
    """What large answers of one connection may take of the memory for all."""

    def grant(self) -> int:
        """Bytes that an answer may have, which is made now; 0: none may be made now."""

    async def granted(self) -> int:
        """`grant`, when there is something to grant."""

    def reserve(self, size: int) -> None:
        """So many bytes were read for an answer that cannot be sent yet. Negative: they were dropped again."""


class Plenty:
    """Memory for requests that do not come over a connection of their own."""

    def grant(self) -> int:
        return FETCH_BYTES

    async def granted(self) -> int:
        return FETCH_BYTES

    def reserve(self, size: int) -> None:
        """Nobody counts."""


PLENTY: Final = Plenty()


@dataclass(slots=True)
class Context:
    """Who asks, and of whom."""

    service: Service
    version: int
    client_id: str
    client_host: str
    peer: int | None = None  # the node on the other side, if it has proved that it belongs to the cluster
    operator: bool = False  # somebody who looks after the cluster, and has proved that
    ticket: UUID | None = None  # of a request that another node has handed on, the same at every attempt
    memory: Memory = PLENTY


def groups_are_open(ctx: Context) -> bool:
    """Whether a command to a group is decided before it first waits: not while the groups' topic is being made."""
    return ctx.service.groups.are_open


async def in_turns(ctx: Context, items: Iterable[T] | AsyncIterator[T], at_once: int = AT_ONCE) -> AsyncIterator[T]:
    """`items`, with a turn for everybody else whenever they have taken long. Short lists go through without a pause."""
    turns, number = ctx.service.turns, 0
    if isinstance(items, AsyncIterator):
        async for item in items:
            yield item
            number += 1
            if number % at_once == 0 and turns.used_up:
                await turns.rest()
        return
    for item in items:
        yield item
        number += 1
        if number % at_once == 0 and turns.used_up:
            await turns.rest()


Outcome = Answer | Encoded | None  # None: no answer is sent (Produce with acks=0)


@dataclass(frozen=True, slots=True)
class Api:
    """One row of the table."""

    key: int
    name: str
    versions: tuple[int, int]  # that we serve
    handle: Callable[[Context, Any], Outcome | Awaitable[Outcome]]
    on_error: Callable[[Context, Any, ApiError], Answer | Encoded] | None = None
    admit: Callable[[Context, Any], None] | None = None  # refuses (ApiError) on the node that was asked, not further on
    decode: Callable[[int, bytes, int], Any] | None = None  # (version, frame, offset); kio unless given
    # Its effect lies in its synchronous part, and later ones need not wait; unless it returns a task that it has made:
    # then it is yet to come. Its log lines do not name the request: that costs more than it is worth here.
    hot: bool = False
    overlaps: Callable[[Context], bool] | None = None  # whether the same is true of this one, now
    advertise_from: int | None = None  # a lower minimum to advertise only (Produce, for old librdkafka)
    for_peers: bool = False  # other nodes only; not advertised
    for_peers_from: int | None = None  # the same from this version on; `handle` refuses others
    private: bool = False  # ours, not Kafka's; not advertised
    always: bool = False  # answered before this node has caught up with its cluster, too
    for_controller: bool = False  # handed on to the controller, as it is, by a node that is not the controller
    max_request_bytes: int = REQUEST_BYTES  # larger ones close the connection: decoding must not hold up the loop
