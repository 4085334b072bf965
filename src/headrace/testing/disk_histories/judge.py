"""An independent judge of a history: what clients wrote down, against what a cluster holds.

    python judge.py SERVERS LEDGERS [--json REPORT] [--each-replica] [--seconds 120]

A script of its own, in a process of its own. Rules:
- It imports nothing of Headrace, and not the client library that the history used: it reads with kafka-python, CRC
  checks on. It knows the Kafka protocol's promises and the format below, and nothing else.
- LEDGERS is a folder of `*.jsonl` files, one JSON object per line; a last line that is not whole does not count. `is`
  says what a line is:

    topic      topic, partitions, transactional              nothing else may be in the topic, and nothing expires
    sent       by, n, topic, partition, value[, tx]          before the client library got it; n rises
    acked      by, n, offset                                 offset -1: acknowledged, without a place
    failed     by, n, why[, fatal]                           may be there or not; fatal: the client library gave up
    tx         tx, fate                                      committed or aborted, as told; all else: all or nothing
    read       by, committed, topic, partition, offset, value   what a consumer was given while things went wrong
    damaged    by, topic, partition, why                     a consumer was given bytes with a wrong checksum
    committed  group, topic, partition, offset               a commit that was acknowledged
    asking     id, group                                     before a consumer asks what is committed
    found      id, topic, partition, offset                  the answer

- `judge` is pure: a `Book` and what was read from the cluster in, violations out. Every kind is in `KINDS`.
- Ends with 0 if all promises were kept, 1 if not, 2 if it could not be found out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

KINDS = {
    "lost": "an acknowledged record is not at its offset",
    "doubled": "a record is in the log more than once",
    "foreign": "a record that nobody sent, or not there",
    "order": "records of one producer are not in the order in which it sent them",
    "gap": "offsets are missing",
    "aborted": "a reader of committed records got one of an aborted transaction",
    "torn": "some records of a transaction are visible, and others are not",
    "hidden": "a record that is committed is not visible to readers of committed records",
    "changed": "an offset had another record before",
    "group": "a committed offset of a group went back",
    "damaged": "bytes with a wrong checksum were served",
    "unreadable": "a partition cannot be read to its end",
    "unstable": "a transaction never ended",
    "refused": "an idempotent producer was broken",
}
SHOWN = 5
POLL_MS = 300
COMMITTED = "committed"
ABORTED = "aborted"


class Place(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class Violation(NamedTuple):
    kind: str
    where: str
    says: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.says}"


class Sent(NamedTuple):
    by: str
    n: int
    place: Place
    value: str
    tx: str | None


class Read(NamedTuple):
    """What somebody was given at an offset."""

    by: str
    committed: bool  # a reader of committed records
    place: Place
    offset: int
    value: str


@dataclass
class Book:
    """All ledgers of a history."""

    topics: dict[str, tuple[int, bool]] = field(default_factory=dict)  # partitions, transactional
    sent: dict[tuple[str, int], Sent] = field(default_factory=dict)
    acked: dict[tuple[str, int], int] = field(default_factory=dict)
    fates: dict[str, str] = field(default_factory=dict)
    reads: list[Read] = field(default_factory=list)
    commits: dict[str, dict[Place, int]] = field(default_factory=lambda: defaultdict(dict))  # the highest
    told: list[Violation] = field(default_factory=list)  # what the ledgers themselves tell

    @property
    def places(self) -> list[Place]:
        return [Place(topic, index) for topic, (count, _) in self.topics.items() for index in range(count)]


@dataclass
class View:
    """One reading of everything, from the leaders of that moment."""

    name: str
    committed: bool  # as a reader of committed records sees it
    records: dict[Place, dict[int, str]]  # by offset
    starts: dict[Place, int] = field(default_factory=dict)


# -- the ledgers -----------------------------------------------------------------------------------------------------


def load(folder: Path) -> Book:
    """Read all ledgers of a folder. Raises ValueError, or KeyError for a line that lacks something."""
    book = Book()
    for path in sorted(folder.glob("*.jsonl")):
        asked: dict[int, tuple[str, dict[Place, int]]] = {}
        for line in _whole_lines(path):
            _take(book, line, asked)
    return book


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    content = path.read_bytes()
    for line in content[: content.rfind(b"\n") + 1].splitlines():
        yield json.loads(line)


def _take(book: Book, line: dict[str, Any], asked: dict[int, tuple[str, dict[Place, int]]]) -> None:
    kind = line["is"]
    place = Place(line["topic"], line["partition"]) if "partition" in line else Place("", 0)
    if kind == "topic":
        book.topics[line["topic"]] = line["partitions"], line["transactional"]
    elif kind == "sent":
        book.sent[line["by"], line["n"]] = Sent(line["by"], line["n"], place, line["value"], line.get("tx"))
    elif kind == "acked":
        book.acked[line["by"], line["n"]] = line["offset"]
    elif kind == "failed":
        if line.get("fatal"):
            book.told.append(Violation("refused", line["by"], f"record {line['n']}: {line['why']}"))
    elif kind == "tx":
        book.fates[line["tx"]] = line["fate"]
    elif kind == "read":
        book.reads.append(Read(line["by"], line["committed"], place, line["offset"], line["value"]))
    elif kind == "damaged":
        book.told.append(Violation("damaged", str(place), f"{line['by']} was given it: {line['why']}"))
    elif kind == "committed":
        commits = book.commits[line["group"]]
        commits[place] = max(commits.get(place, 0), line["offset"])
    elif kind == "asking":
        asked[line["id"]] = line["group"], dict(book.commits[line["group"]])
    elif kind == "found":
        group, before = asked[line["id"]]
        if place in before and line["offset"] < before[place]:
            says = f"{place} was committed up to {before[place]}, and later {line['offset']} was found"
            book.told.append(Violation("group", group, says))
    else:
        raise ValueError(f"no ledger has lines that are {kind!r}")


# -- the judgement ---------------------------------------------------------------------------------------------------


def judge(book: Book, views: Iterable[View], offsets: dict[str, dict[Place, int]]) -> list[Violation]:
    """All that is wrong. `offsets`: what is committed in the end, by group."""
    views = list(views)
    found = list(book.told)
    by_value = {(sent.place, sent.value): sent for sent in book.sent.values()}
    for view in views:
        found += _judge_log(book, view, by_value)
        found += _judge_transactions(book, view, by_value) if view.committed else _judge_acknowledged(book, view)
    found += _judge_reads(book, views, by_value)
    for group, commits in book.commits.items():
        for place, offset in commits.items():
            now = offsets.get(group, {}).get(place)
            if now is None or now < offset:
                found.append(Violation("group", group, f"{place} was committed up to {offset}, and in the end {now}"))
    return list(dict.fromkeys(found))


def _judge_log(book: Book, view: View, by_value: dict[tuple[Place, str], Sent]) -> Iterator[Violation]:
    """Whatever the readers' isolation: known records, once, in order, without gaps."""
    for place, records in view.records.items():
        where = f"{place}, {view.name}"
        last: dict[str, tuple[int, int]] = {}
        seen: dict[str, int] = {}
        for offset, value in sorted(records.items()):
            sent = by_value.get((place, value))
            if sent is None:
                yield Violation("foreign", where, f"nobody sent there what is at offset {offset}: {value[:80]!r}")
                continue
            if value in seen:
                yield Violation("doubled", where, f"{sent.by} {sent.n} is at offsets {seen[value]} and {offset}")
            elif sent.by in last and last[sent.by][0] > sent.n:
                before = f"{last[sent.by][0]} at {last[sent.by][1]}"
                yield Violation("order", where, f"{sent.by} {sent.n} at offset {offset} comes behind {before}")
            seen[value] = offset
            last[sent.by] = max(last.get(sent.by, (-1, -1)), (sent.n, offset))
        if view.starts.get(place, 0) > 0:
            yield Violation("gap", where, f"the log begins at offset {view.starts[place]}")
        if not book.topics[place.topic][1] and list(records) and len(records) != max(records) + 1:
            missing = [offset for offset in range(max(records) + 1) if offset not in records]
            yield Violation("gap", where, f"{len(missing)} offsets are missing, the first is {missing[0]}")


