"""Brokers that are broken on purpose: proof that the oracles see.

Rules:
- A variant replaces methods of production classes for the time of a history; production code knows nothing of it.
- Each names the size of the cluster in which its flaw can show.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from headrace.apis import fetch
from headrace.broker import directory_state, turns
from headrace.broker.attendance import Attendance
from headrace.broker.configs import Configs
from headrace.broker.group_shard import GroupShard
from headrace.broker.known_logs import KnownLogs
from headrace.broker.offline_logs import OfflineLogs
from headrace.broker.partition import Partition
from headrace.broker.partitions import Partitions
from headrace.broker.quorum import Consensus
from headrace.broker.refusals import Refusals
from headrace.core.errors import ApiError, CorruptionError, ErrorCode
from headrace.gateways.kafka import connection
from headrace.gateways.kafka.connection import Connection
from headrace.isr import election
from headrace.isr.leader import LeaderReplicas
from headrace.raft.role import Role
from headrace.storage import identity, recovery
from headrace.storage.log import Log
from headrace.storage.producers import Producers
from headrace.storage.span import Span


@dataclass(frozen=True, slots=True)
class Variant:
    """`patches`: (class or module, name, replacement). `faults`: those that bring it to light; none named: all."""

    nodes: int
    patches: Callable[[], list[tuple[Any, str, Any]]]
    faults: tuple[str, ...] = ()
    flags: tuple[tuple[str, str], ...] = ()  # settings that help
    flush: str = "ack"
    programs: tuple[str, ...] = ()  # classes of faults that bring it to light


def _ack_before_save() -> list[tuple[Any, str, Any]]:
    advance = Partition.advance

    def advance_at_once(partition: Partition) -> None:
        partition.durable_ack = False
        advance(partition)

    grew = Partition._grew

    def grew_at_once(partition: Partition, size_bytes: int) -> None:
        partition.durable_ack = False
        grew(partition, size_bytes)

    return [(Partition, "advance", advance_at_once), (Partition, "_grew", grew_at_once)]


def _quorum_acks_before_save() -> list[tuple[Any, str, Any]]:
    act = Consensus._act

    def act_too_early(quorum: Consensus, ready: Any, **others: Any) -> None:
        act(quorum, ready, **others)
        quorum._transmit(ready.send_after_save)

    return [(Consensus, "_act", act_too_early)]


def _no_dedup_restore() -> list[tuple[Any, str, Any]]:
    def forget(examination: Any, now_ms: int) -> None:
        examination._found.producers = Producers()

    return [(recovery._Examination, "_restore_producers", forget)]


def _stale_read() -> list[tuple[Any, str, Any]]:
    read = fetch._read

    def read_beyond(ctx: Any, wanted: Any, *others: Any, **more: Any) -> Any:
        """Show what is not committed yet."""
        for want in wanted:
            partition = ctx.service.partitions.get(want.topic, want.partition)
            partition.high_watermark = max(partition.high_watermark, partition.log.end_offset)
        return read(ctx, wanted, *others, **more)

    def read_calmly(ctx: Any, wanted: Any, *others: Any, **more: Any) -> Any:
        try:
            return read_beyond(ctx, wanted, *others, **more)
        except Exception:
            return read(ctx, wanted, *others, **more)

    return [(fetch, "_read", read_calmly)]


def _forgets_aborts() -> list[tuple[Any, str, Any]]:
    return [(Log, "aborted_between", lambda *_: [])]


def _commits_offsets_early() -> list[tuple[Any, str, Any]]:
    send = GroupShard._send_in_order

    async def send_at_once(shard: Any) -> None:
        log = shard._log

        class Hasty:
            def __getattr__(self, name: str) -> Any:
                return getattr(log, name)

            async def committed(self, next_offset: int) -> None: ...

        shard._log = Hasty()
        try:
            await send(shard)
        finally:
            shard._log = log

    return [(GroupShard, "_send_in_order", send_at_once)]


def _truncates_on_bad_crc() -> list[tuple[Any, str, Any]]:
    def may_be_cut(examination: Any, segment: Any, following: int | None) -> bool:
        examination._found.recovery_point = min(examination._found.recovery_point, examination._expected)
        left = segment.file.size - segment.size
        examination._found.cuts.append(recovery.Cut(segment.base_offset, segment.size, left, "bad"))
        return bool(examination._expected == following)

    return [(recovery._Examination, "_may_be_cut", may_be_cut)]


def _unclean_election() -> list[tuple[Any, str, Any]]:
    elect = election.elect

    def elect_anybody(*given: Any, **others: Any) -> Any:
        return elect(*given, **{**others, "unclean": True})

    return [(election, "elect", elect_anybody)]


def _watermark_from_the_leader_alone() -> list[tuple[Any, str, Any]]:
    def advance(replicas: LeaderReplicas) -> bool:
        before = replicas.high_watermark
        replicas.high_watermark = max(before, replicas._end_offset)
        return replicas.high_watermark > before

    return [(LeaderReplicas, "_advance", advance)]


def _no_epoch_check() -> list[tuple[Any, str, Any]]:
    from headrace.broker import partition

    return [(partition, "diverging", lambda *_: None)]


def _votes_twice() -> list[tuple[Any, str, Any]]:
    return [(Role, "_may_vote_for", lambda *_: True)]


def _elects_who_lost_unsynced_bytes() -> list[tuple[Any, str, Any]]:
    return [(Configs, "synced", lambda *_: True)]


def _reads_unchecked() -> list[tuple[Any, str, Any]]:
    def believe(span: Span, data: bytes) -> tuple[int, int]:
        return max(0, span._start(data)), len(data)

    return [(Span, "_checked", believe)]


def _unreadable_logs_lead() -> list[tuple[Any, str, Any]]:
    return [(Partitions, "suspect", lambda *_: False), (Partitions, "_failed", lambda *_: None)]


def _absent_logs_are_new() -> list[tuple[Any, str, Any]]:
    return [(KnownLogs, "get", lambda *_: None)]


def _removes_what_does_not_fit() -> list[tuple[Any, str, Any]]:
    judge = identity.judge

    def judge_harshly(*given: Any, **others: Any) -> Any:
        try:
            return judge(*given, **others)
        except CorruptionError:
            return identity.Verdict.REMOVE

    return [(identity, "judge", judge_harshly)]


def _trusts_older_directories() -> list[tuple[Any, str, Any]]:
    return [(directory_state, "_why_restored", lambda *_: ""), (Attendance, "_check_age", lambda *_: None)]


def _open_failures_are_final() -> list[tuple[Any, str, Any]]:
    add = OfflineLogs.add

    def add_for_good(logs: OfflineLogs, place: Any, error: Any, **others: Any) -> None:
        add(logs, place, error, **others)
        logs.starved.clear()

    return [(OfflineLogs, "add", add_for_good)]


def _serves_floods_whole() -> list[tuple[Any, str, Any]]:
    return [(turns, "TURN_SECONDS", 1e6), (connection, "TURN_SECONDS", 1e6)]


def _takes_what_follows_a_refused_batch() -> list[tuple[Any, str, Any]]:
    check = Producers.check

    def check_without_gaps(producers: Producers, header: Any) -> Any:
        try:
            return check(producers, header)
        except ApiError as error:
            if error.code == ErrorCode.out_of_order_sequence_number:
                return None
            raise

    return [(Producers, "check", check_without_gaps), (Refusals, "check", lambda *_, **__: None)]


def _answers_without_end() -> list[tuple[Any, str, Any]]:
    return [(Connection, "_has_room", lambda *_: True)]


def _adopts_the_log_of_a_former_life() -> list[tuple[Any, str, Any]]:
    return [(identity, "judge", lambda *_, **__: identity.Verdict.OPEN), (KnownLogs, "get", lambda *_: None)]


VARIANTS: Final[dict[str, Variant]] = {
    "ack before save": Variant(1, _ack_before_save, ("lose_power", "slow_disk")),
    "no dedup restore": Variant(1, _no_dedup_restore, ("kill", "lose_power")),
    "stale read": Variant(1, _stale_read, ("lose_power", "slow_disk")),
    "aborts forgotten": Variant(1, _forgets_aborts),
    "offsets committed before they are saved": Variant(1, _commits_offsets_early, ("lose_power", "slow_disk")),
    "truncate on bad CRC": Variant(1, _truncates_on_bad_crc, ("rot", "kill")),
    "quorum acks before save": Variant(3, _quorum_acks_before_save, ("brownout",)),
    "vote twice": Variant(5, _votes_twice, ("partition", "isolate", "slow_network"), (("cluster.election_ms", "100"),)),
    "no epoch check": Variant(3, _no_epoch_check, ("isolate", "pause", "kill")),
    "high watermark from the leader alone": Variant(
        3, _watermark_from_the_leader_alone, ("isolate", "kill", "cut_one_way")
    ),
    "unclean election": Variant(5, _unclean_election, ("strand", "isolate", "kill")),
    "elects who lost unsynced bytes": Variant(
        3, _elects_who_lost_unsynced_bytes, ("lose_power", "kill", "terminate"), flush="os"
    ),
    "reads are not checked": Variant(3, _reads_unchecked, programs=("reads",)),
    "unreadable logs lead": Variant(3, _unreadable_logs_lead, programs=("reads",)),
    "absent logs are new": Variant(1, _absent_logs_are_new, programs=("folders",)),
    "removes what does not fit": Variant(3, _removes_what_does_not_fit, programs=("folders",)),
    "trusts older directories": Variant(3, _trusts_older_directories, programs=("directories",)),
    "open failures are final": Variant(1, _open_failures_are_final, programs=("files",)),
    "serves floods whole": Variant(1, _serves_floods_whole, programs=("floods",)),
    "takes what follows a refused batch": Variant(1, _takes_what_follows_a_refused_batch, programs=("full",)),
    "answers without end": Variant(1, _answers_without_end, programs=("floods",)),
    "adopts the log of a former life": Variant(3, _adopts_the_log_of_a_former_life, programs=("rebirth",)),
}


@contextmanager
def broken(name: str | None) -> Iterator[None]:
    """Run what is inside on a broker with this flaw; None: with none."""
    patches = VARIANTS[name].patches() if name is not None else []
    kept = [(owner, attribute, getattr(owner, attribute)) for owner, attribute, _ in patches]
    try:
        for patch in patches:
            setattr(*patch)
        yield
    finally:
        for patch in kept:
            setattr(*patch)
