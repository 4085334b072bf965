"""A frame whose first bytes are there: is it worth the memory that it will take?"""

from __future__ import annotations

from headrace.apis import TABLE
from headrace.apis.api import Api
from headrace.core.errors import ProtocolError
from headrace.core.limits import HEADER_BYTES
from headrace.gateways.kafka import hello


def check_announced(head: bytes, length: int, *, is_node: bool, on_probation: bool) -> None:
    """`head`: API key and version. Refuse now what would be refused when it is whole. Raises ProtocolError."""
    api_key = int.from_bytes(head[:2], "big", signed=True)
    api = TABLE.get(api_key)
    if api is None or on_probation:
        if api_key != hello.API_KEY or length > hello.MESSAGE_BYTES + HEADER_BYTES:
            raise ProtocolError(f"a request of {length} bytes for API key {api_key}, which is not served")
    elif api.for_peers and not is_node:
        raise ProtocolError(f"{api.name} is for the nodes of the cluster")
    else:
        check_size(api, length)


def check_size(api: Api, length: int) -> None:
    if length > api.max_request_bytes:
        raise ProtocolError(f"a {api.name} request of {length} bytes is too large")