def _judge_acknowledged(book: Book, view: View) -> Iterator[Violation]:
    """In the log as a whole, whatever became of transactions, every acknowledged record is at its offset."""
    offsets = {place: {value: offset for offset, value in records.items()} for place, records in view.records.items()}
    for key, offset in book.acked.items():
        sent = book.sent[key]
        records, now = view.records.get(sent.place), offsets.get(sent.place, {}).get(sent.value)
        if records is None or (offset < 0 and now is not None) or records.get(offset) == sent.value:
            continue
        there = records.get(offset)
        at = f"acknowledged at offset {offset}" if offset >= 0 else "acknowledged"
        instead = f"there is {there[:40]!r}" if there is not None else "there is nothing"
        where = f", and it is at {now}" if now is not None else ", and it is nowhere"
        yield Violation("lost", f"{sent.place}, {view.name}", f"{sent.by} {sent.n} was {at}; {instead}{where}")


def _judge_transactions(book: Book, view: View, by_value: dict[tuple[Place, str], Sent]) -> Iterator[Violation]:
    visible: dict[str, int] = Counter()
    whole: dict[str, int] = Counter()
    for sent in book.sent.values():
        if sent.tx is not None and sent.place in view.records:
            whole[sent.tx] += 1
    for place, records in view.records.items():
        there = set(records.values())
        for value in there:
            sent_there = by_value.get((place, value))
            if sent_there is not None and sent_there.tx is not None:
                visible[sent_there.tx] += 1
        for key in book.acked:
            sent = book.sent[key]
            if sent.place == place and sent.tx is None and sent.value not in there:
                yield Violation("hidden", f"{place}, {view.name}", f"{sent.by} {sent.n} was acknowledged")
    for tx, count in whole.items():
        fate, seen = book.fates.get(tx, "unknown"), visible[tx]
        if fate == ABORTED and seen:
            yield Violation("aborted", f"transaction {tx}, {view.name}", f"{seen} of its {count} records are visible")
        elif fate == COMMITTED and not seen:
            yield Violation("hidden", f"transaction {tx}, {view.name}", f"its {count} records are not visible")
        elif seen not in (0, count):
            yield Violation("torn", f"transaction {tx} ({fate}), {view.name}", f"{seen} of {count} records are visible")


