"""Records of groups as bytes."""

from __future__ import annotations

from headrace.group.consumer_records import ConsumerMemberKey, MemberFacts
from headrace.group.records import decode, encode


def test_equal_subscriptions_are_equal_bytes() -> None:
    # Of sixteen names in a small table some collide, whatever the seed of the hashes: sets keep those as they came.
    names = [f"topic-{number}" for number in range(16)]
    key = ConsumerMemberKey("g", "m")
    forward, backward = (encode(key, MemberFacts(topics=frozenset(order))) for order in (names, reversed(names)))
    assert forward == backward
    assert decode(*forward) == (key, MemberFacts(topics=frozenset(names)))
