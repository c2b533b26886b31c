"""Reads files that a user names: a link may lead to them, and nothing else but a file is read."""

import errno
import os
import stat
from pathlib import Path

from gram_platform.config.crash_safe import A_FILE, A_FOLDER, KIND_OF_MODE
from gram_platform.config.identity import invalid

NOT_THERE = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def target_kind(field: str, path: Path | str) -> str:
    """Returns A_FILE, A_FOLDER, or "" for nothing, after links; `field` names the user's path in errors.

    ValueError for a pipe, socket or device, for a link whose target is gone, and for a path that cannot be reached.
    """
    try:
        kind = KIND_OF_MODE[stat.S_IFMT(os.stat(path).st_mode)]
    except ValueError:  # a path with a NUL character
        return ""
    except OSError as error:
        if os.path.islink(path):
            target = os.readlink(path)
            raise invalid(field, str(path), f"a link to something, not to {target} ({error.strerror})") from None
        if error.errno in NOT_THERE:
            return ""
        raise invalid(field, str(path), f"a file or folder that can be reached ({error.strerror})") from None
    if kind not in (A_FILE, A_FOLDER):
        raise invalid(field, str(path), f"{A_FILE} or folder, found {kind}")
    return kind


def read_text(field: str, path: Path) -> str:
    r"""Reads UTF-8 text, without its byte order mark, with \n at the ends of lines; ValueError for anything else."""
    if (kind := target_kind(field, path)) != A_FILE:
        raise invalid(field, str(path), f"a file of text, found {kind or 'nothing'}")
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise invalid(field, str(path), f"a file of UTF-8 text that can be read ({error})") from None
