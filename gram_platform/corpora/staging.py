"""A packed corpus appears whole or not at all, whoever makes it.

Everything is written into a folder of its own beside the target and renamed into place at the end, manifest last. So a
folder named by a `data_id` is complete, a preparation that was killed leaves only its own folder (removed by the next
one), and of two that run at once the first to finish wins.
"""

import os
import shutil
import socket
import time
import uuid
from pathlib import Path

from gram_platform.config.identity import invalid
from gram_platform.corpora.packed import CorruptCorpus, PackedCorpus

STALE_S = 86_400  # when another machine's unfinished folder counts as abandoned


def complete(target: Path) -> PackedCorpus | None:
    """The packed corpus in a folder; None when it is not there or not whole."""
    try:
        return PackedCorpus.open(target)
    except CorruptCorpus:
        return None


def new_staging(root: Path, data_id: str) -> Path:
    """A folder for this attempt; the folders of attempts that died are removed."""
    host = socket.gethostname()
    staging = root / f".{data_id}.{host}.{os.getpid()}.{uuid.uuid4().hex[:8]}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        for old in root.glob(f".{data_id}.*"):
            if _is_abandoned(old, host):
                shutil.rmtree(old, ignore_errors=True)
        staging.mkdir()
    except OSError as error:
        raise invalid("storage", str(root), f"a folder that can be written ({error.strerror})") from None
    return staging


def _is_abandoned(staging: Path, host: str) -> bool:
    pid = staging.name.split(".")[-2]
    try:
        if f".{host}.{pid}." not in staging.name:
            return time.time() - staging.stat().st_mtime > STALE_S
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (FileNotFoundError, PermissionError, ValueError):
        pass  # published or removed meanwhile, another user's process, or a name that is not ours
    return False


def publish(staging: Path, target: Path) -> None:
    """Renames the finished folder into place; a complete one that came first stays, a broken one is moved away."""
    for _ in range(3):
        try:
            staging.rename(target)
            return
        except OSError:
            if not target.exists():
                raise
        if complete(target) is not None:
            return
        broken = target.with_name(f"{staging.name}.broken")
        target.rename(broken)
        shutil.rmtree(broken, ignore_errors=True)
    raise OSError(f"{target} keeps coming back incomplete: is another program writing there?")
