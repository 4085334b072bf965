"""What every `Files` promises, as checks that take one. Each check gets a fresh, empty tree.

@pytest.mark.parametrize("check", FILES_CHECKS)
def test_my_files(check): check(MyFiles())
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from headrace.core.errors import DiskFailedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.core.ports import Files

PLACE: Final = "topics/orders-0/00000000000000000000.log"


def raises(error: type[Exception], work: Callable[[], object]) -> bool:
    try:
        work()
    except error:
        return True
    return False


def appended_parts_are_read_back_in_order(files: Files) -> None:
    file = files.open(PLACE, create=True)
    assert file.size == 0
    file.append([b"one", bytearray(b"two"), memoryview(b"three")])
    file.append([b"four"])
    assert file.size == 15
    assert file.read(0, 15) == b"onetwothreefour"
    assert file.read_now(3, 8) in (b"twothree", None)
    assert type(file.read(0, 3)) is bytes


def what_was_just_appended_is_read_without_waiting(files: Files) -> None:
    file = files.open(PLACE, create=True)
    file.append([b"x" * 100_000])
    assert file.read_now(50_000, 1000) == b"x" * 1000


def reads_stop_at_the_end(files: Files) -> None:
    file = files.open(PLACE, create=True)
    file.append([b"0123456789"])
    for read in (file.read, file.read_now):
        assert read(8, 100) == b"89"
        assert read(10, 5) == b""
        assert read(1000, 5) == b""
        assert read(3, 0) == b""


def many_parts_go_in_one_append(files: Files) -> None:
    file = files.open(PLACE, create=True)
    file.append([b"%05d" % number for number in range(5000)])
    assert file.size == 25_000
    assert file.read(24_990, 10) == b"0499804999"
    file.append([])
    file.append([b""])
    assert file.size == 25_000


def a_cut_file_goes_on_from_the_cut(files: Files) -> None:
    file = files.open(PLACE, create=True)
    file.append([b"0123456789"])
    file.truncate(4)
    assert (file.size, file.read(0, 99), file.read_now(0, 99)) == (4, b"0123", b"0123")
    file.append([b"ab"])
    assert file.read(0, 99) == b"0123ab"
    file.truncate(6)
    assert raises(ValueError, lambda: file.truncate(7))


def a_file_is_found_again(files: Files) -> None:
    file = files.open(PLACE, create=True)
    file.append([b"kept"])
    file.sync()
    file.close()
    again = files.open(PLACE)
    assert (again.size, again.read(0, 9)) == (4, b"kept")
    assert files.open(PLACE, create=True).size == 4


def a_missing_file_is_an_error_unless_it_is_created(files: Files) -> None:
    assert raises(DiskFailedError, lambda: files.open(PLACE))
    assert not files.exists(PLACE)
    files.open(PLACE, create=True)
    assert files.exists(PLACE)
    assert files.exists("topics/orders-0")


def a_directory_is_not_a_file(files: Files) -> None:
    files.open(PLACE, create=True)
    assert raises(DiskFailedError, lambda: files.open("topics/orders-0"))
    assert raises(DiskFailedError, lambda: files.load("topics/orders-0"))
    assert raises(DiskFailedError, lambda: files.store("topics/orders-0", b""))
    assert raises(DiskFailedError, lambda: files.open(PLACE + "/below", create=True))


def names_are_sorted_and_only_of_one_level(files: Files) -> None:
    for path in ("topics/b-0/2.log", "topics/b-0/1.log", "topics/a-0/1.log", "meta"):
        files.store(path, b"")
    assert files.names("") == ["meta", "topics"]
    assert files.names("topics") == ["a-0", "b-0"]
    assert files.names("topics/b-0") == ["1.log", "2.log"]
    assert files.names("topics/c-0") == []
    assert files.names("meta") == []


def a_stored_file_replaces_the_old_one(files: Files) -> None:
    assert files.load("a/b/c") is None
    files.store("a/b/c", b"first, and longer")
    files.store("a/b/c", b"second")
    assert files.load("a/b/c") == b"second"
    assert files.names("a/b") == ["c"]


def a_rename_moves_files_and_directories(files: Files) -> None:
    files.store("topics/a-0/1.log", b"x")
    files.rename("topics/a-0/1.log", "topics/a-0/2.log")
    assert (files.load("topics/a-0/1.log"), files.load("topics/a-0/2.log")) == (None, b"x")
    files.store("topics/a-0/1.log", b"y")
    files.rename("topics/a-0/1.log", "topics/a-0/2.log")
    assert files.load("topics/a-0/2.log") == b"y"
    files.rename("topics/a-0", "gone/a-0.deleted")
    assert (files.names("topics"), files.names("gone/a-0.deleted")) == ([], ["2.log"])
    assert raises(DiskFailedError, lambda: files.rename("nothing", "something"))


def an_open_file_follows_its_directory(files: Files) -> None:
    file = files.open(PLACE, create=True)
    file.append([b"before "])
    files.rename("topics/orders-0", "topics/orders-0.deleted")
    file.append([b"after"])
    file.sync()
    assert file.read(0, 99) == b"before after"
    assert files.load("topics/orders-0.deleted/00000000000000000000.log") == b"before after"


def a_rename_does_not_replace_a_full_directory(files: Files) -> None:
    files.store("a/1", b"")
    files.store("b/1", b"")
    assert raises(DiskFailedError, lambda: files.rename("a", "b"))
    assert files.names("a") == files.names("b") == ["1"]


def remove_takes_files_trees_and_nothing(files: Files) -> None:
    files.store("topics/a-0/1.log", b"")
    files.store("topics/a-01/1.log", b"")
    files.store("topics/a-0/sub/deep", b"")
    files.remove("topics/a-0/1.log")
    assert files.names("topics/a-0") == ["sub"]
    files.remove("topics/a-0")
    assert files.names("topics") == ["a-01"]
    files.remove("topics/a-0")


def paths_stay_inside(files: Files) -> None:
    for path in ("/etc/x", "../x", "a/../../x", "a//b", "a/./b", "a/", "a\0b"):
        assert raises(DiskFailedError, lambda path=path: files.open(path, create=True)), path  # type: ignore[misc]
        assert raises(DiskFailedError, lambda path=path: files.store(path, b"")), path  # type: ignore[misc]
        assert raises(DiskFailedError, lambda path=path: files.load(path)), path  # type: ignore[misc]
        assert raises(DiskFailedError, lambda path=path: files.remove(path)), path  # type: ignore[misc]
    assert files.names("") == []


def a_directory_can_be_synced(files: Files) -> None:
    files.open(PLACE, create=True)
    files.sync_directory("topics/orders-0")
    files.sync_directory("")
    assert raises(DiskFailedError, lambda: files.sync_directory("nowhere"))
    assert files.free_bytes() > 0


def one_holder_of_the_lock_at_a_time(files: Files) -> None:
    first = files.lock()
    assert first is not None
    assert files.lock() is None
    first.release()
    second = files.lock()
    assert second is not None
    second.release()


def a_closed_file_refuses(files: Files) -> None:
    file = files.open(PLACE, create=True)
    file.append([b"x"])
    file.close()
    file.close()
    for work in (lambda: file.append([b"y"]), lambda: file.read(0, 1), lambda: file.read_now(0, 1), file.sync):
        assert raises(StorageError, work)


def a_file_may_be_closed_while_others_read_it(files: Files) -> None:
    """A late reader gets the right bytes or a StorageError; never another file's bytes."""
    wrong: list[object] = []

    def read(file_number: int, file: object) -> None:
        want = b"%d" % file_number * 4096
        for _ in range(50):
            try:
                found = file.read(0, 4096)  # type: ignore[attr-defined]
                file.sync()  # type: ignore[attr-defined]
            except StorageError:
                return
            except BaseException as error:  # a thread's error would be lost
                wrong.append(error)
                return
            if found != want:
                wrong.append(found)

    for _ in range(5):
        opened = []
        threads = []
        for number in range(8):
            file = files.open(f"f{number}", create=True)
            if file.size == 0:
                file.append([b"%d" % number * 4096])
            opened.append(file)
            threads.append(threading.Thread(target=read, args=(number, file)))
        for thread in threads:
            thread.start()
        for file in opened:
            file.close()
        for thread in threads:
            thread.join()
    assert wrong == []


