"""ApiVersions, versions 0-4.

What we serve is derived from the table of APIs. A version that we do not know is answered in version 0 with
UNSUPPORTED_VERSION and our own range, so that the client can try again (KIP-511). The answer's header is always
version 0. No feature is finalized yet: clients then use the older transaction protocol.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ErrorCode


def handle(ctx: Context, request: Any) -> Answer:
    from headrace.apis import TABLE

    return {"error_code": ErrorCode.none, "api_keys": [_row(api) for api in TABLE.values()]}


def unsupported() -> Answer:
    """The answer to a version from the future."""
    return {"error_code": ErrorCode.unsupported_version, "api_keys": [_row(API)]}


def _row(api: Api) -> Answer:
    low, high = api.versions
    return {
        "api_key": api.key,
        "min_version": low if api.advertise_from is None else api.advertise_from,
        "max_version": high,
    }


API = Api(key=18, name="ApiVersions", versions=(0, 4), handle=handle)
