"""ApiVersions, versions 0-4.

What we serve is derived from the table of APIs. A version that we do not know is answered in version 0 with
UNSUPPORTED_VERSION and our own range, so that the client can try again (KIP-511). The answer's header is always
version 0. From version 3 on features are told: with `transaction.version` 2, clients use the newer transaction protocol
(KIP-890); it is finalized if all the APIs of transactions are served. `group.version` 1 is the new group protocol
(KIP-848), `eligible.leader.replicas.version` 1 eligible leader replicas (KIP-966), which are tracked
as soon as all nodes run a release that knows of them.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.broker.decisions import tracks_eligible
from headrace.broker.image import Image
from headrace.core.errors import ErrorCode

TRANSACTIONS = frozenset({22, 24, 25, 26, 28})
TRANSACTION_VERSION = 2
GROUP_VERSION = 1
ELR_VERSION = 1
ZERO_FROM = 4  # older clients fail on a supported feature whose minimum is 0 (KIP-1022)


def handle(ctx: Context, request: Any) -> Answer:
    from headrace.apis import TABLE

    features = finalized_features(ctx.service.image)
    return {
        "error_code": ErrorCode.none,
        "api_keys": [_row(api) for api in TABLE.values() if not (api.for_peers or api.private)],
        "supported_features": [
            {"name": name, "min_version": 0, "max_version": level}
            for name, level in features.items()
            if ctx.version >= ZERO_FROM
        ],
        "finalized_features_epoch": 0,
        "finalized_features": [
            {"name": name, "min_version_level": level, "max_version_level": level} for name, level in features.items()
        ],
    }


def finalized_features(image: Image) -> dict[str, int]:
    """The level of each feature that is in force."""
    from headrace.apis import TABLE

    features = {"group.version": GROUP_VERSION}
    if tracks_eligible(image):
        features["eligible.leader.replicas.version"] = ELR_VERSION
    if TABLE.keys() >= TRANSACTIONS:
        features["transaction.version"] = TRANSACTION_VERSION
    return features


def unsupported() -> Answer:
    """The answer to a version from the future."""
    return {"error_code": ErrorCode.unsupported_version, "api_keys": [_row(API)]}


def _row(api: Api) -> Answer:
    low, high = api.versions
    return {
        "api_key": api.key,
        "min_version": low if api.advertise_from is None else api.advertise_from,
        "max_version": high if api.for_peers_from is None else api.for_peers_from - 1,
    }


API = Api(key=18, name="ApiVersions", versions=(0, 4), handle=handle)
