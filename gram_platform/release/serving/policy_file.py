"""Reads and replaces the policy file. Rejects a file that every user can change."""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

from gram_platform.config.crash_safe import sync, temporary_beside
from gram_platform.config.identity import invalid, local_path
from gram_platform.release.serving.policy import (
    Policy,
    TokenRule,
    new_token,
    parse_policy,
    read_policy,
    token_digest,
    token_entry,
)

# Enough for thousands of tokens. The file is read every two seconds.
MAX_POLICY_BYTES = 2**20
EXAMPLE = (
    "a file that exists, such as the lines [profiles.core] and modules = [], to which gram token"
    " NAME --profiles core --policy FILE adds a token"
)


def load_policy(path: str) -> Policy:
    """Reads and parses a policy file. Raises ValueError if any part is invalid."""
    return parse_policy(policy_text(path))


def policy_text(path: str) -> str:
    """Reads a policy file's text.

    Raises ValueError if the file cannot be read or has no valid profile, or if every user of the
    machine can write or replace the file.
    """
    file_path = local_path("policy", path)
    try:
        # With these flags, `open` does not wait for the writer of a pipe or take over a terminal.
        with open(os.open(file_path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(MAX_POLICY_BYTES + 1) if stat.S_ISREG(mode) else b""
        text, open_folder = data.decode("utf-8-sig"), _find_open_folder(file_path)
    except FileNotFoundError:
        raise invalid("policy", path, EXAMPLE) from None
    except (OSError, ValueError) as error:
        raise invalid("policy", path, f"a file that can be read ({error})") from None
    if not stat.S_ISREG(mode) or len(data) > MAX_POLICY_BYTES:
        raise invalid("policy", path, f"a regular file of at most {MAX_POLICY_BYTES:,} bytes")
    if mode & stat.S_IWOTH:
        raise invalid(
            "policy",
            path,
            f"a file that not everyone may write (mode {stat.S_IMODE(mode):o}): chmod o-w",
        )
    if open_folder:
        raise invalid(
            "policy",
            path,
            f"a file that strangers cannot replace: everyone may write {open_folder}",
        )
    read_policy(text)
    return text


def _find_open_folder(path: Path) -> str:
    """Returns a folder above `path` whose entries every user can replace. If none, returns "".

    Also checks the folders above the targets of symbolic links. A folder on a read-only file system
    is safe. A folder with the sticky bit, such as /tmp, is safe if its entry that leads to `path`
    belongs to this user or root.
    """
    steps = [path]
    while steps[-1].is_symlink():
        steps.append(steps[-1].parent.resolve() / os.readlink(steps[-1]))
    entries = {entry for step in (*steps, path.resolve()) for entry in (step, *step.parents)}
    for entry in sorted(entries - {Path("/")}):
        folder, is_own = entry.parent, entry.lstat().st_uid in (0, os.geteuid())
        mode, is_read_only = folder.stat().st_mode, os.statvfs(folder).f_flag & os.ST_RDONLY
        if mode & stat.S_IWOTH and not (mode & stat.S_ISVTX and is_own) and not is_read_only:
            return str(folder)
    return ""


def add_token(
    path: str,
    name: str,
    profiles: tuple[str, ...],
    default: str,
    metrics: bool,
    max_requests: int | None,
) -> str:
    """Adds an entry for a new token to a policy file, and returns the token."""
    token = new_token()
    rule = TokenRule(name, token_digest(token), profiles, default, metrics, max_requests)
    entry = token_entry(rule)
    edit_policy(path, lambda text: text + entry)
    return token


def edit_policy(path: str, change: Callable[[str], str]) -> None:
    """Atomically replaces a policy file's text with `change(text)`. Keeps the mode and owner.

    If `path` is a symbolic link, replaces the text of its target. Starts again if the file changes
    meanwhile. Raises ValueError if the file cannot be read or replaced, or if the new text is not a
    valid policy.
    """
    real = Path(os.path.realpath(local_path("policy", path)))
    try:
        folder = os.open(real.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            while not _try_replace(real, change):
                pass
        finally:
            os.close(folder)
    except OSError as error:
        raise invalid("policy", path, f"a file that can be read and replaced ({error})") from error


def _try_replace(path: Path, change: Callable[[str], str]) -> bool:
    before = policy_text(str(path))
    text, status = change(before), path.stat()
    parse_policy(text)
    with temporary_beside(path) as temporary:
        with open(temporary, "x", encoding="utf-8") as file:
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(file.fileno(), status.st_uid, status.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            file.write(text)
        sync(temporary)
        if policy_text(str(path)) != before:
            return False
        os.replace(temporary, path)
    return True
