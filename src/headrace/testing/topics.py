"""Topics for tests on clusters.

A busy machine makes nodes miss each other for a moment, and a topic needs all its replicas at once: who wants one tries
until they are there.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

ANSWER_SECONDS = 60.0
PATIENCE_SECONDS = 120.0


def create(admin: AdminClient, wanted: NewTopic) -> None:
    """Create a topic. Raises KafkaException if the cluster refuses, or has too few nodes for too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            admin.create_topics([wanted])[wanted.topic].result(ANSWER_SECONDS)
            return
        except KafkaException as error:
            if error.args[0].code() != KafkaError.INVALID_REPLICATION_FACTOR or time.monotonic() > deadline:
                raise
        time.sleep(0.1)
