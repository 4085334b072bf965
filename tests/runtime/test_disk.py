"""The real disk: errors, short writes, descriptors, symbolic links, the lock."""

from __future__ import annotations

import errno
import gc
import os
import resource
import subprocess
import sys
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from headrace.core.errors import DiskFailedError, DiskFullError, PassingError, StorageError
from headrace.runtime import disk
from headrace.runtime.disk import DiskFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def failing(error_number: int):
    def fail(*_args: object, **_kwargs: object) -> int:
        raise OSError(error_number, os.strerror(error_number))

    return fail


def open_descriptors(root: Path) -> int:
    """Of files below `root`: what other threads open and close does not count."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{name}").startswith(f"{root.resolve()}/")
        except FileNotFoundError:
            pass  # it is closed by now
    return found


@pytest.fixture
def files(tmp_path: Path) -> DiskFiles:
    return DiskFiles(str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, DiskFailedError)]
)
def test_a_failed_append_names_path_and_errno_and_leaves_nothing(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch, number: int, error: type[StorageError]
) -> None:
    file = files.open("a/1.log", create=True)
    file.append([b"kept"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", failing(number))
        with pytest.raises(error, match=rf"'a/1\.log'.*errno {number}"):
            file.append([b"lost"])
    assert file.size == 4
    file.append([b" again"])
    assert files.load("a/1.log") == b"kept again"


def test_a_half_written_append_is_cut_off(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    file = files.open("1.log", create=True)
    file.append([b"kept"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [b"".join(parts)[:3]], at))
        patch.setattr(os, "pwrite", failing(errno.ENOSPC))
        with pytest.raises(DiskFullError):
            file.append([b"0123456789"])
    assert files.load("1.log") == b"kept"


def test_a_half_written_append_that_cannot_be_cut_is_cut_before_the_next(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwritev
    file = files.open("1.log", create=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [b"".join(parts)[:8]], at))
        patch.setattr(os, "pwrite", failing(errno.ENOSPC))
        patch.setattr(os, "ftruncate", failing(errno.EIO))
        with pytest.raises(DiskFullError):
            file.append([b"0123456789"])
    assert (file.size, file.read(0, 99), file.read_now(0, 99)) == (0, b"", b"")
    file.append([b"ab"])
    assert files.load("1.log") == b"ab"


def test_short_writes_are_continued(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    writev, write = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: writev(fd, [b"".join(parts)[:5]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, view, at: write(fd, view[:3], at))
    file = files.open("1.log", create=True)
    file.append([b"0123", b"456789", b"abcdefgh"])
    assert files.load("1.log") == b"0123456789abcdefgh"


def test_a_failed_sync_is_final_for_the_file(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    file = files.open("1.log", create=True)
    file.append([b"x"])
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", failing(errno.EIO))
        with pytest.raises(DiskFailedError, match="not tried again"):
            file.sync()
    with pytest.raises(DiskFailedError):
        file.sync()
    with pytest.raises(DiskFailedError):
        file.append([b"y"])
    assert file.read(0, 9) == b"x"


def test_even_a_sync_that_meets_a_full_disk_is_a_failure(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    file = files.open("1.log", create=True)
    file.append([b"x"])
    monkeypatch.setattr(os, "fdatasync", failing(errno.ENOSPC))
    with pytest.raises(DiskFailedError):
        file.sync()


def test_pages_that_are_not_in_memory_are_not_waited_for(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    file = files.open("1.log", create=True)
    file.append([b"x" * 8192])
    with monkeypatch.context() as patch:
        patch.setattr(os, "preadv", failing(errno.EAGAIN))
        assert file.read_now(0, 10) is None
        patch.setattr(os, "preadv", lambda *_: 5)
        assert file.read_now(0, 10) is None
    assert file.read_now(0, 10) == b"x" * 10
    assert file.read(0, 10) == b"x" * 10


@pytest.mark.parametrize("mode", ["pread", "mmap"])
def test_a_really_cold_file_is_read_in_a_worker_only(tmp_path: Path, mode: disk.ReadMode) -> None:
    if not hasattr(os, "posix_fadvise"):
        pytest.skip("no way to empty the page cache")
    files = DiskFiles(str(tmp_path), read=mode)
    file = files.open("1.log", create=True)
    file.append([b"x" * 1_000_000])
    file.sync()
    assert file.descriptor is not None
    os.posix_fadvise(file.descriptor.fd, 0, 0, os.POSIX_FADV_DONTNEED)
    found = file.read_now(500_000, 1000)
    if found is not None:
        pytest.skip("this file system keeps its pages")
    for _ in range(10):  # a machine that is short of memory may have dropped it again
        assert file.read(500_000, 1000) == b"x" * 1000
        found = file.read_now(500_000, 1000)
        if found is not None:
            break
    assert found == b"x" * 1000


def test_without_kernel_support_only_what_was_just_written_counts_as_hot(
    files: DiskFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = files.open("1.log", create=True)
    old.append([b"old"])
    old.close()
    monkeypatch.setattr(os, "preadv", failing(errno.EOPNOTSUPP))
    monkeypatch.setattr(disk, "HOT_BYTES", 10)
    file = files.open("1.log")
    file.append([b"0123456789abcdef"])
    assert file.read_now(9, 10) == b"6789abcdef"
    assert file.read_now(8, 4) is None
    assert file.read_now(0, 3) is None
    assert not files.can_read_nowait


def test_mapped_reads_follow_growth_and_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "HOT_BYTES", 10_000)
    files = DiskFiles(str(tmp_path), read="mmap")
    file = files.open("1.log", create=True)
    want = b""
    for number in range(40):
        part = b"%04d" % number * 250
        file.append([part])
        want += part
        assert file.read_now(0, 1 << 20) == want
        assert file.read_now(len(want) - 700, 700) == want[-700:]
    file.truncate(1500)
    file.append([b"new" * 1000])
    assert file.read_now(0, 1 << 20) == want[:1500] + b"new" * 1000


def test_sealed_files_share_a_few_descriptors(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path), open_files=8)
    opened = []
    for number in range(30):
        file = files.open(f"{number}.log", create=True)
        file.append([b"%d" % number])
        file.sync()
        opened.append(file)
    assert 0 < open_descriptors(tmp_path) <= 9
    assert [file.read(0, 9) for file in opened] == [b"%d" % number for number in range(30)]
    assert [file.read_now(0, 9) for file in opened] == [b"%d" % number for number in range(30)]
    for file in opened:
        file.append([b"!"])
        file.sync()
    assert 0 < open_descriptors(tmp_path) <= 9
    for file in opened:
        file.close()
    assert open_descriptors(tmp_path) == 0
    assert len(files.pool) == 0


def test_a_file_with_unsynced_bytes_keeps_its_descriptor(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path), open_files=2)
    dirty = files.open("dirty", create=True)
    dirty.append([b"x"])
    held = dirty.descriptor
    others = [files.open(f"{number}", create=True) for number in range(10)]
    assert dirty.descriptor is held is not None
    dirty.sync()
    del held
    for file in others:
        file.read(0, 1)
    files.open("more", create=True)
    files.open("and more", create=True)
    files.open("and more yet", create=True)
    assert dirty.descriptor is None


def test_an_evicted_file_that_was_replaced_is_not_read(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path))
    file = files.open("1.log", create=True)
    file.append([b"mine"])
    file.sync()
    assert files.pool.shrink()
    (tmp_path / "other").write_bytes(b"theirs")
    (tmp_path / "other").rename(tmp_path / "1.log")
    with pytest.raises(DiskFailedError, match="replaced"):
        file.read(0, 4)


def test_an_evicted_file_follows_its_directory(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path))
    file = files.open("a-0/1.log", create=True)
    file.append([b"mine"])
    file.sync()
    assert files.pool.shrink()
    files.rename("a-0", "a-0.deleted")
    assert file.read(0, 4) == b"mine"


def test_running_out_of_descriptors_evicts_and_then_is_an_error_that_names_the_remedy(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path), open_files=10_000)
    sealed = [files.open(f"{number}", create=True) for number in range(20)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
    fillers = []

    def fill() -> None:
        for number in range(highest + 50):
            file = files.open(f"dirty{number}", create=True)
            file.append([b"x"])
            fillers.append(file)

    try:
        with pytest.raises(StorageError, match="ulimit -n") as raised:
            fill()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert not isinstance(raised.value, DiskFailedError | DiskFullError)
    assert len(fillers) >= 20  # those that were idle gave theirs away
    assert [file.read(0, 1) for file in sealed] == [b""] * 20


def test_eviction_under_load_never_mixes_files_up(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path), open_files=2)
    opened = []
    for number in range(12):
        file = files.open(f"{number}", create=True)
        file.append([b"%02d" % number * 500])
        file.sync()
        opened.append(file)
    wrong: list[object] = []

    def read(step: int) -> None:
        try:
            for turn in range(400):
                number = turn * step % len(opened)
                if opened[number].read(0, 1000) != b"%02d" % number * 500:
                    wrong.append(number)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=read, args=(step,)) for step in (1, 5, 7)]
    for thread in threads:
        thread.start()
    for turn in range(200):
        if not any(thread.is_alive() for thread in threads):
            break  # the disk is slow
        opened[turn % 12].append([b"more"])
        opened[turn % 12].sync()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    files = DiskFiles(str(tmp_path / "data"))
    (tmp_path / "data" / "link").symlink_to(outside)
    (tmp_path / "data" / "file").symlink_to(outside / "secret")
    for work in (
        lambda: files.open("link/secret"),
        lambda: files.open("file"),
        lambda: files.load("link/secret"),
        lambda: files.load("file"),
        lambda: files.store("link/new", b""),
        lambda: files.remove("link/secret"),
        lambda: files.open("link/new", create=True),
    ):
        with pytest.raises(DiskFailedError):
            work()
    files.remove("link")
    files.remove("file")
    assert (outside / "secret").read_bytes() == b"secret"


def test_a_root_that_is_a_link_is_fine(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files = DiskFiles(str(tmp_path / "link"))
    files.store("a/b", b"x")
    assert files.load("a/b") == b"x"


def test_a_store_that_was_interrupted_is_not_seen(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path))
    files.store("a/point", b"old")
    (tmp_path / "a" / ("point" + disk.ASIDE)).write_bytes(b"ne")
    assert files.names("a") == ["point"]
    assert files.load("a/point") == b"old"
    files.store("a/point", b"new")
    assert sorted(os.listdir(tmp_path / "a")) == ["point"]


@pytest.mark.parametrize("call", ["fdatasync", "rename", "pwrite"])
def test_a_failed_store_leaves_the_old_content(files: DiskFiles, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    files.store("point", b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(DiskFullError):
            files.store("point", b"new")
    assert files.load("point") == b"old"
    assert os.listdir(files.root) == ["point"]


def test_new_directories_are_synced_up_to_the_first_old_one(files: DiskFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def watch(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), files.root))
        real(fd)

    monkeypatch.setattr(os, "fsync", watch)
    files.open("topics/a-0/1.log", create=True)
    files.sync_directory("topics/a-0")
    assert sorted(synced) == [".", "topics", "topics/a-0"]
    synced.clear()
    files.open("topics/a-0/2.log", create=True)
    files.sync_directory("topics/a-0")
    assert synced == ["topics/a-0"]


def test_only_one_holder_of_the_lock(tmp_path: Path) -> None:
    first = DiskFiles(str(tmp_path)).lock()
    assert first is not None
    assert DiskFiles(str(tmp_path)).lock() is None
    first.release()
    first.release()
    second = DiskFiles(str(tmp_path)).lock()
    assert second is not None
    second.release()


def test_a_file_that_hits_a_real_limit_of_the_system_is_left_whole(tmp_path: Path) -> None:
    """RLIMIT_FSIZE cuts a write short as a full disk does: first a short count, then an error."""
    script = """