def _judge_reads(book: Book, views: list[View], by_value: dict[tuple[Place, str], Sent]) -> Iterator[Violation]:
    """An offset means one record for everybody and for ever."""
    known: dict[tuple[Place, int], tuple[str, str]] = {}
    everything = [view for view in views if not view.committed]
    for view in everything:
        for place, records in view.records.items():
            for offset, value in records.items():
                by, before = known.setdefault((place, offset), (view.name, value))
                if before != value:
                    says = f"{before[:60]!r} for {by}, and {value[:60]!r} for {view.name}"
                    yield Violation("changed", f"{place} at offset {offset}", says)
    for view in views:
        reads = (Read(view.name, True, place, o, v) for place, r in view.records.items() for o, v in r.items())
        for read in reads if view.committed else ():
            yield from _compare(read, known, bool(everything))
    for read in book.reads:
        yield from _compare(read, known, bool(everything))
        sent = by_value.get((read.place, read.value))
        if read.committed and sent is not None and sent.tx is not None and book.fates.get(sent.tx) == ABORTED:
            yield Violation("aborted", f"{read.place} at offset {read.offset}", f"{read.by} read {sent.by} {sent.n}")


def _compare(read: Read, known: dict[tuple[Place, int], tuple[str, str]], is_all_known: bool) -> Iterator[Violation]:
    there = known.get((read.place, read.offset))
    if there is None and not is_all_known:
        there = known[read.place, read.offset] = read.by, read.value
    if there is None or there[1] != read.value:
        now = f"{there[1][:60]!r} for {there[0]}" if there is not None else "now there is nothing"
        says = f"{read.value[:60]!r} for {read.by}, and {now}"
        yield Violation("changed", f"{read.place} at offset {read.offset}", says)


# -- the cluster, through kafka-python -------------------------------------------------------------------------------


