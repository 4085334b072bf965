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
# What passes by itself: a node is missed for a moment, or the controller has moved.
PASSING = frozenset(
    {KafkaError.INVALID_REPLICATION_FACTOR, KafkaError.NOT_CONTROLLER, KafkaError.REQUEST_TIMED_OUT}
    | {KafkaError._TIMED_OUT, KafkaError._TRANSPORT}
)


def create(admin: AdminClient, wanted: NewTopic) -> None:
    """Create a topic. Raises KafkaException if the cluster refuses, or has too few nodes for too long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    again = False
    while True:
        try:
            admin.create_topics([wanted])[wanted.topic].result(ANSWER_SECONDS)
            return
        except KafkaException as error:
            code = error.args[0].code()
            if again and code == KafkaError.TOPIC_ALREADY_EXISTS:
                return  # an earlier attempt has made it, though nobody said so
            if code not in PASSING or time.monotonic() > deadline:
                raise
        again = True
        time.sleep(0.1)
