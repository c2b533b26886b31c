"""An object store for tests, `shelf:///folder`: files of this machine behind an fsspec driver of
its own.

As with any driver, fsspec finds it by its entry point wherever this folder is on the path: in Ray's
workers too. Two files beside the data steer it: `<folder>.log` gets a line for every call that
reaches the store, and a number in `<folder>.failures` is how many of the next calls fail as a store
that throttles does.
"""

import contextlib
import errno
import fcntl
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

WRITES = {"pipe_file": 0, "put_file": 1, "mv": 1}  # which argument says where
CALLS = ("cat_file", "pipe_file", "put_file", "get_file", "exists", "ls", "rm", "mv", "size")


class Shelf(LocalFileSystem):
    protocol = ("shelf",)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(
            path.removeprefix("shelf://") if isinstance(path, str) else path
        )

    def unstrip_protocol(self, name):
        return "shelf://" + self._strip_protocol(name)


def _reported(name):
    original = getattr(LocalFileSystem, name)

    def call(self, *args, **kwargs):
        path = str(args[WRITES.get(name, 0)])
        for folder in Path(path).parents:
            with contextlib.suppress(FileNotFoundError), open(f"{folder}.log", "r+") as log:
                fcntl.flock(log, fcntl.LOCK_EX)
                log.seek(0, 2)
                log.write(f"{name} {path}\n")
                log.flush()
                _fail_if_told(Path(f"{folder}.failures"))
        if name in WRITES:  # an object store has no folders to make
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        return original(self, *args, **kwargs)

    return call


def _fail_if_told(file: Path) -> None:
    num_left = int(file.read_text()) if file.exists() else 0
    if num_left:
        file.write_text(str(num_left - 1))
        raise OSError(errno.EBUSY, "Please reduce your request rate.")


for _name in CALLS:
    setattr(Shelf, _name, _reported(_name))