class Cluster:
    """What a cluster holds, as a stranger sees it."""

    def __init__(self, servers: str, seconds: float) -> None:
        from kafka.admin import KafkaAdminClient

        self._servers = servers.split(",")
        self._seconds = seconds
        self.violations: list[Violation] = []
        self._admin = self._insist(lambda: KafkaAdminClient(bootstrap_servers=self._servers))

    def _insist(self, call: Any, seconds: float | None = None) -> Any:
        """The answer, as soon as there is one. Raises the last KafkaError or a TimeoutError."""
        from kafka.errors import KafkaError

        deadline = time.monotonic() + (seconds or self._seconds)
        while True:
            try:
                return call()
            except (KafkaError, OSError):
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    def read(self, name: str, places: list[Place], *, committed: bool) -> View:
        """Everything from the beginning up to the end as it is now."""
        from kafka.errors import KafkaError

        view = View(name, committed, {place: {} for place in places})
        deadline = time.monotonic() + self._seconds
        left, why, positions = set(places), "", dict.fromkeys(places, 0)
        while left and time.monotonic() < deadline:
            try:
                with self._consumer(committed) as consumer:
                    self._read_on(consumer, view, left, positions, deadline)
            except (KafkaError, OSError) as error:
                why = f"{type(error).__name__}: {error}"
                if "crc check" in why:
                    self.violations.append(Violation("damaged", name, why))
                time.sleep(0.2)
        for place in sorted(left):
            says = f"after {self._seconds:.0f} s at offset {positions[place]}; {why or 'no error was told'}"
            self.violations.append(Violation("unreadable", f"{place}, {name}", says))
        return view

    def _consumer(self, committed: bool) -> Any:
        from kafka import KafkaConsumer

        level = "read_committed" if committed else "read_uncommitted"
        choices = {"check_crcs": True, "isolation_level": level, "auto_offset_reset": "none", "group_id": None}
        brisk = {"fetch_max_wait_ms": 50, "metadata_max_age_ms": 2000}
        return closing(KafkaConsumer(bootstrap_servers=self._servers, enable_auto_commit=False, **choices, **brisk))

    def _read_on(
        self, consumer: Any, view: View, left: set[Place], positions: dict[Place, int], deadline: float
    ) -> None:
        from kafka import TopicPartition

        parts = {TopicPartition(*place): place for place in left}
        consumer.assign(list(parts))
        view.starts.update({parts[part]: start for part, start in consumer.beginning_offsets(list(parts)).items()})
        ends = {parts[part]: end for part, end in consumer.end_offsets(list(parts)).items()}
        for part, place in parts.items():
            consumer.seek(part, max(positions[place], view.starts[place]))
        while time.monotonic() < deadline:
            for part, place in parts.items():
                positions[place] = consumer.position(part)
            left -= {place for place in left if positions[place] >= ends[place]}
            if not left:
                return
            for part, records in consumer.poll(timeout_ms=POLL_MS).items():
                there = view.records[parts[part]]
                for record in records:
                    value = record.value.decode(errors="backslashreplace") if record.value is not None else "<null>"
                    if there.setdefault(record.offset, value) != value:
                        says = f"{there[record.offset][:60]!r}, and then {value[:60]!r}"
                        where = f"{parts[part]} at offset {record.offset}, {view.name}"
                        self.violations.append(Violation("changed", where, says))

    def await_stable(self, places: list[Place]) -> None:
        """Until no transaction is open: what is not committed by then never will be."""
        from kafka import TopicPartition

        parts = [TopicPartition(*place) for place in places]
        deadline = time.monotonic() + self._seconds
        with self._consumer(True) as stable, self._consumer(False) as high:
            while True:
                ends = self._insist(lambda: high.end_offsets(parts))
                stuck = self._insist(lambda: stable.end_offsets(parts)).items()
                open_at = {Place(*part): (at, ends[part]) for part, at in stuck if at < ends[part]}
                if not open_at or time.monotonic() > deadline:
                    break
                time.sleep(0.2)
        for place, (at, end) in open_at.items():
            says = f"readers of committed records stop at {at}, and the log ends at {end}"
            self.violations.append(Violation("unstable", str(place), says))

    def committed(self, groups: Iterable[str]) -> dict[str, dict[Place, int]]:
        """The committed offsets of groups."""
        found = {group: self._insist(lambda group=group: self._admin.list_group_offsets(group)) for group in groups}
        return {
            group: {Place(part.topic, part.partition): value.offset for part, value in answer[group].items()}
            for group, answer in found.items()
        }

    def described(self, topics: Iterable[str], what: str) -> dict[Place, Any]:
        """What metadata say of every partition."""
        return {
            Place(topic["name"], part["partition_index"]): part[what]
            for topic in self._insist(lambda: self._admin.describe_topics(list(topics)))
            for part in topic["partitions"]
        }

    def turn(self, replicas: dict[Place, list[int]], seconds: float = 20.0) -> int:
        """Let the first of these replicas lead, each its partition, if they can. How many do."""
        from kafka import TopicPartition
        from kafka.errors import KafkaError

        wanted = {TopicPartition(*place): nodes for place, nodes in replicas.items()}
        parts: dict[str, list[int]] = defaultdict(list)
        for place in replicas:
            parts[place.topic].append(place.partition)
        deadline = time.monotonic() + seconds
        while True:
            try:
                self._admin.alter_partition_reassignments(wanted)
                self._admin.elect_leaders(0, dict(parts), raise_errors=False)
            except (KafkaError, OSError):
                pass
            leaders = self.described(parts, "leader_id")
            there: int = sum(leaders.get(place) == nodes[0] for place, nodes in replicas.items())
            if there == len(replicas) or time.monotonic() > deadline:
                return there
            time.sleep(0.3)


