"""`headrace cluster init`: a secret and a file of settings for each node of a new cluster.

Rules:
- Nothing is overwritten. Files that hold the secret can be read by their owner alone.
- The secret is not printed unless somebody asks for it.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from headrace.cli import output
from headrace.cli.options import Json
from headrace.cli.report import UsageError
from headrace.core.errors import ConfigError

HOST: Final = "127.0.0.1"
KAFKA_PORT: Final = 9092
HTTP_PORT: Final = 8080
LOCAL_HTTP_PORT: Final = 18080  # several on one machine stay clear of what is usually there
MOST_NODES: Final = 100
SECRET_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Seat:
    """One node: its number, and where it lives."""

    number: int
    host: str
    port: int
    http_port: int
    rack: str | None = None

    @property
    def address(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


Directory = Annotated[Path, typer.Argument(metavar="[DIR]", help="Where the files go. [cluster]", show_default=False)]
Nodes = Annotated[int | None, typer.Option("--nodes", "-n", metavar="N", help="How many nodes. [3]")]
Hosts = Annotated[
    list[str],
    typer.Option(
        "--host",
        metavar="HOST[:PORT][@RACK]",
        help="A node's machine, as others and clients reach it; once per node. Without it, all are on this one.",
        show_default=False,
    ),
]
Port = Annotated[
    int, typer.Option("--base-port", metavar="PORT", min=1, max=65_535, help="Of the first node on a machine.")
]
DataDir = Annotated[
    str | None, typer.Option("--data-dir", metavar="DIR", help="Of every node's data. [DIR/data, headrace-data]")
]
Factor = Annotated[
    int | None, typer.Option("--replication-factor", "-r", metavar="N", help="Of new topics. [3, or all nodes]")
]
InSync = Annotated[
    int | None,
    typer.Option("--min-insync", metavar="N", help="Replicas that must have a write with acks=all. [a majority]"),
]


def init(
    directory: Directory = Path("cluster"),
    nodes: Nodes = None,
    host: Hosts = [],  # noqa: B006 - Typer copies it
    base_port: Port = KAFKA_PORT,
    data_dir: DataDir = None,
    replication_factor: Factor = None,
    min_insync: InSync = None,
    show_secret: Annotated[bool, typer.Option("--show-secret", help="Print the secret, too.")] = False,
    json: Json = False,
) -> None:
    """Prepare a cluster: a secret, and settings for each node.

    \b
      headrace cluster init                                         three nodes on this machine, files in ./cluster
      headrace cluster init prod --host a.example --host b.example --host c.example
      headrace cluster init prod --host a.example@east --host b.example@west --host c.example@north

    \b
    DIR/secret       what all nodes know and nobody else; also lets `headrace cluster drain` and the like work
    DIR/node-N.yml   for `headrace serve --config`; copy it to node N's machine, and keep it private

    Start node 1 first: it founds the cluster, and the others join it. To only try a cluster on this machine, there is
    `headrace cluster up`.
    """
    seats = _seats(nodes, host, base_port)
    factor, insync = _redundancy(len(seats), replication_factor, min_insync)
    secret = os.urandom(SECRET_BYTES).hex()
    files = {directory / "secret": secret + "\n"}
    for seat in seats:
        where = _data_dir(directory, seat, data_dir, local=not host)
        content = _settings(seat, seats, where, factor, insync, secret, local=not host)
        files[directory / f"node-{seat.number}.yml"] = content
    _write(directory, files)
    if json:
        document: dict[str, Any] = {
            "files": [str(path) for path in files],
            "nodes": [
                {"node": seat.number, "address": seat.address, "rack": seat.rack, "start": _command(directory, seat)}
                for seat in seats
            ],
            "replication_factor": factor,
            "min_insync_replicas": insync,
        }
        output.emit(document | ({"secret": secret} if show_secret else {}))
        return
    _tell(directory, seats, factor, insync)
    if show_secret:
        print(f"\nsecret: {secret}")


def _redundancy(nodes: int, factor: int | None, insync: int | None) -> tuple[int, int]:
    """How many replicas new topics have, and how many of them a write needs."""
    factor = factor if factor is not None else min(3, nodes)
    if not 1 <= factor <= nodes:
        raise UsageError(f"--replication-factor {factor}: there are {nodes} nodes")
    usual = factor // 2 + 1 if factor > 2 else 1  # of two, both would be needed: then either one's death stops writes
    insync = insync if insync is not None else usual
    if not 1 <= insync <= factor:
        raise UsageError(f"--min-insync {insync}: there are {factor} replicas")
    return factor, insync


def _command(directory: Path, seat: Seat) -> str:
    return f"headrace serve --config {shlex.quote(str(directory / f'node-{seat.number}.yml'))}"


def _seats(count: int | None, hosts: list[str], base_port: int) -> list[Seat]:
    http_port = HTTP_PORT if hosts else LOCAL_HTTP_PORT
    if not hosts:
        count = 3 if count is None else count
        if not 1 <= count <= MOST_NODES:
            raise UsageError(f"--nodes {count}: there may be 1 to {MOST_NODES}")
        hosts = [HOST] * count
    elif count not in (None, len(hosts)):
        raise UsageError(f"--nodes {count}, but {len(hosts)} times --host")
    used: dict[str, int] = {}
    seats = []
    for number, text in enumerate(hosts, 1):
        place, _, rack = text.partition("@")
        name, port = _host_and_port(place)
        nth = used.get(name, 0)
        used[name] = nth + 1
        seats.append(Seat(number, name, base_port + nth if port is None else port, http_port + nth, rack or None))
        if seats[-1].port > 65_535:
            raise UsageError(f"node {number} would need port {seats[-1].port}; ports end at 65535")
    addresses = [seat.address for seat in seats]
    if twice := next((address for address in addresses if addresses.count(address) > 1), None):
        raise UsageError(f"two nodes at {twice}")
    return seats


def _host_and_port(text: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, ""
    host = host.strip("[]")
    if not host or any(letter in host for letter in " ,/") or (port and not port.isdigit()) or (colon and not port):
        raise UsageError(f"--host {text!r} is not HOST[:PORT][@RACK]")
    return host, int(port) if port else None


def _data_dir(directory: Path, seat: Seat, wanted: str | None, *, local: bool) -> str:
    if local:
        return str((Path(wanted) if wanted else directory.absolute() / "data") / f"node-{seat.number}")
    return wanted or "headrace-data"


def _settings(
    seat: Seat, seats: list[Seat], data_dir: str, factor: int, insync: int, secret: str, *, local: bool
) -> str:
    import yaml

    broker: dict[str, Any] = {"node_id": seat.number}
    if seat.rack is not None:
        broker["rack"] = seat.rack
    broker |= {"default_replication_factor": factor, "min_insync_replicas": insync}
    kafka: dict[str, Any] = {"host": HOST if local else "0.0.0.0", "port": seat.port}
    if not local:
        kafka["advertised_host"] = seat.host
    cluster: dict[str, Any] = {"secret": secret}
    if seat.number > 1:
        cluster["join"] = ",".join(other.address for other in seats if other is not seat)
    document = {
        "broker": broker,
        "kafka": kafka,
        "http": {"port": seat.http_port},
        "storage": {"data_dir": data_dir},
        "cluster": cluster,
    }
    head = f"# Node {seat.number} of {len(seats)}. Holds the cluster's secret: keep it private.\n"
    return head + yaml.safe_dump(document, sort_keys=False)


def _write(directory: Path, files: dict[Path, str]) -> None:
    if there := [path for path in files if path.exists()]:
        raise ConfigError(f"{there[0]} is there already: a cluster was prepared in {directory}; choose another place")
    directory.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(content)


def _tell(directory: Path, seats: list[Seat], factor: int, insync: int) -> None:
    last = f" to node-{seats[-1].number}.yml" if len(seats) > 1 else ""
    print(f"wrote {directory / 'secret'} and {directory / 'node-1.yml'}{last}; keep them private\n")
    print(f"new topics have {factor} replicas; a write with acks=all needs {insync} of them\n")
    print("start node 1 first, the others when it is ready:")
    for seat in seats:
        print(f"  {_command(directory, seat)}    # {seat.address}{f', rack {seat.rack}' if seat.rack else ''}")
    print("\nthen:")
    print(f"  export HEADRACE_BOOTSTRAP={','.join(seat.address for seat in seats)}")
    print(f'  export HEADRACE_CLUSTER_SECRET="$(cat {shlex.quote(str(directory / "secret"))})"')
    print("  headrace cluster status")
