"""WriteTxnMarkers, versions 1-2: a coordinator ends a transaction in the partitions of another broker.

For brokers only. One node writes its markers itself, so whoever sends this is a client, and is refused with
CLUSTER_AUTHORIZATION_FAILED for every partition.
"""

from __future__ import annotations

from typing import Any

from headrace.apis.api import Answer, Api, Context
from headrace.core.errors import ErrorCode


def handle(ctx: Context, request: Any) -> Answer:
    refused = ErrorCode.cluster_authorization_failed
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": index, "error_code": refused} for index in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.markers
        ]
    }


API = Api(key=27, name="WriteTxnMarkers", versions=(1, 2), handle=handle)
