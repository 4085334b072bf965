"""Disks that lose things while nobody looks: folders of replicas, files in them, and whole data directories.

Rules:
- A replica whose folder or a file in it is lost, damaged, swapped or older goes offline or heals by itself, is not
  elected without its records, and no other replica is cut because of it. What is left of it is set aside, not removed.
- A data directory that is empty, or older than the cluster knows, or that lost files of its own may refuse to start.
  Then the right one is put back. If it starts, nothing may come of it.
- The journal of the metadata may not pass for a shorter one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from headrace.broker.raft_storage import DIRECTORY as METADATA
from headrace.storage.sync import RECOVERY_POINT, decode_offset
from headrace.testing.sim.history import Violation
from headrace.testing.sim.program import Program
from headrace.wire import batch

if TYPE_CHECKING:
    from headrace.testing.files import FaultyFiles
    from headrace.testing.sim.clients import Partition as Place
    from headrace.testing.sim.machine import Machine
    from headrace.testing.sim.world import World

COPIES: Final = 3  # of a directory are kept
ROOT_FILES: Final = ("meta.json", "starts", "system", "joined", "clean")


class _Copies:
    """Older copies of the machines' directories, as somebody made them by hand."""

    def __init__(self) -> None:
        self._kept: dict[int, list[FaultyFiles]] = {}

    def make(self, machine: Machine) -> None:
        kept = self._kept.setdefault(machine.node_id, [])
        kept.append(machine.files.copy())
        del kept[:-COPIES]

    def of(self, machine: Machine) -> list[FaultyFiles]:
        return self._kept.get(machine.node_id, [])


def folder_of(place: Place) -> str:
    return f"topics/{place[0]}-{place[1]}"


def place_of(folder: str) -> Place:
    topic, _, index = folder.removeprefix("topics/").rpartition("-")
    return topic, int(index)


def files_in(files: FaultyFiles, folder: str) -> list[str]:
    return [path for path in files.paths() if path.startswith(f"{folder}/")]


def durable_bytes(files: FaultyFiles, path: str) -> int:
    """How much of a segment is known to be durable. If more is missing, that could be a torn write: nobody can tell."""
    stored = f"{path.rpartition('/')[0]}/{RECOVERY_POINT}"
    point = decode_offset(files.peek(stored)) if stored in files.paths() else None
    headers = [each for each in batch.headers(files.peek(path)) if each.base_offset < (point or 0)]
    return headers[-1].position + headers[-1].size if headers else 0


def _known_bytes(files: FaultyFiles, path: str) -> int:
    return durable_bytes(files, path) if path.endswith(".log") else len(files.peek(path))


