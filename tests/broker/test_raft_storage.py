"""Raft's storage in files: what was acknowledged survives, what was torn is cut, what is damaged is refused."""

from __future__ import annotations

from random import Random

import pytest

from headrace.broker.raft_storage import RaftStorage, UnsavedStorage, read
from headrace.core.errors import CorruptionError, DiskFailedError, DiskFullError, StorageError
from headrace.raft.membership import founding
from headrace.raft.ready import Save
from headrace.raft.records import Entry, HardState, Membership, Snapshot
from headrace.storage.memory import MemoryFiles
from headrace.testing.files import FaultyFiles, PowerCutError


def put(storage, *saves: Save) -> None:
    storage.write(saves)
    for save in saves:
        storage.save(save)


def entries(first: int, last: int, term: int = 1) -> tuple[Entry, ...]:
    return tuple(Entry(index, term, b"payload %d" % index) for index in range(first, last + 1))


def state(storage) -> tuple:
    kept = storage.entries(storage.first_index(), storage.last_index() + 1, 2**62) if storage.last_index() else ()
    return storage.hard_state(), storage.snapshot(), list(kept)


def snapshot(index: int, term: int = 1) -> Snapshot:
    return Snapshot(index, term, Membership((1,)), b"image " * 100)


@pytest.fixture(params=["memory", "files"])
def storage(request):
    return UnsavedStorage() if request.param == "memory" else RaftStorage.open(MemoryFiles())


def test_a_new_storage_is_empty(storage):
    assert (storage.hard_state(), storage.snapshot(), storage.first_index(), storage.last_index()) == (
        HardState(),
        Snapshot(),
        1,
        0,
    )


def test_later_entries_replace_earlier_ones_from_their_index_on(storage):
    put(storage, Save(entries=entries(1, 5)))
    put(storage, Save(HardState(2, 7), entries=entries(3, 4, term=2)))
    assert [entry.term for entry in storage.entries(1, 5, 2**62)] == [1, 1, 2, 2]
    assert storage.last_index() == 4
    assert storage.hard_state() == HardState(2, 7)


def test_a_leaders_snapshot_takes_the_place_of_the_log(storage):
    put(storage, Save(entries=entries(1, 5)))
    put(storage, Save(snapshot=snapshot(9, 3)), Save(entries=(Entry(10, 3, b"x"),)))
    assert (storage.first_index(), storage.last_index(), storage.term(9)) == (10, 10, 3)


def test_compaction_keeps_what_the_snapshot_does_not_cover(storage):
    put(storage, Save(HardState(1, 1), entries=entries(1, 8)))
    storage.rewrite(snapshot(6))
    put_later = Save(entries=entries(9, 9))
    storage.compact(snapshot(6))
    put(storage, put_later)
    assert (storage.first_index(), storage.last_index(), storage.term(6)) == (7, 9, 1)


def test_everything_comes_back_after_a_clean_end():
    files = MemoryFiles()
    storage = RaftStorage.open(files)
    put(storage, founding([1]))
    put(storage, Save(HardState(3, 1), entries=entries(2, 20)))
    storage.rewrite(snapshot(10))
    storage.compact(snapshot(10))
    put(storage, Save(entries=entries(21, 25)))
    before = state(storage)
    storage.close()
    again = RaftStorage.open(files)
    assert state(again) == before
    assert len(files.names("metadata")) == 1


def life(files, rng: Random, acknowledged: list) -> None:
    """Saves of all kinds; `acknowledged` has the state after each that returned."""
    storage = RaftStorage.open(files)
    acknowledged.append(state(storage))
    term = 1
    for _ in range(12):
        last = storage.last_index()
        choice = rng.randrange(6)
        if choice == 0 and last > storage.snapshot().index:
            mark = Snapshot(last, storage.term(last), Membership((1,)), rng.randbytes(700))
            storage.rewrite(mark)
            storage.compact(mark)
        elif choice == 1:
            put(storage, Save(HardState(term, 1), Snapshot(last + 3, term, Membership((1, 2)), b"theirs")))
        else:
            term += rng.randrange(2)
            first = rng.randint(max(storage.first_index(), last - 2), last + 1)
            more = tuple(Entry(first + n, term, rng.randbytes(rng.randrange(900))) for n in range(rng.randint(1, 4)))
            put(storage, Save(HardState(term, None), entries=more), Save(HardState(term, 1)))
        acknowledged.append(state(storage))


