"""How long a small request of one client waits while another client floods the broker.

    python -m bench.fairness [--only WORD] [--topics 1000] [--creations 10000] [--groups 28000]

One broker in memory as a process of its own. While a flood is under way, another connection asks for one thing over and
over, one request in flight, and the longest and the median wait are told. Small requests are ApiVersions, and Produce
of one record. On a machine that does other things too, only the order of magnitude counts.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from headrace.testing.peer import Peer, frame, payload
from headrace.testing.process import BrokerProcess
from headrace.wire.batch import build

Flood = Callable[[], None]
CREATE, DELETE, METADATA, PRODUCE, VERSIONS = 19, 20, 3, 0, 18


class Probe(threading.Thread):
    """Asks for one small thing after the other, until told to stop."""

    def __init__(self, where: str, key: int, version: int, request: Mapping[str, Any]) -> None:
        super().__init__(daemon=True)
        self._peer = Peer(where, timeout_s=600)
        self._request = frame(payload(key, version, request))
        self._stop_asked = threading.Event()
        self.waits: list[float] = []

    def run(self) -> None:
        while not self._stop_asked.is_set():
            begun = time.perf_counter()
            self._peer.send_bytes(self._request)
            self._peer.receive_frame()
            self.waits.append(time.perf_counter() - begun)
            time.sleep(0.002)
        self._peer.close()

    def finish(self) -> str:
        self._stop_asked.set()
        self.join()
        ms = sorted(wait * 1000 for wait in self.waits)
        return f"{ms[-1]:9.1f} ms at most, {statistics.median(ms):7.2f} ms median, {len(ms):6d} asked"


def measure(name: str, where: str, flood: Flood) -> None:
    produce = {"acks": 1, "timeout": 5000, "topic_data": [{"name": "small", "partition_data": [_batch()]}]}
    probes = {"ApiVersions": Probe(where, VERSIONS, 0, {}), "Produce": Probe(where, PRODUCE, 8, produce)}
    for probe in probes.values():
        probe.start()
    time.sleep(0.3)
    begun = time.perf_counter()
    flood()
    seconds = time.perf_counter() - begun
    time.sleep(0.05)
    print(f"{name}: {seconds:.2f} s")
    for kind, probe in probes.items():
        print(f"    {kind:12s} {probe.finish()}", flush=True)


def _batch() -> dict[str, Any]:
    return {"index": 0, "records": build([(b"k", b"v" * 100)], timestamp_ms=int(time.time() * 1000))}


def pipelined(where: str, connections: int, requests: int, key: int, version: int, request: Mapping[str, Any]) -> Flood:
    """So many requests on each of so many connections, all sent before an answer is read."""
    data = frame(payload(key, version, request)) * requests

    def run() -> None:
        peers = [Peer(where, timeout_s=600) for _ in range(connections)]
        for peer in peers:
            peer.send_bytes(data)
        readers = [threading.Thread(target=_read, args=(peer, requests)) for peer in peers]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    return run


def _read(peer: Peer, requests: int) -> None:
    for _ in range(requests):
        peer.receive_frame()
    peer.close()


def create(where: str, names: list[str], at_once: int = 500) -> None:
    with Peer(where, timeout_s=600) as peer:
        for at in range(0, len(names), at_once):
            peer.call(CREATE, 5, creation(names[at : at + at_once]))


def creation(names: list[str]) -> Mapping[str, Any]:
    rows = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    return {"topics": rows, "timeout": 60000}


def commit(where: str, groups: int) -> None:
    """Make groups by committing an offset in each, some hundreds in flight."""
    part = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    with Peer(where, timeout_s=600) as peer:
        for at in range(0, groups, 100):
            names = [f"group-{number}" for number in range(at, min(groups, at + 100))]
            rows = {"topics": [{"name": "small", "partitions": [part]}], "generation_id_or_member_epoch": -1}
            peer.send_bytes(b"".join(frame(payload(8, 6, {"group_id": name, **rows})) for name in names))
            for _ in names:
                peer.receive_frame()


def scenarios(broker: BrokerProcess, topics: int, creations: int, groups: int) -> dict[str, Flood]:
    where = broker.bootstrap_servers
    names = [f"t{number:05d}" for number in range(topics)]
    many = [f"many-{number:05d}" for number in range(creations)]
    everything = {"topics": None, "allow_auto_topic_creation": False}
    places = [{"name": name, "partitions": [{"partition_index": 0, "timestamp": -1}]} for name in names]
    fetched = [{"name": name, "partition_indexes": [0]} for name in names]
    configs = [{"resource_type": 2, "resource_name": name, "configuration_keys": None} for name in names]
    change = {"name": "retention.ms", "value": "1000000", "config_operation": 0}
    altered = [{"resource_type": 2, "resource_name": name, "configs": [change]} for name in names]
    group_names = [f"group-{number}" for number in range(groups)]

    def page() -> None:
        assert broker.http_url is not None
        urllib.request.urlopen(broker.http_url + "/metrics", timeout=600).read()

    return {
        "prepare topics": lambda: create(where, [*names, "small"]),
        f"128 Metadata, {topics} topics": pipelined(where, 1, 128, METADATA, 9, everything),
        f"20 x 100 Metadata, {topics} topics": pipelined(where, 20, 100, METADATA, 9, everything),
        f"128 Metadata by name, {topics} names": pipelined(
            where, 1, 128, METADATA, 9, {"topics": [{"name": n} for n in names], "allow_auto_topic_creation": False}
        ),
        f"20 x ListOffsets, {topics}": pipelined(where, 20, 1, 2, 5, {"replica_id": -1, "topics": places}),
        f"20 x OffsetFetch, {topics}": pipelined(where, 20, 1, 9, 7, {"group_id": "g", "topics": fetched}),
        f"20 x DescribeConfigs, {topics}": pipelined(where, 20, 1, 32, 4, {"resources": configs}),
        f"IncrementalAlterConfigs, {topics}": pipelined(
            where,
            1,
            1,
            44,
            1,
            {"resources": [{**row, "configs": [{**row["configs"][0], "config_operation": 0}]} for row in altered]},
        ),
        "prepare groups": lambda: commit(where, groups),
        f"20 x ListGroups, {groups}": pipelined(where, 20, 1, 16, 4, {}),
        f"DescribeGroups, {groups}": pipelined(where, 1, 1, 15, 5, {"groups": group_names}),
        f"/metrics, {groups} groups": page,
        f"CreateTopics, {creations}": pipelined(where, 1, 1, CREATE, 5, creation(many)),
        f"128 Metadata, {topics + creations} topics": pipelined(where, 1, 128, METADATA, 9, everything),
        f"20 x 100 Metadata, {topics + creations} topics": pipelined(where, 20, 100, METADATA, 9, everything),
        f"DescribeLogDirs, {topics + creations}": pipelined(where, 1, 1, 35, 2, {"topics": None}),
        f"DeleteTopics, {creations}": pipelined(where, 1, 1, DELETE, 5, {"topic_names": many, "timeout": 60000}),
        "auto-create, 9000": pipelined(
            where,
            1,
            1,
            METADATA,
            9,
            {"topics": [{"name": f"auto-{n}"} for n in range(9000)], "allow_auto_topic_creation": True},
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="measure floods whose names hold this")
    parser.add_argument("--but", default="nothing", help="leave out floods whose names hold this")
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--creations", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=28_000)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        BrokerProcess(Path(folder) / "data", "--storage-kind", "memory") as broker,
    ):
        create(broker.bootstrap_servers, ["small"])
        for name, flood in scenarios(broker, options.topics, options.creations, options.groups).items():
            if name.startswith("prepare"):
                flood()
            elif options.only in name and options.but not in name:
                measure(name, broker.bootstrap_servers, flood)


if __name__ == "__main__":
    main()
