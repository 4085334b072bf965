"""What consumer groups may ask for and how long they are remembered: the section `group`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.core.config import at_least, between, setting
from headrace.core.limits import MEMBERS_PER_GROUP, OFFSET_METADATA_BYTES
from headrace.core.units import DAY_MS, MIB, MINUTE_MS, SECOND_MS

Migration = Literal["bidirectional", "upgrade", "downgrade", "disabled"]


@dataclass(frozen=True, slots=True)
class GroupSettings:
    min_session_timeout_ms: int = setting(
        6 * SECOND_MS,
        help="Shortest session timeout that a member may ask for.",
        unit="ms",
        check=at_least(1),
        kafka="group.min.session.timeout.ms",
    )
    max_session_timeout_ms: int = setting(
        30 * MINUTE_MS,
        help="Longest session timeout that a member may ask for.",
        unit="ms",
        check=at_least(1),
        kafka="group.max.session.timeout.ms",
    )
    initial_rebalance_delay_ms: int = setting(
        100,
        help="How long an empty group waits for more members before its first generation. Apache Kafka waits 3s.",
        unit="ms",
        check=at_least(0),
        kafka="group.initial.rebalance.delay.ms",
    )
    max_size: int = setting(
        MEMBERS_PER_GROUP,
        help="Most members of a group.",
        check=between(1, 2**31 - 1),
        kafka="group.max.size",
    )
    max_groups: int = setting(
        50_000,
        help="Most groups that a node coordinates; whoever brings another one is told to try again.",
        check=at_least(1),
    )
    memory_bytes: int = setting(
        128 * MIB,
        help="Memory for groups, their members and their offsets, about. When it is used up, those that are there go "
        "on, and new groups, members and offsets are told to try again.",
        unit="bytes",
        check=at_least(MIB),
    )
    consumer_session_timeout_ms: int = setting(
        45 * SECOND_MS,
        help="Members of the new protocol (KIP-848) that are silent for so long are removed.",
        unit="ms",
        check=at_least(1),
        kafka="group.consumer.session.timeout.ms",
    )
    consumer_heartbeat_interval_ms: int = setting(
        5 * SECOND_MS,
        help="How often members of the new protocol are told to send heartbeats.",
        unit="ms",
        check=at_least(1),
        kafka="group.consumer.heartbeat.interval.ms",
    )
    consumer_max_size: int = setting(
        MEMBERS_PER_GROUP,
        help="Most members of a group of the new protocol.",
        check=between(1, 2**31 - 1),
        kafka="group.consumer.max.size",
    )
    consumer_migration: Migration = setting(
        "bidirectional",
        help="Whether groups with members may change between the classic and the new protocol.",
        kafka="group.consumer.migration.policy",
    )
    offsets_partitions: int = setting(
        8,
        help="Partitions of __consumer_offsets. It cannot change once the topic exists.",
        check=between(1, 1000),
        kafka="offsets.topic.num.partitions",
    )
    offsets_retention_ms: int = setting(
        7 * DAY_MS,
        help="Committed offsets of a group without members are forgotten after this time.",
        unit="ms",
        check=at_least(MINUTE_MS),
        kafka="offsets.retention.minutes",
    )
    keep_prefixes: str = setting(
        "headrace-spark-",
        help="Groups whose ids begin so never lose their offsets; several prefixes are separated by commas.",
    )
    offsets_check_interval_ms: int = setting(
        10 * MINUTE_MS,
        help="Time between looks for offsets to forget.",
        unit="ms",
        check=at_least(1),
        kafka="offsets.retention.check.interval.ms",
    )
    offset_metadata_bytes: int = setting(
        OFFSET_METADATA_BYTES,
        help="Longest text that a consumer may keep with an offset.",
        unit="bytes",
        check=at_least(0),
        kafka="offset.metadata.max.bytes",
    )
    compact_after_bytes: int = setting(
        16 * MIB,
        help="A partition of __consumer_offsets is rewritten when it has grown by so much.",
        unit="bytes",
        check=at_least(1),
    )
