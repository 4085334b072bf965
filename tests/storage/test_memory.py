"""What is peculiar to files in memory; what they share with those on disk is in the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.storage.memory import MemoryFiles


class Uncounted(dict[str, bytearray | None]):
    """A dictionary that nobody may go through."""

    def __iter__(self) -> Iterator[str]:
        raise AssertionError("all files were looked at")


def test_nobody_looks_at_all_files_to_find_those_of_one_directory():
    """With thousands of partitions in memory, the next one would take as long as all before it together."""
    files = MemoryFiles()
    for number in range(10):
        files.store(f"topics/t-{number}/a", b"a")
        files.store(f"topics/t-{number}/b", b"b")
    files._nodes = Uncounted(files._nodes)
    assert files.names("topics/t-3") == ["a", "b"]
    files.rename("topics/t-3", "topics/moved")
    assert files.names("topics/moved") == ["a", "b"]
    files.remove("topics/moved")
    assert files.names("topics/moved") == []
    assert files.names("topics") == [f"t-{number}" for number in range(10) if number != 3]