def observe(book: Book, cluster: Cluster, *, each_replica: bool) -> tuple[list[View], dict[str, dict[Place, int]]]:
    """Read everything, as all records and as committed ones; if wanted, all of it from each replica."""
    places = book.places
    cluster.await_stable(places)
    views = [cluster.read("committed records", places, committed=True)]
    replicas = cluster.described(book.topics, "replica_nodes") if each_replica else {}
    turns = max(map(len, replicas.values()), default=1)
    for turn in range(turns):
        name = "all records"
        if turns > 1:
            order = {place: nodes[turn:] + nodes[:turn] for place, nodes in replicas.items()}
            name = f"all records, turn {turn + 1} ({cluster.turn(order)} of {len(order)} leaders as wanted)"
        views.append(cluster.read(name, places, committed=False))
    if turns > 1:
        cluster.turn(replicas)
    return views, cluster.committed(book.commits)


def report(book: Book, views: list[View], violations: list[Violation]) -> dict[str, Any]:
    fates = Counter(book.fates.get(tx, "unknown") for tx in {sent.tx for sent in book.sent.values()} if tx)
    return {
        "kept": not violations,
        "violations": [violation._asdict() for violation in violations],
        "kinds": dict(Counter(violation.kind for violation in violations)),
        "sent": len(book.sent),
        "acknowledged": len(book.acked),
        "transactions": dict(fates),
        "reads while things went wrong": len(book.reads),
        "readings": {view.name: sum(map(len, view.records.values())) for view in views},
    }


def words(found: dict[str, Any]) -> str:
    """A report in plain words."""
    lines = [
        f"{found['acknowledged']} of {found['sent']} records were acknowledged; transactions: {found['transactions']}",
        *(f"read {count}: {name}" for name, count in found["readings"].items()),
    ]
    for kind, count in found["kinds"].items():
        lines.append(f"{count} x {kind} ({KINDS[kind]}):")
        shown = [each for each in found["violations"] if each["kind"] == kind][:SHOWN]
        lines += [f"    {each['where']}: {each['says']}" for each in shown]
    return "\n".join([*lines, "all promises were kept" if found["kept"] else "PROMISES WERE BROKEN"])


def main() -> int:
    parser = argparse.ArgumentParser(description="Judge a history by its ledgers and by what the cluster holds.")
    parser.add_argument("servers")
    parser.add_argument("ledgers", type=Path)
    parser.add_argument("--json", type=Path, help="write the report to this file, too")
    parser.add_argument("--each-replica", action="store_true", help="let each replica lead in turn, and read from it")
    parser.add_argument("--seconds", type=float, default=120.0, help="how long a reading may take (%(default)s)")
    choices = parser.parse_args()
    try:
        book = load(choices.ledgers)
        cluster = Cluster(choices.servers, choices.seconds)
        views, offsets = observe(book, cluster, each_replica=choices.each_replica)
    except Exception as error:  # whatever it is: nothing was found out
        print(f"no judgement: {type(error).__name__}: {error}")
        return 2
    found = report(book, views, [*cluster.violations, *judge(book, views, offsets)])
    if choices.json is not None:
        choices.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(words(found))
    return 0 if found["kept"] else 1


if __name__ == "__main__":
    sys.exit(main())
