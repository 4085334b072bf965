"""Histories of real processes whose disks go wrong: the tools, and some of the histories."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace.testing.disk_histories import damage, shim
from headrace.testing.disk_histories.campaign import run
from headrace.testing.disk_histories.plan import CLUSTER_ONLY, Blow, Fault, Plan, plan

QUIET = Blow(Fault.KILL, 0.1, 0.5, 0, False, 1, 1, 0.3, 3, True, True, False, False)


def short(nodes: int, *blows: Blow) -> Plan:
    return Plan(0, nodes, blows)


# -- plans -----------------------------------------------------------------------------------------------------------


def test_a_seed_is_one_plan_for_ever():
    assert plan(7, nodes=3) == plan(7, nodes=3) != plan(7, nodes=1)
    assert plan(7, nodes=3) != plan(8, nodes=3)


@pytest.mark.parametrize("nodes", [1, 3])
def test_a_campaign_of_as_many_histories_as_there_are_faults_deals_each(nodes):
    dealt = {plan(seed, nodes=nodes).blows[0].fault for seed in range(1, len(Fault) + 1)}
    assert dealt == set(Fault) - (CLUSTER_ONLY if nodes == 1 else frozenset())


# -- harm ------------------------------------------------------------------------------------------------------------


def batch(base_offset: int, records: int = 2, size: int = 100) -> bytes:
    """As much of a batch as the headers tell."""
    head = (
        base_offset.to_bytes(8, "big") + (size - 12).to_bytes(4, "big") + bytes(11) + (records - 1).to_bytes(4, "big")
    )
    return head + bytes(size - len(head))


@pytest.fixture
def data(tmp_path) -> Path:
    folder = tmp_path / "node-1"
    for name in ("plain-0", "plain-1", "__consumer_offsets-0"):
        home = folder / "topics" / name
        home.mkdir(parents=True)
        (home / f"{0:020}.log").write_bytes(b"".join(batch(2 * number) for number in range(10)))
        (home / f"{0:020}.index").write_bytes(b"index of " + name.encode())
        (home / "owner").write_bytes(name.encode())
    (folder / "metadata").mkdir()
    (folder / "metadata" / "0.raft").write_bytes(b"entries")
    (folder / "meta.json").write_bytes(b"{}")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def harms() -> dict[str, Callable[[Path, Path], damage.Harm | None]]:
    return {
        "remove": lambda data, stash: damage.remove_folder(data / "topics" / "plain-0", stash),
        "older": lambda data, stash: damage.put_back_folder(
            data / "topics" / "plain-0", data / "topics" / "plain-1", stash
        ),
        "swap": lambda data, stash: damage.swap_folders(
            data / "topics" / "plain-0", data / "topics" / "plain-1", stash
        ),
        "empty": lambda data, stash: damage.replace_directory(data, None, stash),
        "small": lambda data, _: damage.change_file(
            damage.small_files(data / "topics" / "plain-0")[0], damage.flipped(0.5, 3), "flipped"
        ),
        "gone": lambda data, _: damage.change_file(damage.node_files(data)[0], lambda _: None, "removed"),
        "index": lambda data, _: damage.change_file(
            damage.index_files(data / "topics" / "plain-0")[0], damage.cut(0.5), "cut"
        ),
        "segment": lambda data, _: damage.flip_segment(
            damage.segments(data / "topics" / "plain-0")[0], 0.5, 2, evict=True
        ),
        "tail": lambda data, _: damage.append_garbage(data / "topics" / "plain-0", zeros=False, dice=random.Random(1)),
    }


@pytest.mark.parametrize("name", harms())
def test_every_harm_harms_and_can_be_undone(data, tmp_path, name):
    before = contents(data)
    harm = harms()[name](data, tmp_path / "stash")
    assert harm is not None and contents(data) != before
    harm.undo()
    assert contents(data) == before


def test_a_flipped_bit_lies_in_a_batch_with_whole_ones_behind_it(data):
    for where in (0.0, 0.5, 0.999):
        harm = damage.flip_segment(damage.segments(data / "topics" / "plain-0")[0], where, 0, evict=False)
        assert harm is not None and harm.batch is not None and harm.batch.next_offset <= 14
        assert harm.is_in_place()
        harm.undo()
        assert not harm.is_in_place()


def test_logs_that_a_broker_removes_after_a_harm_are_missed_and_those_set_aside_are_not(data, tmp_path):
    [owner] = damage.small_files(data / "topics" / "plain-0")
    harm = damage.change_file(owner, lambda _: None, "removed")
    assert harm.removed(data) == []
    (data / "stray").mkdir()
    (data / "topics" / "plain-0").rename(data / "stray" / "plain-0")
    assert harm.removed(data) == []
    [log] = (data / "stray" / "plain-0").glob("*.log")
    os.truncate(log, 100)
    assert harm.removed(data) == [f"plain-0/{log.name}"]


# -- the shim --------------------------------------------------------------------------------------------------------

PROBE = """
import os, sys
inside, outside = (os.open(path + "/file", os.O_RDWR | os.O_CREAT) for path in sys.argv[1:])
os.pwrite(inside, b"abc", 0)
print("begun", flush=True)
sys.stdin.readline()
def error(call):
    try:
        call()
    except OSError as error:
        return error.errno
    return 0
calls = [lambda fd: os.pwritev(fd, [b"x"], 0), lambda fd: os.pread(fd, 1, 0), os.fdatasync]
print([[error(lambda: call(fd)) for call in calls] for fd in (inside, outside)], os.statvfs(sys.argv[1]).f_bavail == 0)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ({}, "[[0, 0, 0], [0, 0, 0]] False"),
        ({"write": errno.ENOSPC}, f"[[{errno.ENOSPC}, 0, 0], [0, 0, 0]] True"),
        ({"read": errno.EIO, "sync": errno.EIO}, f"[[0, {errno.EIO}, {errno.EIO}], [0, 0, 0]] False"),
    ],
)
def test_the_shim_lets_calls_fail_below_a_folder_and_nowhere_else(tmp_path, errors, expected):
    library = shim.build(tmp_path)
    if library is None:
        pytest.skip("there is no compiler here")
    for name in ("inside", "outside"):
        (tmp_path / name).mkdir()
    disk = shim.Shim(library, tmp_path / "control")
    command = [sys.executable, "-c", PROBE, str(tmp_path / "inside"), str(tmp_path / "outside")]
    environ = {**os.environ, **disk.environ}
    with subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        with disk.fault(tmp_path / "inside", **errors):
            told, _ = process.communicate("\n")
    assert told.strip() == expected
    assert disk.hits == sum(bool(error) for error in errors.values())


# -- histories -------------------------------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.timeout(600)
def test_a_short_history_on_one_node_keeps_its_promises():
    run(short(1, QUIET, QUIET._replace(fault=Fault.TORN_TAIL)))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", sorted(set(Fault) - CLUSTER_ONLY))
def test_one_node_keeps_its_promises_through_every_fault(fault):
    run(short(1, QUIET._replace(fault=fault), QUIET))


@pytest.mark.process
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("all_down", [False, True])
@pytest.mark.parametrize("fault", [Fault.FOLDER_REMOVED, Fault.SEGMENT_FLIPPED, Fault.SMALL_REMOVED])
def test_three_nodes_mend_what_was_harmed_on_one(fault, all_down):
    run(short(3, QUIET._replace(fault=fault, all_down=all_down)))
