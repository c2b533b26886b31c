"""A disk in memory that loses what was not synced when the power fails, and whose clients may see
stale absent names.

A power failure leaves each folder with one of the lists of names that it had since it was last
synced, and each file that was never synced with a part of its bytes; what is older than
`WRITTEN_BACK_S` is on the disk without that. POSIX promises no more, and most file systems do.
"""

import errno
import os
import random
from types import SimpleNamespace

WRITTEN_BACK_S = 30.0  # after which the system writes by itself (Linux's dirty_expire_centisecs)
NAMES_STAY_ABSENT_S = 60.0  # how long an NFS client may answer from its cache (nfs(5), acdirmax)


class File:
    def __init__(self) -> None:
        self.data, self.is_synced, self.modified = b"", False, 0.0


class Directory:
    def __init__(self) -> None:
        # (since when, its names), since it was last synced.
        self.versions: list[tuple[float, Names]] = [(0.0, {})]

    @property
    def names(self) -> "Names":
        return self.versions[-1][1]

    def change(self, now: float, changes: "dict[str, File | Directory | None]") -> None:
        names = {**self.names, **changes}
        self.versions.append(
            (now, {name: node for name, node in names.items() if node is not None})
        )


Names = dict[str, File | Directory]


def error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


class Disk:
    """Files and folders by absolute path. `machine` is the client that asks; only its cache knows
    stale names."""

    def __init__(self, rng: random.Random) -> None:
        self.root, self.rng = Directory(), rng
        self.now = 0.0
        self.remembers_absent = False  # whether clients are told of a new name late
        self.absent: dict[tuple[str, str], float] = {}  # (machine, path) -> until when
        self.num_stale = self.num_lost = 0

    # --------------------------------------------------------------------------------------- names

    def find(self, path: str) -> File | Directory:
        node: File | Directory = self.root
        for name in path.strip("/").split("/"):
            if not isinstance(node, Directory):
                raise error(errno.ENOTDIR, path)
            if name not in node.names:
                raise error(errno.ENOENT, path)
            node = node.names[name]
        return node

    def look_up(self, machine: str, path: str) -> File | Directory:
        """Finds as a client does that may remember that the name, or a folder's, is absent."""
        for end in [*(i for i, letter in enumerate(path) if letter == "/" and i), len(path)]:
            if self.absent.get((machine, path[:end]), 0.0) > self.now:
                self.num_stale += self.exists(path)
                raise error(errno.ENOENT, path)
        try:
            return self.find(path)
        except FileNotFoundError:
            if self.remembers_absent:
                self.absent[machine, path] = self.now + self.rng.uniform(0.0, NAMES_STAY_ABSENT_S)
            raise

    def open_folder(self, machine: str, path: str) -> Directory:
        """Opens a folder: its client then knows the folder's names as they are (close-to-open
        consistency, nfs(5))."""
        node = self.look_up(machine, path)
        if not isinstance(node, Directory):
            raise error(errno.ENOTDIR, path)
        for place in [
            key for key in self.absent if key[0] == machine and key[1].rpartition("/")[0] == path
        ]:
            del self.absent[place]
        return node

    def exists(self, path: str) -> bool:
        try:
            self.find(path)
        except OSError:
            return False
        return True

    def folder_of(self, machine: str, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        folder = self.look_up(machine, parent) if parent else self.root
        if not isinstance(folder, Directory):
            raise error(errno.ENOTDIR, path)
        return folder, name

    def add(self, machine: str, path: str, node: File | Directory, replace: bool = True) -> None:
        """Names a node; the client that asked knows the name from now on, also when it was
        there."""
        folder, name = self.folder_of(machine, path)
        self.absent.pop((machine, path), None)
        if name in folder.names and not replace:
            raise error(errno.EEXIST, path)
        folder.change(self.now, {name: node})

    def rename(self, machine: str, old: str, new: str) -> None:
        (folder, name), (target, new_name) = (
            self.folder_of(machine, old),
            self.folder_of(machine, new),
        )
        node = self.look_up(machine, old)
        assert folder is target, "the store renames within one folder"
        if isinstance(target.names.get(new_name), Directory):
            raise error(errno.EISDIR, new)
        self.absent.pop((machine, new), None)
        folder.change(self.now, {name: None, new_name: node})

    def unlink(self, machine: str, path: str) -> None:
        folder, name = self.folder_of(machine, path)
        if isinstance(self.look_up(machine, path), Directory):
            raise error(errno.EISDIR, path)
        folder.change(self.now, {name: None})

    def rmdir(self, machine: str, path: str) -> None:
        folder, name = self.folder_of(machine, path)
        node = self.look_up(machine, path)
        if not isinstance(node, Directory):
            raise error(errno.ENOTDIR, path)
        if node.names:
            raise error(errno.ENOTEMPTY, path)
        folder.change(self.now, {name: None})

    def stat(self, machine: str, path: str) -> SimpleNamespace:
        node = self.look_up(machine, path)
        if isinstance(node, Directory):
            return SimpleNamespace(st_mode=0o040755, st_size=0, st_mtime=0.0)
        return SimpleNamespace(st_mode=0o100644, st_size=len(node.data), st_mtime=node.modified)

    # --------------------------------------------------------------------------------------- power

    def sync(self, path: str) -> None:
        node = self.find(path)
        if isinstance(node, Directory):
            node.versions = node.versions[-1:]
        else:
            node.is_synced = True

    def lose_unsynced(self) -> None:
        """What a power failure leaves; clients forget their caches."""
        self.absent.clear()
        self._lose(self.root)

    def _lose(self, node: File | Directory) -> None:
        if isinstance(node, Directory):
            old = [
                i for i, (time, _) in enumerate(node.versions) if time < self.now - WRITTEN_BACK_S
            ]
            time, kept = self.rng.choice(node.versions[max(old, default=0) :])
            self.num_lost += kept.keys() != node.names.keys()
            node.versions = [(time, kept)]
            for child in kept.values():
                self._lose(child)
        elif not node.is_synced and node.modified > self.now - WRITTEN_BACK_S:
            kept_bytes = self.rng.randint(0, len(node.data))
            self.num_lost += kept_bytes < len(node.data)
            node.data, node.is_synced = node.data[:kept_bytes], True