class FolderLoss(Program):
    """Replicas' folders, while their node is down; sometimes while all nodes are."""

    name = "folders"
    every_s: ClassVar[float] = 0.8

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._copies = _Copies()
        self._left: list[tuple[Machine, Place, bytes]] = []  # what must be found somewhere afterwards
        self._owed: dict[str, FaultyFiles] = {}  # folders of a lone node: a disk on which they are as they were

    def strike(self) -> None:
        world, dice = self._world, self._dice
        machine = dice.choice(world.machines)
        if dice.random() < 0.4:
            self._copies.make(machine)
            return
        places = [place for place in world.harm.places(machine) if files_in(machine.files, folder_of(place))]
        if not places or machine.retiring or not machine.is_serving or self._owed:
            return
        dark = [each for each in world.machines if each is machine or dice.random() < 0.5]
        dark = dark if dice.random() < 0.3 else [machine]
        if dice.random() < 0.3:
            dark = list(world.machines)
        for each in dark:
            if each.is_up:
                self._end_process(each)
        before = machine.files.copy()
        for place in dice.sample(places, 1 if dice.random() < 0.7 else dice.randrange(1, len(places) + 1)):
            self._damage(machine, place, before)
        for each in dark:
            self._restart(each)
        if self._owed:
            self._later(3.0, self._repay)

    def _damage(self, machine: Machine, place: Place, before: FaultyFiles) -> None:
        kinds: list[tuple[str, Callable[[Machine, Place], str | None]]] = [
            ("folder lost", self._lose),
            ("folder lost", self._lose),
            ("file lost", self._lose_file),
            ("file lost", self._lose_file),
            ("file flipped", self._flip),
            ("file cut", self._cut),
            ("older folder", self._age),
            ("older folder", self._age),
            ("older file", self._age_file),
            ("folders swapped", self._swap),
        ]
        what, damage = self._dice.choice(kinds)
        path = damage(machine, place)
        if path is None:
            return
        self._note(what, machine)
        self._world.note(f"{what}: {path}")
        for folder in (folder_of(place), path) if what == "folders swapped" else (folder_of(place),):
            self._expect(machine, folder, before, lost=what == "folder lost")

    def _expect(self, machine: Machine, folder: str, before: FaultyFiles, *, lost: bool) -> None:
        place = place_of(folder)
        self._world.harm.done(machine, place)
        if len(self._world.machines) == 1:
            self._owed[folder] = before
            return
        first = f"{folder}/{0:020d}.log"
        if place in self._world.partitions and not lost and first in machine.files.paths():
            self._left.append((machine, place, machine.files.peek(first)[:500]))

    def _lose(self, machine: Machine, place: Place) -> str | None:
        machine.files.erase(folder_of(place))
        return folder_of(place)

    def _some_file(self, machine: Machine, place: Place, *, small: bool = True, whole_logs: bool = False) -> str | None:
        """Small files, mostly: there are more kinds of them than there are logs."""
        paths = files_in(machine.files, folder_of(place))
        logs = [path for path in paths if path.endswith(".log") and durable_bytes(machine.files, path)]
        logs = logs if whole_logs or len(self._world.machines) > 1 else []  # nobody else could tell damage from tearing
        others = [path for path in paths if not path.endswith(".log")]
        chosen = logs if not others or (logs and not small) else others
        return self._dice.choice(chosen) if chosen else None

    def _lose_file(self, machine: Machine, place: Place) -> str | None:
        path = self._some_file(machine, place, small=self._dice.random() < 0.8, whole_logs=True)
        if path is not None:
            machine.files.erase(path)
        return path

    def _flip(self, machine: Machine, place: Place) -> str | None:
        path = self._some_file(machine, place, small=self._dice.random() < 0.7)
        size = 0 if path is None else _known_bytes(machine.files, path)
        if path is None or not size:
            return None
        machine.files.flip(path, self._dice.randrange(8 * size))
        return path

    def _cut(self, machine: Machine, place: Place) -> str | None:
        path = self._some_file(machine, place, small=self._dice.random() < 0.7)
        size = 0 if path is None else _known_bytes(machine.files, path)
        if path is None or not size:
            return None
        machine.files.overwrite(path, machine.files.peek(path)[: self._dice.randrange(size)])
        return path

    def _age(self, machine: Machine, place: Place) -> str | None:
        folder = folder_of(place)
        older = [copy for copy in self._copies.of(machine) if files_in(copy, folder)]
        if not older:
            return None
        machine.files.put_back(folder, self._dice.choice(older))
        return folder

    def _age_file(self, machine: Machine, place: Place) -> str | None:
        path = self._some_file(machine, place)
        older = [copy for copy in self._copies.of(machine) if path in copy.paths()]
        if path is None or not older:
            return None
        machine.files.put_back(path, self._dice.choice(older))
        return path

    def _swap(self, machine: Machine, place: Place) -> str | None:
        others = [each for each in self._world.harm.places(machine) if each != place]
        others = [each for each in others if files_in(machine.files, folder_of(each))]
        if not others:
            return None
        one, other = folder_of(place), folder_of(self._dice.choice(others))
        before = machine.files.copy()
        machine.files.put_back(one, before, other)
        machine.files.put_back(other, before, one)
        return other

    def _repay(self) -> None:
        """A lone node could not be helped by others: put back what is offline, and leave what it could do without."""
        machine = self._world.machines[0]
        if not machine.is_serving:
            if not self._over:
                self._later(0.5, self._repay)
            return
        partitions = machine.service.partitions
        offline = {
            folder: before for folder, before in self._owed.items() if partitions.replica(*place_of(folder)) is None
        }
        self._owed.clear()
        if offline:
            machine.kill()
            for folder, before in offline.items():
                self._world.note(f"put back {folder}")
                self._world.history.count("folders put back")
                machine.files.put_back(folder, before, moved=True)
            self._world.start(machine)

    async def restore(self) -> None:
        if self._owed:
            self._repay()

    async def check(self) -> None:
        for machine, (topic, index), content in self._left:
            if machine not in self._world.machines:
                continue
            places = (f"topics/{topic}-{index}/", f"stray/{topic}-{index}")
            names = [path for path in machine.files.paths() if path.startswith(places) and path.endswith(".log")]
            if not any(machine.files.peek(path).startswith(content) for path in names):
                raise Violation(f"node {machine.node_id} has removed what was left of {topic}-{index}")


