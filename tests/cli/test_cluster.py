"""`headrace cluster` against a real cluster of three, and `headrace cluster init`, which needs none."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from headrace.cli import lost_quorum, serve
from headrace.client.cluster import Cluster as Operator
from headrace.client.connection import Connection
from headrace.client.errors import ClientError
from headrace.testing.cluster import Cluster

pytestmark = pytest.mark.timeout(400)

SECRET = "three of us know this"
PATIENCE_S = 120.0
PATIENT = ("--timeout", "30")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    # Patient with each other, so that a busy machine moves no leadership by itself.
    patience = ("--cluster-election-ms", "3000", "--cluster-session-ms", "9000", "--cluster-balance-leaders-ms", "0")
    flags = ("--cluster-secret", SECRET, "--flush", "os", *patience)
    with Cluster(tmp_path_factory.mktemp("cluster"), *flags, nodes=3) as running:
        yield running


@pytest.fixture
def operate(command, cluster, monkeypatch):
    """`headrace cluster WORDS...` as somebody who knows the secret."""
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", cluster.bootstrap_servers)
    monkeypatch.setenv("HEADRACE_CLUSTER_SECRET", SECRET)

    def call(*words: str, stdin: str = "") -> Any:
        return command("cluster", *words, *PATIENT, stdin=stdin)

    return call


@pytest.fixture
def topic(command, operate, cluster) -> Callable[..., str]:
    """Makes topics, and waits until every node has heard of them."""
    count = iter(range(100))

    def is_known(name: str, where: str) -> bool:
        with Operator(Connection(where, timeout_s=30)) as operator:
            try:
                return any(part.topic == name for part in operator.partitions())
            except ClientError:
                return False

    def make(*words: str) -> str:
        name = f"t{time.monotonic_ns()}-{next(count)}"
        until(lambda: command("topic", "create", name, "--if-not-exists", *words, *PATIENT).code == 0)
        until(lambda: all(is_known(name, node.bootstrap_servers) for node in cluster.nodes))
        return name

    return make


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.05)
    return found


def placed(command, name: str) -> list[tuple[list[int], int]]:
    """As any node tells it, which may be some moments behind: nothing, if it does not know the topic yet."""
    ran = command("topic", "describe", name, "--json", *PATIENT)
    return [(part["replicas"], part["leader"]) for part in ran.json[0]["partitions"]] if ran.code == 0 else []


# Looking


def test_status_shows_the_controller_and_every_node(operate, topic):
    topic("-p", "3")
    shown = operate("status")
    assert shown.code == 0, shown.err
    assert [line.split()[3] for line in shown.out.splitlines() if line.strip()[:1].isdigit()][:3] == ["alive"] * 3
    found = operate("status", "--json").json
    assert found["controller"] in (1, 2, 3)
    assert f"controller node {found['controller']}" in shown.out
    assert [node["node_id"] for node in found["nodes"]] == [1, 2, 3]
    assert [member["votes"] for member in found["quorum"]] == [True, True, True]
    assert found["partitions"]["count"] >= 3
    assert found["partitions"]["offline"] == []


def test_nodes_lists_addresses_and_roles(operate, cluster):
    found = operate("nodes", "--json").json
    assert [f"{node['host']}:{node['port']}" for node in found] == [node.bootstrap_servers for node in cluster.nodes]
    assert "controller" in operate("nodes").out


def test_one_node_of_the_list_is_enough(command, cluster):
    somewhere = f"127.0.0.1:1,{cluster.node(3).bootstrap_servers}"
    assert command("cluster", "nodes", "-b", somewhere, *PATIENT).code == 0


def test_looking_needs_no_secret_and_changing_does(command, cluster, monkeypatch):
    monkeypatch.delenv("HEADRACE_CLUSTER_SECRET", raising=False)
    words = ("-b", cluster.bootstrap_servers, *PATIENT)
    assert command("cluster", "status", *words).code == 0
    for given, said in (((), "give its secret: --secret or"), (("--secret", "guess"), "this is not its secret")):
        refused = command("cluster", "drain", "2", *given, *words)
        assert refused.code == 1
        assert said in refused.err
        assert refused.err.count("\n") == 1
    assert command("cluster", "nodes", "--json", *words).json[1]["state"] == "alive"


# Moving


def test_a_topic_is_reassigned_and_its_leaders_are_elected(operate, command, topic):
    name = topic("-p", "3", "-r", "1")
    ran = operate("reassign", name, "--replicas", "3,1")
    assert ran.code == 0, ran.err
    assert ran.out == "3 partitions moved\n"
    until(lambda: [replicas for replicas, _ in placed(command, name)] == [[3, 1], [1, 3], [3, 1]])
    assert operate("reassign", f"{name}:1", "-r", "2,3,1", "--json").json["partitions"][0]["replicas"] == [2, 3, 1]
    assert operate("elect", name).code == 0
    until(lambda: [leader for _, leader in placed(command, name)] == [3, 2, 3])
    assert operate("elect", name).out == "every partition is led by its preferred replica\n"
    assert operate("elect", f"{name}:0", "--unclean", "--yes").out == "every partition is led already\n"
    assert operate("reassign", "list", "--json").json == []


def test_a_drained_node_leads_nothing_until_it_may_again(operate, topic):
    topic("-p", "3", "-r", "3")
    alone = topic("-r", "1")
    operate("reassign", alone, "-r", "3")
    drained = operate("drain", "3")
    assert drained.code == 1, "one partition has nobody else"
    assert f"nobody else holds ({alone}:0" in drained.err
    operate("reassign", alone, "-r", "2,3")
    drained = operate("drain", "3")
    assert drained.code == 0, drained.err
    node = operate("nodes", "--json").json[2]
    assert (node["state"], node["leaders"]) == ("draining", 0)
    assert node["replicas"] > 0
    refused = operate("drain", "2", "--replicas", "--yes")
    assert (refused.code, "1 node would be left for" in refused.err) == (1, True), refused.err
    assert operate("nodes", "--json").json[1]["state"] == "alive", "what is refused changes nothing"
    assert operate("drain", "3", "--off").code == 0
    assert operate("nodes", "--json").json[2]["state"] == "alive"
    assert operate("elect").code == 0
    assert until(lambda: operate("nodes", "--json").json[2]["leaders"])


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("drain", "9"), 1, "there is no node 9; there are 1-3"),
        (("remove", "9"), 1, "there is no node 9; there are 1-3"),
        (("drain", "3", "--off", "--replicas"), 2, "contradict"),
        (("reassign", "nowhere", "-r", "1"), 1, "topic nowhere does not exist"),
        (("reassign", "nowhere"), 2, "give --replicas N,N,N or --cancel"),
        (("reassign", "nowhere", "-r", "1,x"), 2, "--replicas '1,x' is not N,N,N"),
        (("reassign", "nowhere", "-r", "1,1"), 2, "names a node twice"),
        (("reassign", "a:x", "-r", "1"), 2, "'a:x' is not TOPIC or TOPIC:P,P"),
        (("elect", "--unclean"), 2, "--unclean needs a topic"),
        (("status", "-X", "security.protocol=ssl"), 1, "needs a plaintext listener"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(operate, words, code, said):
    ran = operate(*words)
    assert ran.code == code, ran.err
    assert said in ran.err
    assert ran.err.count("\n") == 1


def test_what_the_cluster_refuses_for_a_partition_is_said(operate, topic):
    name = topic("-p", "2")
    assert f"{name}:0: The manual partition assignment includes broker 9" in operate("reassign", name, "-r", "9").err
    assert "nothing of" in operate("reassign", name, "--cancel").err
    assert "has no partition 7" in operate("reassign", f"{name}:7", "-r", "1").err
    asked = operate("elect", name, "--unclean")
    assert (asked.code, "add --yes" in asked.err) == (2, True)


def test_ctrl_c_ends_the_looking_and_says_that_the_cluster_goes_on(operate, topic, monkeypatch):
    from headrace.cli import operating

    name = topic("-r", "1")

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    moves = {(name, 0): ((1, 2), (2,), (1,))}
    monkeypatch.setattr(Operator, "reassignments", lambda self: moves)
    monkeypatch.setattr(operating.time, "sleep", interrupted)
    ran = operate("reassign", name, "-r", "2")
    assert ran.code == 130
    assert ran.err.endswith("the cluster goes on with it; see: headrace cluster status\n")


def test_a_dead_node_is_told_emptied_and_removed_and_nothing_is_lost(operate, command, topic, cluster):
    """The last of this file: it leaves two nodes."""
    name = topic("-p", "2", "-r", "1", "-c", "min.insync.replicas=1")
    assert operate("reassign", name, "-r", "3").code == 0
    assert "holds" in operate("remove", "3").err
    cluster.node(3).kill()

    def is_told(found: Any) -> bool:  # nodes and partitions are asked for one after the other
        return "offline:" in found.out and "warning: node 3 is down" in found.err

    down = until(lambda: found if is_told(found := operate("status")) else None)
    assert down.code == 1
    assert len(operate("status", "--json").json["partitions"]["offline"]) >= 2
    refused = operate("rebalance", "--dry-run")
    assert refused.code == 1
    assert "node 3 is down" in refused.err
    cluster.node(3).start()
    until(lambda: operate("status").code == 0)
    unasked = operate("drain", "3", "--replicas")
    assert (unasked.code, "will have fewer replicas" in unasked.err) == (2, True)
    drained = operate("drain", "3", "--replicas", "--yes")
    assert drained.code == 0, drained.err
    assert until(lambda: operate("nodes", "--json").json[2]["replicas"] == 0)
    until(lambda: (found := placed(command, name)) and all(3 not in replicas for replicas, _ in found))
    assert "is running: stop it first" in operate("remove", "3").err
    cluster.node(3).stop()
    until(lambda: operate("nodes", "--json").json[2]["state"] == "fenced")
    assert operate("remove", "3", "--json").json == {"removed": 3}
    left = operate("status", "--json").json
    assert [node["node_id"] for node in left["nodes"]] == [1, 2]
    assert sorted(member["node_id"] for member in left["quorum"]) == [1, 2]
    balanced = operate("rebalance", "--yes")
    assert balanced.code == 0, balanced.err
    assert operate("rebalance").out == "the cluster is in balance: nothing moves\n"


# Nobody decides


def test_status_tells_what_a_node_sees_when_the_quorum_is_lost(command, tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_CLUSTER_SECRET", raising=False)
    monkeypatch.setattr(lost_quorum, "ELECTION_S", 0.2)  # nobody will be elected here
    with Cluster(tmp_path, "--flush", "os", nodes=3) as running:
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", running.bootstrap_servers)
        running.node(2).kill()
        running.node(3).kill()

        def lost() -> Any:
            ran = command("cluster", "status", "--json", "--timeout", "2")  # asked again and again
            return ran if ran.code == 1 and ran.out and ran.json.get("voters_seen") == 1 else None

        found = until(lost).json
        assert (found["controller"], found["seen_by"], found["voters"]) == (None, 1, 3)
        assert found["last_controller"] in (1, 2, 3)
        assert found["nodes"][0]["gossip"] == "alive"
        shown = command("cluster", "status", *PATIENT)
        assert shown.code == 1
        assert "quorum lost: 1 of 3 nodes that vote are seen, and 2 are needed" in shown.out
        assert f"start node 2 ({running.node(2).bootstrap_servers}), node 3" in shown.err
        running.node(1).stop()
        running.node(1).launch()  # it cannot catch up, and tells all the same
        waiting = until(lost).json
        assert [node["node_id"] for node in waiting["nodes"]] == [1, 2, 3]
        running.node(2).start()
        until(lambda: (ran := command("cluster", "status", "--json")).out and ran.json.get("controller"))


# Preparing


def test_init_writes_private_files_that_serve_understands(command, tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_CLUSTER_SECRET", raising=False)
    ran = command("cluster", "init", str(tmp_path / "c"), "--nodes", "3", "--base-port", "19000")
    assert ran.code == 0, ran.err
    secret = (tmp_path / "c" / "secret").read_text().strip()
    assert len(secret) == 64
    assert secret not in ran.out
    for number in (1, 2, 3):
        path = tmp_path / "c" / f"node-{number}.yml"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert f"headrace serve --config {path}" in ran.out
        settings = serve._settings(["--config", str(path)])
        assert settings.broker.node_id == number
        assert settings.kafka.port == 18_999 + number
        assert settings.cluster.secret == secret
        assert (settings.broker.default_replication_factor, settings.broker.min_insync_replicas) == (3, 2)
    assert serve._settings(["--config", str(tmp_path / "c" / "node-1.yml")]).cluster.join is None
    again = command("cluster", "init", str(tmp_path / "c"))
    assert again.code == 2
    assert "is there already" in again.err
    assert (tmp_path / "c" / "secret").read_text().strip() == secret


def test_init_for_several_machines_listens_everywhere_and_tells_the_names(command, tmp_path):
    hosts = ("--host", "a.example@east", "--host", "b.example:9999@west", "--host", "a.example")
    ran = command("cluster", "init", str(tmp_path), *hosts, "--show-secret", "--json").json
    assert [node["address"] for node in ran["nodes"]] == ["a.example:9092", "b.example:9999", "a.example:9093"]
    assert ran["secret"] == (tmp_path / "secret").read_text().strip()
    second = yaml.safe_load((tmp_path / "node-2.yml").read_text())
    assert second["kafka"] == {"host": "0.0.0.0", "port": 9999, "advertised_host": "b.example"}
    assert second["broker"]["rack"] == "west"
    assert second["cluster"]["join"] == "a.example:9092,a.example:9093"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "0"), "1 to 100"),
        (("--nodes", "2", "--host", "a"), "--nodes 2, but 1 times --host"),
        (("--host", "a:b"), "is not HOST[:PORT][@RACK]"),
        (("--host", "a:1", "--host", "a:1"), "two nodes at a:1"),
        (("--replication-factor", "4"), "--replication-factor 4: there are 3 nodes"),
        (("--min-insync", "4"), "--min-insync 4: there are 3 replicas"),
        (("--base-port", "65534"), "ports end at 65535"),
    ],
)
def test_init_refuses_what_makes_no_cluster(command, tmp_path, words, said):
    ran = command("cluster", "init", str(tmp_path / "c"), *words)
    assert ran.code == 2
    assert said in ran.err
    assert not (tmp_path / "c").exists()
