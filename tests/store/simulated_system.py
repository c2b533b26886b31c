"""What the operating system is to the store's code in a simulated world: files, clocks, threads and
processes."""

import builtins
import contextlib
import datetime
import errno
import fcntl
import fnmatch
import functools
import io
import itertools
import os
import pathlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import safetensors.torch

from gram_platform.config import crash_safe
from gram_platform.store import (
    attempts,
    directories,
    files,
    folders,
    leases,
    root,
    runs,
    shards,
    tensors,
)
from tests.store import training
from tests.store.simulated_disk import Directory, File, error
from tests.store.simulated_world import ROOT, World


class System:
    """The calls of the current process; each is one operation of the world or several."""

    def __init__(self, world: World) -> None:
        self.world, self.disk = world, world.disk
        self.descriptors: dict[int, str] = {}
        self.numbers = itertools.count(10**6)
        self.really = SimpleNamespace(
            fsync=os.fsync, close=os.close, getpid=os.getpid, glob=pathlib.Path.glob
        )

    @property
    def machine(self) -> str:
        return self.world.current.process.machine.name

    # --------------------------------------------------------------------------------------- files

    def open(self, path: str, mode: str) -> Any:
        if "r" in mode:
            node = self.world.operation("read", path, lambda: self.disk.look_up(self.machine, path))
            if isinstance(node, Directory):
                raise error(errno.EISDIR, path)
            return io.BytesIO(node.data) if "b" in mode else io.StringIO(node.data.decode())
        if not (path.endswith(".lock") and self.disk.exists(path)):
            self.change("create", lambda: self.disk.add(self.machine, path, File()), path)
        return (_BinaryFile if "b" in mode else _TextFile)(self, path)

    def fill(self, path: str, data: bytes) -> None:
        """Writes a file that was opened for writing, when it is closed."""

        def effect() -> None:
            node = self.disk.find(path)
            node.data, node.is_synced, node.modified = data, False, self.world.now

        if data:
            self.change(f"fill {len(data)}", effect, path)

    def change(self, what: str, effect: Callable[[], None], path: str) -> None:
        """An operation for which a full disk has no room."""
        self.world.operation(what, path, effect, writes=True)

    def stat(self, path: str, *_) -> SimpleNamespace:
        return self.world.operation("stat", path, lambda: self.disk.stat(self.machine, path))

    def lstat(self, path: str) -> SimpleNamespace:
        """No operation of its own: it is asked just before one on the same path, and there are no
        links here."""
        return SimpleNamespace(
            st_mode=0o040755 if isinstance(self.disk.find(path), Directory) else 0o100644
        )

    def list(self, path: str) -> list[str]:
        return self.world.operation(
            "list", path, lambda: list(self.disk.open_folder(self.machine, path).names)
        )

    @contextlib.contextmanager
    def scan(self, path: str) -> Iterator["Sequence[_Entry]"]:
        yield [
            _Entry(name, isinstance(self.disk.find(f"{path}/{name}"), Directory))
            for name in self.list(path)
        ]

    def mkdir(self, path: str, *_) -> None:
        self.change(
            "mkdir", lambda: self.disk.add(self.machine, path, Directory(), replace=False), path
        )

    def link(self, old: str, new: str) -> None:
        node = lambda: self.disk.look_up(self.machine, old)
        self.change("link", lambda: self.disk.add(self.machine, new, node(), replace=False), new)

    def rename(self, old: str, new: str) -> None:
        self.world.operation("rename", new, lambda: self.disk.rename(self.machine, old, new))

    def unlink(self, path: str) -> None:
        self.world.operation("unlink", path, lambda: self.disk.unlink(self.machine, path))

    def remove_tree(self, path: str) -> None:
        """As `shutil.rmtree(ignore_errors=True)`."""
        with contextlib.suppress(OSError):
            for name in self.list(path):
                child = f"{path}/{name}"
                if isinstance(self.disk.find(child), Directory):
                    self.remove_tree(child)
                else:
                    with contextlib.suppress(OSError):
                        self.unlink(child)
        with contextlib.suppress(OSError):
            self.world.operation("rmdir", path, lambda: self.disk.rmdir(self.machine, path))

    def open_descriptor(self, path: str, *_) -> int:
        is_folder = self.disk.exists(path) and isinstance(self.disk.find(path), Directory)
        look = self.disk.open_folder if is_folder else self.disk.look_up
        self.world.operation("open", path, lambda: look(self.machine, path))
        number = next(self.numbers)
        self.descriptors[number] = path
        return number

    def fsync(self, number: int) -> None:
        if number not in self.descriptors:
            return self.really.fsync(number)
        path = self.descriptors[number]
        return self.world.operation("sync", path, lambda: self.disk.sync(path))

    def close(self, number: int) -> None:
        if self.descriptors.pop(number, None) is None:
            self.really.close(number)

    def glob(self, path: pathlib.Path, pattern: str) -> Any:
        if not is_simulated(path):
            return self.really.glob(path, pattern)
        try:
            names = self.list(str(path))
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [path / name for name in names if fnmatch.fnmatch(name, pattern)]

    # ------------------------------------------------------------------------- processes and locks

    def lock(self, file: "_File", *_) -> None:
        locks = file.process.machine.locks
        self.world.pause(float("inf"), lambda: file.path not in locks)
        while file.path in locks:
            self.world.pause(float("inf"), lambda: file.path not in locks)
        locks[file.path] = file.process

    def getpid(self) -> int:
        is_ours = threading.get_ident() in self.world.threads
        return self.world.current.process.pid if is_ours else self.really.getpid()

    def is_alive(self, pid: int, start: int) -> bool:
        here = self.world.current.process.machine
        processes = (task.process for task in self.world.tasks)
        return any(one.pid == pid and one.machine is here and not one.is_dead for one in processes)