def readers_and_the_writer_do_not_disturb_each_other(files: Files) -> None:
    file = files.open(PLACE, create=True)
    file.append([b"a" * 10_000])
    wrong: list[object] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                if file.read(0, 10_000) != b"a" * 10_000:
                    wrong.append("other bytes")
            except BaseException as error:  # a thread's error would be lost
                wrong.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        file.append([b"b" * 1000])
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert file.size == 310_000


FILES_CHECKS: Final[list[Callable[[Files], None]]] = [
    appended_parts_are_read_back_in_order,
    what_was_just_appended_is_read_without_waiting,
    reads_stop_at_the_end,
    many_parts_go_in_one_append,
    a_cut_file_goes_on_from_the_cut,
    a_file_is_found_again,
    a_missing_file_is_an_error_unless_it_is_created,
    a_directory_is_not_a_file,
    names_are_sorted_and_only_of_one_level,
    a_stored_file_replaces_the_old_one,
    a_rename_moves_files_and_directories,
    an_open_file_follows_its_directory,
    a_rename_does_not_replace_a_full_directory,
    remove_takes_files_trees_and_nothing,
    paths_stay_inside,
    a_directory_can_be_synced,
    one_holder_of_the_lock_at_a_time,
    a_closed_file_refuses,
    a_file_may_be_closed_while_others_read_it,
    readers_and_the_writer_do_not_disturb_each_other,
]
