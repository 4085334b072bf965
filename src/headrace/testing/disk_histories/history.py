"""One history: clients work, disks and nodes go wrong, everything is mended, and somebody else judges.

After each fault the nodes must be well again by themselves, or refuse what they cannot trust:

- One node, one replica: what was harmed is offline, or the node does not start; nothing is removed. Then the history
  undoes the harm, as an operator would with a backup, and everything must be there.
- Three nodes: a harmed partition is copied from another node, by itself. A node whose directory is not the right one
  may refuse to start; then it gets the right one back.
- Only one node is harmed at a time, until all replicas are in sync again.
"""

from __future__ import annotations

import itertools
import random
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from headrace.testing.disk_histories import damage
from headrace.testing.disk_histories.clients import (
    PAIRS,
    PARTITIONS,
    Auditor,
    Client,
    Ledger,
    Reader,
    Seen,
    Transactor,
    Writer,
    read,
)
from headrace.testing.disk_histories.damage import Harm
from headrace.testing.disk_histories.plan import DOWN, NODE_WIDE, SHIM, Blow, Fault, Plan
from headrace.testing.disk_histories.shim import FAILED, FULL
from headrace.testing.disk_histories.stage import UNTOLD, Stage, descriptors

JUDGE: Final = Path(__file__).with_name("judge.py")
HEAL_SECONDS: Final = 90.0
WELL_SECONDS: Final = 0.3  # so long all must be well to be well
ILL_SECONDS: Final = 3.0  # what is offline for so long stays so, alone
PROGRESS_SECONDS: Final = 90.0
PROBE_SECONDS: Final = {1: 4.0, 3: 30.0}
END_SECONDS: Final = 90.0
STEPS: Final = 60  # acknowledged records between two blows, from every producer
LOG_LINES: Final = 4000
ACCEPT: Final = re.compile(r"headrace log accept \S+ (\S+) (\d+)")


