"""What can have the place of a file and is none: each is made by a function of its path."""

import os
from collections.abc import Callable
from pathlib import Path

SPECIAL: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "a device": lambda path: path.symlink_to("/dev/zero"),
    "a folder": lambda path: (path / "inner").mkdir(parents=True),
    "a dangling link": lambda path: path.symlink_to("absent"),
}