import resource, signal, sys
from headrace.core.errors import StorageError
from headrace.runtime.disk import DiskFiles
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
files = DiskFiles(sys.argv[1])
file = files.open("1.log", create=True)
file.append([b"a" * 9_000])
try:
    file.append([b"b" * 9_000])
    sys.exit("no error")
except StorageError as error:
    print(error)
assert file.size == 9_000
file.append([b"c" * 1_000])
file.sync()
"""
    run = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert f"errno {errno.EFBIG}" in run.stdout
    assert (tmp_path / "1.log").read_bytes() == b"a" * 9_000 + b"c" * 1_000


def test_a_really_full_disk(tmp_path: Path) -> None:
    """A file system of one megabyte, where this process may mount one."""
    if os.getuid() != 0 or sys.platform != "linux":
        pytest.skip("only root may mount a small file system")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip("mounting is not allowed here")
    try:
        files = DiskFiles(str(tmp_path / "data"))
        file = files.open("1.log", create=True)
        ballast = files.open("ballast", create=True)
        ballast.append([bytes(300_000)])
        file.append([b"a" * 500_000])
        with pytest.raises(DiskFullError):
            file.append([b"b" * 500_000])
        assert file.size == 500_000
        with pytest.raises(DiskFullError):
            files.store("point", bytes(500_000))
        ballast.truncate(0)
        file.append([b"c" * 200_000])
        assert file.read(0, 1 << 20) == b"a" * 500_000 + b"c" * 200_000
        file.close()
        ballast.close()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Nothing can be opened any more, as if others had taken all descriptors."""
    gc.collect()  # else others may be closed, and free some, while we are at it
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, before[1]))
    try:
        with suppress(OSError):
            while True:
                taken.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)


def test_directories_are_synced_and_small_files_stored_when_no_descriptors_are_left(tmp_path: Path) -> None:
    """Or else a shortage that passes would take the data directory offline for good."""
    files = DiskFiles(str(tmp_path))
    log = files.open("topics/t-0/log", create=True)
    log.append((b"abc",))  # it is dirty, and may not be closed for others
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        for number in range(3):
            files.store("topics/t-0/recovery-point", b"%d" % number)
            files.sync_directory("topics/t-0")
            assert files.load("topics/t-0/recovery-point") == b"%d" % number
    log.sync()
    log.close()


def test_want_of_descriptors_is_a_fault_that_passes(tmp_path: Path) -> None:
    files = DiskFiles(str(tmp_path))
    files.store("a", b"a")
    with no_descriptors(), pytest.raises(PassingError):
        files.open("a")
    assert files.open("a").size == 1