class DirectoryLoss(Program):
    """A node's whole data directory is an older copy of itself, or empty, or lost one of its own files."""

    name = "directories"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._copies = _Copies()
        self._right: dict[Machine, FaultyFiles] = {}

    def strike(self) -> None:
        machine = self._dice.choice(self._world.machines)
        if self._dice.random() < 0.4:
            self._copies.make(machine)
        elif self._may_strike(machine):
            self._end_process(machine)
            right = machine.files.copy()
            what = self._damage(machine)
            if what is not None:
                self._note(what, machine)
                for place in self._world.harm.places(machine):
                    self._world.harm.done(machine, place)
                self._right[machine] = right
                machine.on_refusal = self._refused
            self._restart(machine)

    def _may_strike(self, machine: Machine) -> bool:
        """One at a time, and only while the others know all that was decided: nobody else could tell them."""
        world = self._world
        self._right = {each: right for each, right in self._right.items() if each.on_refusal is not None}
        others = [each for each in world.machines if each is not machine]
        known = all(
            each.is_serving and each.service.controller.applied_index >= world.watch.newest_index for each in others
        )
        may = machine.is_serving and not machine.retiring and world.harm.may_all_be(machine)
        return bool(others) and known and may and not self._right

    def _damage(self, machine: Machine) -> str | None:
        older = self._copies.of(machine)
        kind = self._dice.choice(("older", "older", "older", "emptied", "file"))
        if kind == "older" and older:
            machine.files = self._dice.choice(older).copy(anew=self._dice.random() < 0.5)
            return "older directory"
        if kind == "emptied" and machine.node_id != 1:  # the first would begin another cluster: it was told so
            for name in machine.files.names(""):
                machine.files.erase(name)
            return "emptied directory"
        names = [name for name in ROOT_FILES if name in machine.files.paths()]
        if not names:
            return None
        name = self._dice.choice(names)
        content = machine.files.peek(name)
        if content and self._dice.random() < 0.5:
            machine.files.flip(name, self._dice.randrange(8 * len(content)))
            return f"{name} flipped"
        machine.files.erase(name)
        return f"{name} lost"

    def _refused(self, machine: Machine) -> None:
        def put_back() -> None:
            self._put_back(machine)
            if not machine.is_up and machine in self._world.machines:
                self._world.start(machine)

        self._later(2.0, put_back)

    def _put_back(self, machine: Machine) -> None:
        right = self._right.pop(machine, None)
        if right is not None and not machine.is_up:
            self._world.note(f"put back the directory of node {machine.node_id}")
            self._world.history.count("directories put back")
            machine.files = right
            machine.boots += 1  # as after a start of the system: nothing of it is in memory
            machine.on_refusal = None


class JournalLoss(DirectoryLoss):
    """The journal of the metadata lost its end, below what was synced."""

    name = "journal"

    def _damage(self, machine: Machine) -> str | None:
        journals = files_in(machine.files, METADATA)
        if not journals:
            return None
        content = machine.files.peek(journals[-1])
        machine.files.overwrite(journals[-1], content[: self._dice.randrange(len(content) // 2, len(content))])
        return "journal cut"
