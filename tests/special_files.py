"""What can have the place of a file and is none: each is made by a function of its path."""

import os
import socket
from collections.abc import Callable
from pathlib import Path


def bind(path: Path) -> None:
    place = os.getcwd()
    os.chdir(path.parent)  # a socket's path has at most 108 bytes
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(place)


def link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.with_name("pipe"))
    path.symlink_to("pipe")


SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a link to a pipe": link_to_a_pipe,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": bind,
    "a folder": lambda path: (path / "inner").mkdir(parents=True),
    "a dangling link": lambda path: path.symlink_to("absent"),
    "a loop": lambda path: path.symlink_to(path.name),
}
