"""The data directory of this start: claimed, known to be the newest one, and counted.

Rules:
- A directory that is a copy, was put back from one, or has lost its manifest is refused with a sentence that says what
  to do, before anything in it is changed. `accept` goes on with it all the same; then nothing is expected of its logs,
  and the cluster is told that each of them may lack records (`losses`).
- Copies are told by fingerprints of what lives as long as the directory. A snapshot of the file system that is rolled
  back keeps them: only the other nodes of a cluster can notice that, by the number of the start.
- The manifest is written before the start is counted: where a start is counted there is a manifest, or an older release
  was the last one here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.broker.known_logs import KnownLogs
from headrace.core.errors import StorageError
from headrace.storage import manifest as manifests
from headrace.storage.directory import (
    PATH as META_PATH,
)
from headrace.storage.directory import Directory, last_start, leave_clean_mark, store_start, take_clean_mark
from headrace.storage.manifest import Manifest

if TYPE_CHECKING:
    from headrace.core.ports import TrackedFiles, Workers

ROOTS: Final = (META_PATH, "metadata", "topics")  # what lives as long as the directory
_ACCEPT: Final = (
    "put the newest data directory back; a node of a cluster can also be removed (headrace cluster remove) and join "
    "again with an empty directory; or start once with --accept-restored: what was written since is lost then, "
    "unless other nodes have it"
)


@dataclass(slots=True)
class DirectoryState:
    """What a node that starts knows of its directory."""

    files: TrackedFiles
    manifest: Manifest
    known: KnownLogs
    was_clean: bool  # all that the last broker wrote is there
    start: int  # the number of this start

    @classmethod
    def enter(
        cls, files: TrackedFiles, directory: Directory, workers: Workers, *, boot_id: str, accept: bool
    ) -> DirectoryState:
        """Blocking. Raises StorageError if the directory is not the newest one."""
        found = Manifest.read(files)
        last = last_start(files)
        restored = _why_restored(files, directory, found, last)
        if restored and not accept:
            raise StorageError(f"{restored}: {_ACCEPT}")
        was_clean = directory.is_new or take_clean_mark(files, boot_id)
        start = max(last, found.start if found is not None else 0) + 1
        manifest = manifests.opened(found, start, files, adopts=not directory.is_new)
        if restored:
            manifests.accept(manifest, list(manifest.entries))
        directory.note_manifest(files)
        manifest.note_roots(_roots(files))
        manifest.save()
        store_start(files, start)
        return cls(files, manifest, KnownLogs(manifest, workers), was_clean and not restored, start)

    def leave(self, *, clean: bool) -> None:
        """The last thing that a broker does: everything is closed. Blocking."""
        if clean:
            self.known.note_metadata()
            self.manifest.note_roots(_roots(self.files))
            self.manifest.save()
            leave_clean_mark(self.files)
        self.manifest.close()


def _why_restored(files: TrackedFiles, directory: Directory, manifest: Manifest | None, last: int) -> str:
    """Why this is not the directory that the last broker left; empty if it is."""
    if manifest is None:
        return "the data directory has lost its manifest" if directory.has_manifest and last else ""
    now = _roots(files)
    changed = [name for name, fingerprint in manifest.roots.items() if now.get(name, fingerprint) != fingerprint]
    if not changed:
        return ""
    return f"the data directory is a copy, or was put back from one ({', '.join(changed)})"


def _roots(files: TrackedFiles) -> dict[str, int]:
    found = {name: files.fingerprint(name) for name in ROOTS}
    return {name: fingerprint for name, fingerprint in found.items() if fingerprint}
