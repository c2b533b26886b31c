"""Two users of a group work on one study, in processes with their own uids."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gram_platform.store import Store
from tests.tiny import weights_of

ROOT = Path(__file__).parents[2]
FIRST, SECOND, GROUP = 2001, 2002, 3000
STUDY = ("run", "scaling", "--preset", "smoke", "--sizes", "tiny", "--seeds", "1", "--in-process")
# The interpreter may lie below root's home, which others cannot enter: it alone is mounted there.
SCRIPT = """
umask $2; user=$1; shift 2
top=$(dirname "$(dirname "$(readlink -f "$PYTHON")")")
case $top in ~root/*)
    mkdir -p "$HOME/python"
    mount --bind "$top" "$HOME/python" && mount -t tmpfs -o mode=755 none ~root
    mkdir -p -m 755 "$top" && mount --bind "$HOME/python" "$top";;
esac
cd /
exec setpriv --reuid $user --regid 3000 --clear-groups "$PYTHON" -P -c \
    'from gram_platform.cli import main; main()' "$@"
"""


def reason_to_skip() -> str:
    if os.geteuid() != 0:
        return "only root can act as two users"
    if shutil.which("setpriv") is None:
        return "there is no setpriv"
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode:
        return "this root may not make a mount namespace"
    closed = [folder for folder in ROOT.parents if not folder.stat().st_mode & 0o001]
    return f"other users cannot enter {closed[0]}" if closed else ""


pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip())]


@pytest.fixture
def place() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gram-users-", dir="/tmp"))
    folder.chmod(0o755)
    (folder / "storage").mkdir()
    os.chown(folder / "storage", FIRST, GROUP)
    (folder / "storage").chmod(0o2775)
    for user in (FIRST, SECOND):
        (folder / f"home-{user}").mkdir()
        os.chown(folder / f"home-{user}", user, GROUP)
    yield folder
    shutil.rmtree(folder)


def gram(place: Path, user: int, umask: str, *arguments: str) -> subprocess.CompletedProcess:
    home = str(place / f"home-{user}")
    ours = {"HOME": home, "GRAM_CACHE": f"{home}/cache", "PYTHONPATH": str(ROOT)}
    words = [str(user), umask, *arguments, "--storage", str(place / "storage")]
    return subprocess.run(
        [*["unshare", "-m", "bash", "-c"], SCRIPT, "-", *words],
        env={**os.environ, **ours, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_users_finish_one_study(place):
    store = Store(place / "storage")
    begun = gram(place, FIRST, "002", *STUDY, "--methods", "baseline")
    assert begun.returncode == 0, begun.stderr
    (of_first,) = store.list_runs()
    finished = gram(place, SECOND, "022", *STUDY, "--methods", "baseline", "filtering")
    assert finished.returncode == 0, finished.stderr
    assert "MLflow" not in finished.stderr
    assert len(store.list_runs()) > 1
    assert all(weights_of(store.run(run_id)) for run_id in store.list_runs())
    for command in (("check",), ("status",), ("report", "scaling")):
        shown = gram(place, FIRST, "002", *command)
        assert shown.returncode == 0, shown.stderr
    shown = gram(place, SECOND, "022", "export", of_first, "--modules", "", "--out", "/dev/null/x")
    assert shown.returncode == 2
    owners = {path.stat().st_uid for path in (place / "storage").rglob("result.json")}
    assert owners == {FIRST, SECOND}
    assert not list((place / "storage").rglob("*corrupt*"))


def test_what_the_group_may_not_write_is_named_before_work_begins(place):
    storage = place / "storage"
    assert gram(place, FIRST, "022", *STUDY, "--methods", "baseline").returncode == 0
    before = sorted(storage.rglob("*"))
    work = (*STUDY, "--methods", "baseline", "filtering")
    for command in (work, ("report", "scaling")):
        refused = gram(place, SECOND, "022", *command)
        assert refused.returncode == 2, refused.stderr
        assert str(storage / "studies" / "scaling") in refused.stderr
        assert "Traceback" not in refused.stderr
    read = gram(place, SECOND, "022", "check")
    assert read.returncode == 0, read.stdout
    new = {path.name for path in set(storage.rglob("*")) - set(before)}
    assert all(name.endswith(".lock") for name in new), new
