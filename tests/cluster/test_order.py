"""Requests of one connection take effect in order on a node that has to hand some of them on to the controller."""

from __future__ import annotations

import pytest

from headrace.core.errors import ErrorCode
from headrace.testing.cluster import Cluster
from headrace.testing.peer import Peer, frame, payload

pytestmark = [pytest.mark.process, pytest.mark.timeout(600)]

CREATE_TOPICS, DELETE_TOPICS, METADATA = 19, 20, 3


def test_what_the_controller_did_is_seen_on_the_node_that_was_asked(tmp_path):
    with Cluster(tmp_path, nodes=3) as cluster:
        for node in cluster.nodes:
            for number in range(5):
                name = f"t-{node.node_id}-{number}"
                look = (METADATA, 9, {"topics": [{"name": name}], "allow_auto_topic_creation": False})
                wanted = {"name": name, "num_partitions": 2, "replication_factor": 3}
                requests = [
                    (CREATE_TOPICS, 5, {"topics": [wanted], "timeout": 30000}),
                    look,
                    (DELETE_TOPICS, 5, {"topic_names": [name], "timeout": 30000}),
                    look,
                ]
                with Peer(node.bootstrap_servers) as peer:
                    peer.send_bytes(b"".join(frame(payload(*one, at)) for at, one in enumerate(requests)))
                    answers = [peer.receive(one[0], one[1], at) for at, one in enumerate(requests)]
                assert answers[0].topics[0].error_code == ErrorCode.none
                assert len(answers[1].topics[0].partitions) == 2
                assert answers[2].responses[0].error_code == ErrorCode.none
                assert answers[3].topics[0].error_code == ErrorCode.unknown_topic_or_partition
