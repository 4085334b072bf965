"""One client's connection on the Kafka port.

Rules:
- Answers leave in the order of the requests, whatever finished first.
- Requests take effect in the order of their arrival, however many came in one write. The synchronous part of each runs
  in that order. A request that is not finished with it holds back those behind it, unless nothing but waiting is left
  (`Api.hot`, `Api.overlaps`); so produce requests in flight share a sync. Other nodes' requests do not hold each other
  back: they are those of many clients.
- Connections are served in turn (`broker.turns`); nodes are served at once.
- Nothing is allocated for a length that was only promised. A peer that breaks the wire is closed without an answer, and
  so is one that begins a frame that is too large for its API.
- A peer that does not read its answers is not read from; too many unanswered requests pause it too, and so does memory
  that is short (`account`). Whole requests are handled nevertheless: answering them is what gives memory back.
- An exception that nobody expected closes this connection and no other.
- A connection belongs to another node once `hello` says so; only then are requests for nodes served on it. Whoever is
  refused is told why after a while, and closed.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from headrace.apis import TABLE, api_versions, dispatch
from headrace.apis.api import Api, Context, Encoded
from headrace.broker.turns import TURN_SECONDS
from headrace.core import limits
from headrace.core.counters import Histogram
from headrace.core.errors import ApiError, ProtocolError
from headrace.core.logs import REQUEST, RequestLine
from headrace.core.ports import Buffer
from headrace.gateways.kafka import hello
from headrace.gateways.kafka.account import Account
from headrace.gateways.kafka.announced import check_announced, check_size
from headrace.gateways.kafka.budget import ALLOWANCE_BYTES
from headrace.gateways.kafka.eager import begin
from headrace.gateways.kafka.hello import Answerer, RefusedError
from headrace.gateways.kafka.slots import Slot, about, hello_answer
from headrace.wire.frames import FrameSplitter
from headrace.wire.headers import RequestHeader, parse_request_header, response_header
from headrace.wire.messages import decode_request, encode_answer

if TYPE_CHECKING:
    from headrace.broker.service import Service
    from headrace.gateways.kafka.server import KafkaServer

logger = logging.getLogger(__name__)

Outcome = Mapping[str, Any] | Encoded | None
_LENGTH = struct.Struct(">i")
_NOTHING = object()
REFUSAL_SECONDS = 0.5  # nobody learns quickly that a proof was wrong


class Connection(asyncio.Protocol):
    """See the module. It is a flow of `broker.turns`."""

    def __init__(self, server: KafkaServer, service: Service, max_frame_bytes: int) -> None:
        self._server = server
        self._service = service
        self._loop = asyncio.get_running_loop()
        self._monotonic = service.clock.monotonic
        self._turns = service.turns
        self.used = 0.0
        self.queued = False
        self._splitter = FrameSplitter(max_frame_bytes, self._begun)
        self._account = Account(server.memory, self, self._pace)
        self._histograms: dict[int, Histogram] = {}
        self._context = Context(service, -1, "", "", memory=self._account)
        self._transport: asyncio.Transport | None = None
        self._slots: deque[Slot] = deque()
        self._out: list[Buffer] = []
        self._backlog: deque[bytes] = deque()
        self._tasks: dict[asyncio.Future[Outcome], None] = {}
        self._awaited: dict[asyncio.Future[Outcome], None] = {}  # requests that have not taken effect yet
        self._is_held = False  # the next request waits for these
        self._is_node = False
        self._begun_at = 0.0  # when the last request was begun
        self._clocked_at = 0.0  # when the clock was last looked at
        self._held_bytes = 0  # of answers that are made and not given to the transport
        self._busy = False
        self._flushing = False
        self.is_read = True  # whether the peer is listened to
        self._writable = True
        self._answerer: Answerer | None = None
        self.on_probation = False  # let in over the limits, to prove that it is a node
        self.host = ""
        self.last_active = self._loop.time()
        self.stalled_since: float | None = None

    # -- the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but name
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        self._transport.set_write_buffer_limits(high=ALLOWANCE_BYTES)
        self._account.transport = self._transport
        if not self._server.admit(self):
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for held in (self._backlog, self._slots, self._out, self._splitter):
            held.clear()  # at once: objects that know each other live on until the collector comes
        self._account.close()
        for task in tuple(self._tasks):
            task.cancel()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        self.last_active = self._loop.time()
        try:
            frames = self._splitter.feed(data)
        except ProtocolError as error:
            self._refuse(error)
            return
        account = self._account
        account.received_bytes += len(data)
        if frames and not account.is_empty:
            account.frame_came()
        if self._backlog or (self._turns.crowded and not self._is_node):
            self._backlog.extend(frames)
            self._pace()
        elif frames:
            self._handle(frames, TURN_SECONDS)
        else:
            self._pace()  # what has come of a frame is counted
        if not account.is_empty and account.is_excessive:
            self.close_for("there is no memory for what it sends")

    def serve(self, seconds: float) -> bool:
        """Take up what was put aside, when its turn has come."""
        if self._transport is not None and self._may_go_on():
            frames, self._backlog = self._backlog, deque()
            self._handle(frames, seconds, queued=True)
        return bool(self._backlog) and self._may_go_on()

    def pause_writing(self) -> None:
        self._writable = False
        self.stalled_since = self._loop.time()
        self._pace()

    def resume_writing(self) -> None:
        self._writable = True
        self._account.unsent_bytes = 0
        self.stalled_since = None
        self._pace()

    def close(self) -> None:
        """Close at once; what waits is given up."""
        if self._transport is not None:
            self._transport.abort()

    def close_for(self, reason: str) -> None:
        self._server.complain(self.host, reason)
        self.close()

    @property
    def half_frame(self) -> bool:
        """The peer has begun a frame and not finished it, though it is being listened to."""
        return self.is_read and self._splitter.pending_bytes > 0

    # -- requests

    def _handle(self, frames: Iterable[bytes], seconds: float, *, queued: bool = False) -> None:
        """Begin requests for so long, at least one; what is left, and what has to wait, is put aside."""
        self._busy = True
        left = iter(frames)
        begun_at = 0.0
        try:
            for frame in left:
                if self._is_held or not self._has_room() or not self._request(frame):
                    self._backlog.append(frame)
                    break
                if self._held_bytes > limits.HELD_BYTES:
                    self._flush()  # so that the transport can say that the peer does not read
                begun_at = begun_at or self._begun_at
                if self._clocked_at - begun_at >= seconds and not self._is_node:
                    break
            self._backlog.extend(left)
            if begun_at and not queued and not self._is_node:
                self._turns.spend(self, self._clocked_at - begun_at)
        except ProtocolError as error:
            self._refuse(error)
            return
        except Exception:
            logger.exception("a request failed in an unexpected way", extra={"client_host": self.host})
            self.close()
            return
        finally:
            self._busy = False
        self._flush()
        self._pace()

    def _begun(self, head: bytes, length: int) -> None:
        check_announced(head, length, is_node=self._is_node, on_probation=self.on_probation)

    def _request(self, frame: bytes) -> bool:
        """Begin a request. False if something has to take effect before it."""
        header = parse_request_header(frame)
        api_key, version, _, client_id, body_offset = header
        api = TABLE.get(api_key)
        if api is None or self.on_probation or not api.versions[0] <= version <= api.versions[1]:
            self._greet_or_refuse(api, header, frame)
            return True
        if self._awaited and not api.hot:
            self._is_held = True
            return False
        if api.for_peers:
            if self._context.peer is None:
                raise ProtocolError(f"{api.name} is for the nodes of the cluster")
        elif not (self._service.serving or api.always):
            self.close()  # this node has not caught up with its cluster; another one will answer
            return True
        if len(frame) > api.max_request_bytes:
            check_size(api, len(frame))
        begun = self._begun_at = self._clocked_at = self._monotonic()
        if api.decode is not None:
            request = api.decode(version, frame, body_offset)
        else:
            request = decode_request(api_key, version, frame, body_offset)
        context = self._context
        if context.version != version or context.client_id != client_id:
            context = self._context = Context(
                *(self._service, version, client_id, self.host, context.peer, context.operator), memory=self._account
            )
        holds = False
        outcome: Any
        try:
            if api.hot:
                outcome = api.handle(context, request)
                holds = isinstance(outcome, asyncio.Task)
            else:
                holds = api.overlaps is None or not api.overlaps(context)
                self._turns.began_at = begun
                outcome = self._begin(api, header, frame, context, request)
        except ApiError as error:
            outcome = self._excuse(api, context, request, error)
        kind = type(outcome)
        if kind is Encoded or kind is dict or outcome is None:
            parts = self._encode(api, header, outcome)
            if self._slots:
                self._slots.append(Slot(parts=parts))
            else:
                self._out.extend(parts)
            self._measure(api, begun)
        else:
            future = asyncio.ensure_future(outcome)
            self._clocked_at = self._monotonic()
            if holds and not self._is_node:
                self._awaited[future] = None
                self._is_held = not api.hot
            self._keep_place(future, Slot(len(frame)), api, header, context, request, begun)
        return True

    def _begin(self, api: Api, header: RequestHeader, frame: bytes, context: Context, request: Any) -> Any:
        """Begin a request whose log lines carry its name, those of its task, too. Raises ApiError."""
        line = REQUEST.set(RequestLine(api.name, header.correlation_id, header.client_id, self.host))
        try:
            if api.admit is not None:
                api.admit(context, request)
            if api.for_controller and not self._service.controller.leads:
                return begin(self._loop, self._hand_on(header, frame))
            outcome = api.handle(context, request)
            if isinstance(outcome, CoroutineType):
                return begin(self._loop, dispatch.in_slices(api, context, outcome))
            return outcome
        finally:
            REQUEST.reset(line)

    def _greet_or_refuse(self, api: Api | None, header: RequestHeader, frame: bytes) -> None:
        if api is None or self.on_probation:
            self._greet(header, frame)
        elif api is api_versions.API:
            self._answer_unsupported(header)
        else:
            raise ProtocolError(f"{api.name} version {header.api_version} is not supported")

    # -- other nodes

    def _greet(self, header: RequestHeader, frame: bytes) -> None:
        """Take a step of the handshake with a caller who says that it is a node."""
        if header.api_key != hello.API_KEY:
            reason = "too many connections" if self.on_probation else f"unknown API key {header.api_key}"
            raise ProtocolError(reason)
        answerer = self._answerer
        if answerer is None:
            assert self._transport is not None
            ends = (self._transport.get_extra_info("peername"), self._transport.get_extra_info("sockname"))
            answerer = self._answerer = self._server.answerer(local=hello.both_local(*ends))
        slot = Slot()
        self._slots.append(slot)
        try:
            body = answerer.answer(frame[header.body_offset :])
        except RefusedError as error:
            self._server.complain(self.host, f"not believed to be a node: {error}")
            parts = (hello_answer(header, hello.refusal(error)),)
            self._loop.call_later(REFUSAL_SECONDS, self._send_last, slot, parts)
            return
        if answerer.peer is not None:
            is_operator = answerer.peer == hello.OPERATOR
            peer = None if is_operator else answerer.peer
            self._context = Context(self._service, -1, "", self.host, peer, is_operator, memory=self._account)
            self._is_node = peer is not None
            self._account.trust()
            self._server.admit_peer(self)
        slot.parts = (hello_answer(header, body),)
        self._held_bytes += len(slot.parts[0])
        self._flush_slots()

    def _send_last(self, slot: Slot, parts: Sequence[Buffer]) -> None:
        slot.parts = parts
        self._held_bytes += len(parts[0])
        self._flush_slots()
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def _flush_slots(self) -> None:
        """Move answers whose turn has come to those that leave with the next write."""
        slots, out = self._slots, self._out
        while slots and slots[0].parts is not None:
            out.extend(slots.popleft().parts or ())

    async def _hand_on(self, header: RequestHeader, frame: bytes) -> Encoded:
        """Have the controller answer. Raises ApiError."""
        answer = await self._service.council.forward(frame, self.host, self._service.topics.new_ticket())
        head = response_header(header.api_key, header.api_version, header.correlation_id)
        return Encoded((answer[len(head) :],))

    # -- answers

    def _keep_place(
        self,
        future: asyncio.Future[Outcome],
        slot: Slot,
        api: Api,
        header: RequestHeader,
        context: Context,
        request: Any,
        begun: float,
    ) -> None:
        """The answer comes later; those of later requests wait behind it."""
        self._account.waiting_bytes += slot.request_bytes
        self._slots.append(slot)
        self._tasks[future] = None
        future.add_done_callback(lambda done: self._finished(done, slot, api, header, context, request, begun))

    def _finished(
        self,
        future: asyncio.Future[Outcome],
        slot: Slot,
        api: Api,
        header: RequestHeader,
        context: Context,
        request: Any,
        begun: float,
    ) -> None:
        self._tasks.pop(future, None)
        self._account.waiting_bytes -= slot.request_bytes
        if self._awaited.pop(future, _NOTHING) is None and not self._awaited:
            self._is_held = False
        if future.cancelled() or self._transport is None:
            if not future.cancelled():
                future.exception()
            return
        try:
            try:
                outcome = future.result()
            except ApiError as error:
                outcome = self._excuse(api, context, request, error)
            slot.parts = self._encode(api, header, outcome)
            if isinstance(outcome, Encoded) and outcome.reserved:
                self._account.reserve(-outcome.reserved)
                self._charge()
        except ProtocolError as error:
            self._refuse(error)
            return
        except Exception:
            logger.exception("a request failed in an unexpected way", extra=about(api, header, self.host))
            self.close()
            return
        self._measure(api, begun)
        self._flush_slots()
        if not self._busy and not self._flushing:
            # Others that finish in this turn of the loop (one sync ends many waits) leave in the same write.
            self._flushing = True
            self._loop.call_soon(self._flush_all)

    def _flush_all(self) -> None:
        self._flushing = False
        self._flush()
        self._pace()

    def _excuse(self, api: Api, context: Context, request: Any, error: ApiError) -> Outcome:
        if api.on_error is None:
            raise ProtocolError(f"{api.name}: {error}") from error
        answer = api.on_error(context, request, error)
        # An error that stands deeper in the answer; `_encode` counts those on top.
        if isinstance(answer, Encoded) or not answer.get("error_code"):
            self._service.count_error(api.name, error.code)
        return answer

    def _encode(self, api: Api, header: RequestHeader, outcome: Outcome) -> Sequence[Buffer]:
        if outcome is None:
            return ()
        head = response_header(api.key, header.api_version, header.correlation_id)
        if isinstance(outcome, Encoded):
            parts = outcome.parts
            if len(parts) == 1 and isinstance(body := parts[0], bytes):
                size = len(head) + len(body)
                self._held_bytes += size + 4
                return (_LENGTH.pack(size) + head + body,)
            size = len(head) + sum(map(len, parts))
            self._held_bytes += size + 4
            return (_LENGTH.pack(size) + head, *parts)
        if code := outcome.get("error_code"):
            self._service.count_error(api.name, code)
        body = encode_answer(api.key, header.api_version, outcome)
        self._held_bytes += len(head) + len(body) + 4
        return ((len(head) + len(body)).to_bytes(4, "big") + head + body,)

    def _answer_unsupported(self, header: RequestHeader) -> None:
        body = encode_answer(header.api_key, 0, api_versions.unsupported())
        answer = (len(body) + 4).to_bytes(4, "big") + header.correlation_id.to_bytes(4, "big", signed=True) + body
        self._held_bytes += len(answer)
        self._slots.append(Slot(parts=(answer,)))
        self._flush_slots()

    # -- pace and manners

    def _flush(self) -> None:
        out = self._out
        if out and self._transport is not None:
            self._out = []
            size = sum(map(len, out))
            self._held_bytes -= size
            if len(out) == 1:
                self._transport.write(out[0])
            else:
                self._transport.writelines(out)
            if not self._writable:
                self._account.unsent_bytes += size
                self._charge()

    def _has_room(self) -> bool:
        return (
            self._writable
            and len(self._slots) < limits.IN_FLIGHT_PER_CONNECTION
            and self._held_bytes <= limits.HELD_BYTES
        )

    def _may_go_on(self) -> bool:
        return not self._is_held and self._has_room()

    def _pace(self) -> None:
        """Read while the peer takes its answers and does not have too many open; queue with what was put aside."""
        transport = self._transport
        if transport is None:
            return
        account = self._account
        held_bytes = self._splitter.pending_bytes + account.waiting_bytes + self._held_bytes
        if held_bytes > ALLOWANCE_BYTES or self._backlog or not account.is_empty:
            self._charge()
        room = self._has_room()
        if self._backlog:
            if room and not self._is_held and not self._busy:
                self._turns.enter(self, len(self._backlog))
            room = room and not self._is_held and len(self._backlog) < limits.WAITING_FRAMES
        room = room and not account.paused
        if room != self.is_read:
            self.is_read = room
            self.last_active = self._loop.time()  # while it was not read from, the peer could not show that it is there
            (transport.resume_reading if room else transport.pause_reading)()

    def _charge(self) -> None:
        """Have counted what is held."""
        backlog_bytes = sum(map(len, self._backlog)) if self._backlog else 0
        self._account.charge(self._splitter.pending_bytes + backlog_bytes, self._held_bytes)

    def _measure(self, api: Api, begun: float) -> None:
        self._clocked_at = self._monotonic()
        seconds = self._clocked_at - begun
        histogram = self._histograms.get(api.key)
        if histogram is None:
            histogram = self._histograms[api.key] = self._service.counters.requests.setdefault(api.name, Histogram())
        histogram.observe(seconds)

    def _refuse(self, error: ProtocolError) -> None:
        self._service.counters.protocol_errors += 1
        self._server.complain(self.host, str(error))
        self.close()