@pytest.mark.parametrize("seed", range(3))
def test_no_power_cut_loses_what_was_acknowledged(seed):
    whole = FaultyFiles()
    life(whole, Random(seed), [])
    for cut in range(whole.operations):
        files, rng = FaultyFiles(), Random(seed)
        acknowledged: list = []
        files.cut_power_at(cut)
        with pytest.raises(PowerCutError):
            life(files, rng, acknowledged)
        after = files.power_cut(Random(cut))
        found = state(RaftStorage.open(after))
        if acknowledged:
            assert found[0].term >= acknowledged[-1][0].term
            kept = {entry.index: entry for entry in found[2]}
            covered = found[1].index
            last_snapshot, last_entries = acknowledged[-1][1], acknowledged[-1][2]
            assert covered >= last_snapshot.index
            # A save under way may have replaced a tail; what comes before its first index is there.
            first_lost = min(
                (entry.index for entry in last_entries if entry.index > covered and kept.get(entry.index) != entry),
                default=None,
            )
            if first_lost is not None:
                assert kept[first_lost].term >= next(e.term for e in last_entries if e.index == first_lost)
                assert first_lost in kept
        assert state(RaftStorage.open(after)) == found


def test_a_kill_loses_nothing_that_was_written():
    files = FaultyFiles()
    acknowledged: list = []
    life(files, Random(5), acknowledged)
    assert state(RaftStorage.open(files.killed())) == acknowledged[-1]


def test_a_flipped_bit_is_refused_or_changes_nothing():
    files = FaultyFiles()
    storage = RaftStorage.open(files)
    put(storage, founding([1]), Save(HardState(1, 1), entries=entries(2, 4)))
    before = state(storage)
    [path] = [path for path in files.paths() if path.endswith(".raft")]
    for bit in range(len(files.peek(path)) * 8):
        damaged = files.copy()
        damaged.flip(path, bit)
        try:
            assert state(RaftStorage.open(damaged)) == before
        except CorruptionError:
            pass


def test_a_damaged_journal_is_left_as_it_is():
    files = FaultyFiles()
    storage = RaftStorage.open(files)
    put(storage, founding([1]))
    [path] = [path for path in files.paths() if path.endswith(".raft")]
    files.flip(path, 8 * 40)
    raw = files.peek(path)
    with pytest.raises(CorruptionError, match="damaged"):
        RaftStorage.open(files)
    assert files.peek(path) == raw


def test_a_full_disk_leaves_the_journal_as_it_was():
    files = FaultyFiles()
    storage = RaftStorage.open(files)
    put(storage, founding([1]))
    before = state(storage)
    files.space_left = 20
    with pytest.raises(DiskFullError):
        storage.write([Save(entries=entries(2, 3))])
    with pytest.raises(DiskFullError):
        storage.rewrite(snapshot(1))
    with pytest.raises(DiskFullError):
        storage.room_for(1)
    assert state(RaftStorage.open(files.copy())) == before
    files.heal()
    put(storage, Save(entries=entries(2, 3)))
    assert RaftStorage.open(files.killed()).last_index() == 3


def test_a_full_disk_keeps_a_leaders_snapshot_and_what_came_before_it_waiting():
    files = FaultyFiles()
    storage = RaftStorage.open(files)
    put(storage, Save(HardState(1, 1), entries=entries(1, 5)))
    before, saves = state(storage), [Save(entries=entries(6, 8)), Save(HardState(2), snapshot(20)), Save(entries=())]
    files.space_left = 100
    with pytest.raises(DiskFullError):
        storage.write(saves)
    assert state(storage) == before == state(RaftStorage.open(files.copy()))
    files.space_left = None
    put(storage, *saves)  # the same, tried again
    put(storage, Save(entries=entries(21, 22, term=2)))
    assert state(storage) == (HardState(2), snapshot(20), list(entries(21, 22, term=2)))
    assert state(RaftStorage.open(files.killed())) == state(storage)


def test_a_failed_sync_is_an_error():
    files = FaultyFiles()
    storage = RaftStorage.open(files)
    files.fail("sync")
    with pytest.raises(DiskFailedError):
        storage.write([founding([1])])


def test_topics_without_a_journal_do_not_pass_for_a_new_directory():
    files = MemoryFiles()
    files.store("topics/a-0/x", b"")
    with pytest.raises(StorageError, match="no journal"):
        RaftStorage.open(files)


def test_a_journal_can_be_read_without_touching_it():
    files = MemoryFiles()
    storage = RaftStorage.open(files)
    put(storage, founding([1]))
    found, _ = read(files)
    assert found.last_index() == 1
    assert read(MemoryFiles())[0].last_index() == 0