class History:
    """What happens, step by step."""

    def __init__(self, wanted: Plan, home: Path) -> None:
        self.plan = wanted
        self.stage = Stage(home, wanted.nodes)
        self.story: list[str] = []
        self.complaints: list[str] = []
        self.verdict = ""
        self._home = home
        self._stash = home / "stash"
        self._ledgers = home / "ledgers"
        self._clients: list[Client] = []
        self._books: list[Ledger] = []
        self._latent: Harm | None = None  # a flipped bit that nobody has found yet
        self._dice = random.Random(f"bytes of seed {wanted.seed}")
        self._seen: Seen | None = None

    def complain(self, what: str) -> None:
        self.complaints.append(what)

    def close(self) -> None:
        for client in self._clients:
            client.ending.set()
        self.stage.close()
        for book in self._books:
            book.close()

    # -- the story -------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """Everything. Raises TimeoutError if there is no progress, RuntimeError if a node is not there."""
        self.stage.open()
        self._start_clients()
        self._await_progress()
        for number in range(self.plan.nodes):
            self.stage.copy(number)
        for blow in self.plan.blows:
            self._await_progress()
            time.sleep(blow.delay_s)
            self._mend_latent()
            self._deal(blow)
        self._await_progress()
        self._end_clients()
        self._judge()
        if self.plan.nodes > 1 and (ailing := self.stage.await_health(HEAL_SECONDS)):
            self.complain(f"not well after everything was read from each replica: {ailing[:5]}")
        if "Traceback" in self.stage.log_tail(LOG_LINES):
            self.complain("a broker's log has a traceback")

    def _start_clients(self) -> None:
        servers = self.stage.servers
        topics = self._ledger("topics")
        for topic, count in PARTITIONS.items():
            topics.write("topic", topic=topic, partitions=count, transactional=topic == PAIRS)
        topics.close()
        group, ids = self._ledger("group"), itertools.count()
        self._seen = Seen(self._ledger("reads"))
        self._clients = [
            *(Writer(name, servers, self._ledger(name)) for name in ("w0", "w1")),
            *(Transactor(name, servers, self._ledger(name)) for name in ("t0", "t1")),
            *(Reader(name, servers, group, self._seen, ids) for name in ("r0", "r1")),
            Auditor("a0", servers, group, self._seen),
        ]
        for client in self._clients:
            client.start()

    def _ledger(self, name: str) -> Ledger:
        self._books.append(Ledger(self._ledgers, name))
        return self._books[-1]

    def _producers(self) -> list[Client]:
        return [client for client in self._clients if isinstance(client, Writer | Transactor)]

    def _await_progress(self, seconds: float = PROGRESS_SECONDS) -> None:
        """Until every producer had some more records acknowledged. Raises TimeoutError."""
        before = {client: client.steps for client in self._producers()}
        wanted = {client: STEPS if isinstance(client, Writer) else 8 for client in before}

        def slow() -> list[Client]:
            return [client for client, had in before.items() if client.steps < had + wanted[client]]

        if not _await(lambda: not slow() or any(client.broken for client in before), seconds) or slow():
            told = [client.broken or f"{client.name} waits" for client in slow()]
            ailing = [each[:200] for each in self.stage.ailments()[:5]]
            raise TimeoutError(f"no progress within {seconds:.0f} s: {told}; {ailing}")

    def _end_clients(self) -> None:
        """Producers first: what they have not been told yet, they are told now."""
        for kind in ((Writer, Transactor), (Reader, Auditor)):
            for client in self._clients:
                if isinstance(client, kind):
                    client.ending.set()
            for client in self._clients:
                if isinstance(client, kind):
                    client.join(END_SECONDS)
                    if client.is_alive():
                        self.complain(f"{client.name} did not end")
                    if client.broken is not None:
                        self.complain(client.broken)
        for book in self._books:
            book.close()

    def _judge(self) -> None:
        report = self._home / "report.json"
        words = ["--each-replica"] if self.plan.nodes > 1 else []
        command = [sys.executable, "-I", str(JUDGE), self.stage.servers, str(self._ledgers), "--json", str(report)]
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=600, check=False)
        self.verdict = done.stdout.splitlines()[0] if done.stdout else ""
        if done.returncode:
            self.complain(f"the judge says ({done.returncode}):\n    " + "\n    ".join(done.stdout.splitlines()))
            if done.stderr:
                self.complain(done.stderr[-2000:])

    # -- blows -----------------------------------------------------------------------------------------------------

    def _deal(self, blow: Blow) -> None:
        if blow.fault in SHIM and not self.stage.shims:
            self.story.append(f"{blow.fault}: left out, for there is no compiler here")
        elif blow.fault is Fault.KILL:
            self._kill(blow)
        elif blow.fault is Fault.PAUSE:
            self._pause(blow)
        elif blow.fault in DOWN:
            self._harm_down(blow)
        elif blow.fault is Fault.SEGMENT_FLIPPED_LIVE:
            self._flip_live(blow)
        elif blow.fault is Fault.NO_DESCRIPTORS:
            self._take_descriptors(blow)
        else:
            self._fail_disk(blow)

    def _victims(self, blow: Blow) -> list[int]:
        return list(range(self.plan.nodes)) if blow.all_down else [blow.node]

    def _kill(self, blow: Blow) -> None:
        victims = self._victims(blow)
        for number in victims:
            self.stage.nodes[number].kill()
        time.sleep(blow.pause_s)
        self._restart(victims, "kill -9 of " + ("all nodes" if blow.all_down else f"node {blow.node + 1}"))

    def _pause(self, blow: Blow) -> None:
        node = self.stage.nodes[blow.node]
        node.pause()
        time.sleep(blow.pause_s)
        node.resume()
        self._must_heal(f"node {blow.node + 1} stood still for {blow.pause_s:.1f} s")

    def _restart(self, victims: list[int], says: str) -> None:
        """Nothing was harmed: all must be well."""
        for number, error in self.stage.start(victims).items():
            self.complain(f"{says}: node {number + 1} did not start again: {error}")
        self._must_heal(says)

    def _must_heal(self, says: str) -> None:
        begun = time.monotonic()
        if ailing := self.stage.await_health(HEAL_SECONDS):
            ailing = [each[:200] for each in ailing]
            self.complain(f"{says}: not well within {HEAL_SECONDS:.0f} s: {ailing[:5]}")
            self._rescue()
        self.story.append(f"{says}: well after {time.monotonic() - begun:.1f} s")

    def _rescue(self) -> None:
        """A promise was broken. Start everything anew, and see whether more is lost than time."""
        for node in self.stage.nodes:
            node.kill()
        for number, error in self.stage.start(range(self.plan.nodes)).items():
            self.complain(f"node {number + 1} does not even start anew: {error}")
        if ailing := self.stage.await_health(HEAL_SECONDS):
            self.complain(f"not even well after a new start: {ailing[:5]}")

    # -- harm while down -------------------------------------------------------------------------------------------

    def _harm_down(self, blow: Blow) -> None:
        if blow.fault in (Fault.DIRECTORY_OLDER, Fault.FOLDER_OLDER):
            self._prepare_copy(blow)
        victims = self._victims(blow)
        for number in victims:
            self.stage.nodes[number].kill()
        harm = self._do_harm(blow)
        time.sleep(blow.pause_s)
        if harm is None:
            self._restart(victims, f"{blow.fault}: nothing to harm was found")
            return
        says = f"node {blow.node + 1}{' (all down)' if blow.all_down else ''}: {harm.says}"
        failed = self.stage.start(victims)
        for number, error in failed.items():
            if number != blow.node:
                self.complain(f"{says}: node {number + 1} did not start: {error}")
        self._settle(blow, harm, says, failed.get(blow.node))

    def _prepare_copy(self, blow: Blow) -> None:
        if blow.fresh:
            self.stage.copy(blow.node)
            self._await_progress()
        else:  # of an earlier run
            self.stage.nodes[blow.node].kill()
            self._restart([blow.node], f"kill -9 of node {blow.node + 1}, for a copy to be of an earlier run")
            self._await_progress()

    def _do_harm(self, blow: Blow) -> Harm | None:
        """Harm the files of a node that is down."""
        data = self.stage.nodes[blow.node].data_dir
        match blow.fault:
            case Fault.DIRECTORY_OLDER:
                return damage.replace_directory(data, self.stage.copied(blow.node), self._stash)
            case Fault.DIRECTORY_EMPTIED:
                return damage.replace_directory(data, None, self._stash)
            case Fault.NODE_FILE_FLIPPED | Fault.NODE_FILE_REMOVED:
                files = damage.node_files(data)
                return self._change(files[blow.target % len(files)], blow)
        folders = damage.partitions(data)
        folder = folders[blow.target % len(folders)]
        match blow.fault:
            case Fault.FOLDER_REMOVED:
                return damage.remove_folder(folder, self._stash, copy=blow.wide)
            case Fault.FOLDER_OLDER:
                copy = self.stage.copied(blow.node) / damage.TOPICS / folder.name
                return damage.put_back_folder(folder, copy, self._stash) if copy.exists() else None
            case Fault.FOLDERS_SWAPPED:
                others = [other for other in folders if other != folder]
                return damage.swap_folders(folder, others[blow.file % len(others)], self._stash)
            case Fault.TORN_TAIL:
                return damage.append_garbage(folder, zeros=blow.zeros, dice=self._dice)
            case Fault.SEGMENT_FLIPPED:
                logs = damage.segments(folder)
                return damage.flip_segment(logs[blow.file % len(logs)], blow.where, blow.bit, evict=blow.evict)
        small = damage.index_files if blow.fault is Fault.INDEX_FLIPPED else damage.small_files
        files = small(folder)
        return self._change(files[blow.file % len(files)], blow) if files else None

    def _change(self, path: Path, blow: Blow) -> Harm:
        if blow.fault in (Fault.SMALL_REMOVED, Fault.NODE_FILE_REMOVED):
            return damage.change_file(path, lambda _: None, "was removed")
        if blow.fault is Fault.SMALL_CUT:
            return damage.change_file(path, damage.cut(blow.where), "was cut")
        return damage.change_file(path, damage.flipped(blow.where, blow.bit), f"has bit {blow.bit} flipped")

    def _settle(self, blow: Blow, harm: Harm, says: str, refusal: Exception | None) -> None:
        """See that what was harmed is mended, or refused; then bring back what was there."""
        begun = time.monotonic()
        if refusal is None:
            ailing = self._await_verdict(blow)
            if not ailing and not (harm.batch is not None and self.plan.nodes == 1):
                self.story.append(f"{says}: mended itself after {time.monotonic() - begun:.1f} s")
                self._latent = harm if harm.is_in_place() else None
                return
            why = f"; {ailing[0]}" if ailing else "; nobody noticed"
            if ailing and self.plan.nodes > 1:
                self.complain(f"{says}: not mended within {HEAL_SECONDS:.0f} s: {ailing[:5]}")
            self._probe(harm)
        else:
            why = f"; it refused to start: {_last_words(refusal)}"
            if self.plan.nodes > 1 and blow.fault not in NODE_WIDE:
                self.complain(f"{says}: the node did not start: {refusal}")
        self._undo(blow.node, harm, says + why)

    def _await_verdict(self, blow: Blow) -> list[str]:
        """Until all is well; on one node, or if a node ends itself, until it is clear that it will not be."""
        begun = well_since = ill_since = time.monotonic()
        while True:
            found, now = self.stage.ailments(), time.monotonic()
            if found:
                well_since = now
            if all(UNTOLD in each for each in found):
                ill_since = now
            is_clear = self.plan.nodes == 1 or not self.stage.nodes[blow.node].is_running
            if now > well_since + WELL_SECONDS or (is_clear and now > ill_since + ILL_SECONDS):
                return sorted(found, key=lambda each: UNTOLD in each)
            if now > begun + HEAL_SECONDS:
                return found
            time.sleep(0.2)

    def _undo(self, number: int, harm: Harm, says: str) -> None:
        node = self.stage.nodes[number]
        node.kill()
        if gone := harm.removed(node.data_dir):
            self.complain(f"{says}: logs were removed: {gone[:5]}")
        harm.undo()
        for error in self.stage.start([number]).values():
            self.complain(f"{says}; put right again: the node did not start: {error}")
        self._must_heal(f"{says}; put right again{self._accept(number) if harm.copies else ''}")

    def _accept(self, number: int) -> str:
        """A copy of the newest folder came back, and the broker cannot know that it is the newest: tell it."""
        node = self.stage.nodes[number]
        places = [found.groups() for reason in self.stage.ailments() if (found := ACCEPT.search(reason))]
        if not places:
            return ""
        node.kill()
        for place in places:
            command = [sys.executable, "-m", "headrace", "log", "accept", str(node.data_dir), *place]
            subprocess.run(command, capture_output=True, check=False)
        for error in self.stage.start([number]).values():
            self.complain(f"a node whose copy was accepted did not start: {error}")
        return f", and accepted {places}"

    def _probe(self, harm: Harm) -> bool:
        """Read a partition through the place where a bit was flipped. Whether that could be read up to its end."""
        if harm.place is None or harm.place[0] not in PARTITIONS or harm.batch is None:
            return False
        assert self._seen is not None
        until = *harm.place, harm.batch.next_offset - 1
        return read(
            self.stage.servers, "probe", self._seen, PARTITIONS, seconds=PROBE_SECONDS[self.plan.nodes], until=until
        )

    def _mend_latent(self) -> None:
        """A flipped bit that nobody has found must not meet the next harm, on another replica."""
        if self._latent is not None and self._latent.is_in_place():
            self._latent.undo()
        self._latent = None

    # -- harm while it runs ----------------------------------------------------------------------------------------

    def _flip_live(self, blow: Blow) -> None:
        data = self.stage.nodes[blow.node].data_dir
        users = [folder for folder in damage.partitions(data) if damage.place_of(folder)[0] in PARTITIONS]
        name = users[blow.target % len(users)].name
        leader = self.stage.leader(*damage.place_of(Path(name)))
        number = blow.node if leader is None or leader < 0 else leader
        logs = damage.segments(self.stage.nodes[number].data_dir / damage.TOPICS / name)
        harm = damage.flip_segment(logs[blow.file % len(logs)], blow.where, blow.bit, evict=blow.evict)
        if harm is None:
            self.story.append(f"{blow.fault}: nothing to harm was found")
            return
        says = f"node {number + 1} (running): {harm.says}"
        reached = self._probe(harm)
        if self.plan.nodes == 1:
            self._undo(number, harm, f"{says}; {'it was served' if reached else 'it was not served'}")
            return
        if not reached and harm.is_in_place():
            self.complain(f"{says}: nobody could read past it within {PROBE_SECONDS[3]:.0f} s")
        self._must_heal(says)
        self._latent = harm if harm.is_in_place() else None

    def _take_descriptors(self, blow: Blow) -> None:
        pid = self.stage.nodes[blow.node].pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (descriptors(pid) + blow.file % 4, before[1]))
        time.sleep(blow.pause_s)
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        self._must_heal(f"node {blow.node + 1} had no descriptors for {blow.pause_s:.1f} s")

    def _fail_disk(self, blow: Blow) -> None:
        """A full or slow disk heals by itself; one that fails leaves a node that must be started again."""
        node = self.stage.nodes[blow.node]
        users = [each for each in damage.partitions(node.data_dir) if damage.place_of(each)[0] in PARTITIONS]
        folder = users[blow.target % len(users)]
        leader = self.stage.leader(*damage.place_of(folder))
        if blow.fault is Fault.READS_FAIL and leader is not None and leader >= 0:  # nobody else reads
            blow = blow._replace(node=leader)
            node = self.stage.nodes[leader]
            folder = node.data_dir / damage.TOPICS / folder.name
        shim = self.stage.shims[blow.node]
        under = node.data_dir if blow.wide or blow.fault in (Fault.DISK_FULL, Fault.DISK_SLOW) else folder
        if blow.fault is Fault.READS_FAIL:
            under = folder
        errors = {
            Fault.DISK_FULL: {"write": FULL},
            Fault.DISK_SLOW: {"late_ms": 50 + int(blow.where**2 * 2000)},
            Fault.READS_FAIL: {"read": FAILED},
            Fault.WRITES_FAIL: {"write": FAILED},
            Fault.SYNCS_FAIL: {"sync": FAILED},
        }[blow.fault]
        before = shim.hits
        says = f"node {blow.node + 1}: {blow.fault} ({under.name})"
        with shim.fault(under, **errors):
            time.sleep(blow.pause_s)
            if self.plan.nodes > 1 and "late_ms" not in errors and blow.fault is not Fault.DISK_FULL:
                try:
                    self._await_progress(HEAL_SECONDS)  # others lead
                except TimeoutError as error:
                    self.complain(f"{says}: {error}")
        says += f", felt {shim.hits - before} times"
        if blow.fault in (Fault.DISK_FULL, Fault.DISK_SLOW):
            if not node.is_running:
                self.complain(f"{says}: the node ended itself")
                self._restart([blow.node], says)
            else:
                self._must_heal(says)
        else:
            node.kill()
            self._restart([blow.node], says)


def _await(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _last_words(refusal: Exception) -> str:
    return str(refusal).strip().splitlines()[-1][-300:]