def is_simulated(path: object) -> bool:
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(ROOT)


class _Entry:
    def __init__(self, name: str, is_folder: bool) -> None:
        self.name, self.is_folder = name, is_folder

    def is_dir(self, follow_symlinks: bool) -> bool:
        return self.is_folder

    def is_file(self, follow_symlinks: bool) -> bool:
        return not self.is_folder


class _File:
    def __init__(self, system: System, path: str) -> None:
        super().__init__()
        self.system, self.path, self.process = system, path, system.world.current.process

    def _close(self, data: bytes) -> None:
        locks = self.process.machine.locks
        if locks.get(self.path) is self.process:
            del locks[self.path]
        elif not self.process.is_dead:
            self.system.fill(self.path, data)


class _BinaryFile(_File, io.BytesIO):
    def close(self) -> None:
        if not self.closed:
            data = self.getvalue()
            super().close()
            self._close(data)


class _TextFile(_File, io.StringIO):
    def close(self) -> None:
        if not self.closed:
            data = self.getvalue().encode()
            super().close()
            self._close(data)


class _Event:
    def __init__(self, world: World) -> None:
        self.world, self.flag = world, False

    def set(self) -> None:
        self.flag = True

    def is_set(self) -> bool:
        return self.flag

    def wait(self, timeout: float) -> bool:
        self.world.pause(self.world.now + timeout, lambda: self.flag)
        return self.flag


class _Mutex:
    def __init__(self, world: World) -> None:
        self.world, self.is_held = world, False

    def __enter__(self) -> None:
        while self.is_held:
            self.world.pause(float("inf"), lambda: not self.is_held)
        self.is_held = True

    def __exit__(self, *_) -> None:
        self.is_held = False


class _Thread:
    def __init__(self, world: World, target: Callable[[], None]) -> None:
        self.world, self.target = world, target

    def start(self) -> None:
        self.world.spawn(self.world.current.process, self.target).wakes = self.world.now


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Puts the simulated disk under paths of `ROOT`, and the simulated clocks, processes and
    threads into the store."""
    system = System(world)

    def under(function: Callable, ours: Callable) -> Callable:
        def called(path, *args, **kwargs):
            return (
                ours(os.fspath(path), *args)
                if is_simulated(path)
                else function(path, *args, **kwargs)
            )

        return called

    @contextlib.contextmanager
    def checked(path: str, *_) -> Iterator[None]:
        """As `safetensors.safe_open`, which checks a file."""
        with system.open(path, "rb") as file:
            safetensors.torch.load(file.read())
        yield

    clocks = SimpleNamespace(time=world.clock, monotonic=lambda: world.now, sleep=world.sleep)
    clocks.CLOCK_BOOTTIME, clocks.clock_gettime = 7, lambda clock: world.now
    tokens = SimpleNamespace(token_hex=lambda n: f"{world.rng.getrandbits(8 * n):0{2 * n}x}")
    today = SimpleNamespace(now=lambda zone: datetime.datetime.fromtimestamp(world.clock(), zone))
    threads = SimpleNamespace(
        Event=functools.partial(_Event, world), Lock=functools.partial(_Mutex, world)
    )
    threads.Thread = lambda target, **_: _Thread(world, target)
    timed = (attempts, directories, files, folders, leases, runs, shards, training)
    open_file = lambda path, mode="r", *_: system.open(path, mode)
    patches: list[tuple[object, str, Any]] = [
        *(
            (os, name, under(getattr(os, name), getattr(system, name)))
            for name in ("stat", "mkdir", "link", "unlink")
        ),
        *((os, name, under(getattr(os, name), system.rename)) for name in ("rename", "replace")),
        (os, "lstat", under(os.lstat, system.lstat)),
        (os, "scandir", under(os.scandir, system.scan)),
        (os, "open", under(os.open, system.open_descriptor)),
        *((os, name, getattr(system, name)) for name in ("fsync", "close", "getpid")),
        (shutil, "rmtree", under(shutil.rmtree, system.remove_tree)),
        (shutil, "disk_usage", under(shutil.disk_usage, lambda path: SimpleNamespace(free=2**40))),
        *((module, "open", under(open, open_file)) for module in (builtins, io)),
        (pathlib.Path, "glob", lambda path, pattern: system.glob(path, pattern)),
        (fcntl, "flock", system.lock),
        *((module, "time", clocks) for module in timed),
        *((module, "secrets", tokens) for module in (crash_safe, root, runs)),
        (files, "random", SimpleNamespace(uniform=world.rng.uniform)),
        (runs, "datetime", SimpleNamespace(datetime=today, UTC=datetime.UTC)),
        (tensors, "safe_open", checked),
        (leases, "threading", threads),
        (leases, "this_place", lambda: system.machine),
        (leases, "process_start", lambda pid: pid),
        (leases, "process_is_alive", system.is_alive),
        (attempts, "HEARTBEAT_INTERVAL_S", 5.0),
    ]
    with contextlib.ExitStack() as stack:
        for target, name, value in patches:
            stack.enter_context(mock.patch.object(target, name, value))
        yield
