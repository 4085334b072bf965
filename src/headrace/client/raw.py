"""One request, one answer, over a plain socket: for the few APIs that librdkafka's Python client does not have.

Rules:
- Plaintext only. A connection that needs TLS or SASL gets a ClientError that says so.
- Messages are kio's; nothing is retried.
"""

from __future__ import annotations

import io
import socket
import struct
from types import TracebackType
from typing import Any

from headrace.client.connection import Connection, addresses
from headrace.client.errors import ClientError, UnreachableError
from headrace.core.limits import FRAME_BYTES

# After headrace.core.errors, which keeps kio's import light.
from kio.serial import entity_reader, entity_writer  # isort: skip
from kio.schema.find_coordinator.v3.request import FindCoordinatorRequest  # isort: skip
from kio.schema.find_coordinator.v3.response import FindCoordinatorResponse  # isort: skip
from kio.schema.offset_delete.v0 import request as deletion  # isort: skip
from kio.schema.offset_delete.v0.response import OffsetDeleteResponse  # isort: skip
from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest  # isort: skip
from kio.schema.describe_log_dirs.v4.response import DescribeLogDirsResponse  # isort: skip
from kio.schema.consumer_group_describe.v1.request import ConsumerGroupDescribeRequest  # isort: skip
from kio.schema.consumer_group_describe.v1.response import ConsumerGroupDescribeResponse  # isort: skip

Place = tuple[str, int]


class RawConnection:
    """A socket to one broker."""

    def __init__(self, host: str, port: int, timeout_s: float) -> None:
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as error:
            raise UnreachableError(f"cannot reach a broker at {host}:{port} ({error})", "UNREACHABLE") from None
        self._correlation_id = 0

    def call(self, request: Any, answer: type[Any]) -> Any:
        """Send `request` (a kio request of any API) and read its answer, a kio response of the same version."""
        self._correlation_id += 1
        header = request.__header_schema__(
            request_api_key=request.__api_key__,
            request_api_version=request.__version__,
            correlation_id=self._correlation_id,
            client_id="headrace",
        )
        body = io.BytesIO()
        entity_writer(type(header))(body, header)
        entity_writer(type(request))(body, request)
        content = self.exchange(body.getvalue(), type(request).__name__)
        _, skip = entity_reader(answer.__header_schema__)(content, 0)
        found, _ = entity_reader(answer)(content, skip)
        return found

    def exchange(self, frame: bytes, name: str) -> bytes:
        """Send a whole request and read the answer's frame, its header too. `name` is for complaints."""
        try:
            self._socket.sendall(struct.pack(">i", len(frame)) + frame)
            (size,) = struct.unpack(">i", self._exactly(4))
            if not 0 < size <= FRAME_BYTES:
                raise ClientError(f"the broker sent a frame of {size} bytes")
            return self._exactly(size)
        except OSError as error:
            raise ClientError(f"the broker did not answer {name} ({error})", "TIMED_OUT") from None

    @property
    def ends(self) -> tuple[Any, Any]:
        """Both addresses: the broker's and ours."""
        return self._socket.getpeername(), self._socket.getsockname()

    def _exactly(self, size: int) -> bytes:
        body = bytearray()
        while len(body) < size:
            piece = self._socket.recv(min(1 << 20, size - len(body)))
            if not piece:
                raise ConnectionError("connection closed")
            body += piece
        return bytes(body)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> RawConnection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_raw(connection: Connection) -> RawConnection:
    """A connection to the first bootstrap address. Raises ClientError if the client must not speak plaintext."""
    protocol = connection.properties.get("security.protocol", "plaintext")
    if protocol.lower() != "plaintext":
        raise ClientError(f"this needs a plaintext listener, not {protocol}", "UNSUPPORTED")
    host, port = addresses(connection.address)[0]
    return RawConnection(host, port, connection.timeout_s)


def open_coordinator(connection: Connection, group: str) -> RawConnection:
    with open_raw(connection) as raw:
        found = raw.call(FindCoordinatorRequest(key=group, key_type=0), FindCoordinatorResponse)  # type: ignore[arg-type]
        _refuse(found.error_code, f"find the coordinator of group {group}")
    return RawConnection(found.host, found.port, connection.timeout_s)


def consumer_group(connection: Connection, group: str) -> Any:
    """A group of the new protocol (KIP-848) as kio has it, with its epochs."""
    with open_coordinator(connection, group) as raw:
        request = ConsumerGroupDescribeRequest(group_ids=(group,), include_authorized_operations=False)  # type: ignore[arg-type]
        (found,) = raw.call(request, ConsumerGroupDescribeResponse).groups
    _refuse(found.error_code, f"describe group {group}")
    return found


def delete_offsets(connection: Connection, group: str, places: list[Place]) -> dict[Place, str]:
    """Forget a group's committed offsets. The error's name by partition, "" where it worked."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in places:
        by_topic.setdefault(topic, []).append(partition)
    request = deletion.OffsetDeleteRequest(
        group_id=group,  # type: ignore[arg-type]
        topics=tuple(
            deletion.OffsetDeleteRequestTopic(
                name=topic,  # type: ignore[arg-type]
                partitions=tuple(deletion.OffsetDeleteRequestPartition(partition_index=each) for each in indexes),  # type: ignore[arg-type]
            )
            for topic, indexes in by_topic.items()
        ),
    )
    with open_coordinator(connection, group) as raw:
        answer = raw.call(request, OffsetDeleteResponse)
    _refuse(answer.error_code, f"delete offsets of group {group}")
    return {
        (topic.name, part.partition_index): "" if part.error_code.value == 0 else part.error_code.name.upper()
        for topic in answer.topics
        for part in topic.partitions
    }


def partition_bytes(connection: Connection) -> dict[Place, int]:
    """Bytes on disk of every partition that the first bootstrap broker holds."""
    with open_raw(connection) as raw:
        answer = raw.call(DescribeLogDirsRequest(topics=None), DescribeLogDirsResponse)
    return {
        (topic.name, part.partition_index): part.partition_size
        for result in answer.results
        for topic in result.topics
        for part in topic.partitions
    }


def _refuse(code: Any, doing: str) -> None:
    if code.value != 0:
        raise ClientError(f"cannot {doing}: {code.name.replace('_', ' ')}", code.name.upper())
