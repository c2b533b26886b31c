"""How commands end: each error, signal and lost output has its exit code and one line."""

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gram_platform.config.endings import Stopped, Unavailable, begin_work, exit_codes, worst

ROOT = Path(__file__).resolve().parents[2]
PRINTING = """
import pathlib, sys
from gram_platform.config.endings import exit_codes, outlive_output
outlive_output()
with exit_codes():
    for number in range(3):
        print("line", number, "\\u30a6\\u30a4", flush=True)
pathlib.Path(sys.argv[1]).write_text("done")
"""


@pytest.fixture(autouse=True)
def keep_handler():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def fail(error: BaseException, has_begun: bool) -> None:
    with exit_codes("Submit again."):
        if has_begun:
            begin_work()
        raise error


def ended(error: BaseException, has_begun: bool = False) -> int:
    """The exit code."""
    with pytest.raises(SystemExit) as end:
        fail(error, has_begun)
    return end.value.code


@pytest.mark.parametrize(
    ("error", "has_begun", "code", "line"),
    [
        (ValueError("seeds=0"), False, 2, "error: seeds=0"),
        (ValueError("seeds=0"), True, 1, "error: seeds=0. Submit again."),
        (Stopped("gone"), True, 1, "error: gone"),
        (Unavailable("away"), False, 1, "error: away"),
        (Unavailable("away"), True, 1, "error: away. Submit again."),
        (
            OSError(errno.EDQUOT, "quota"),
            True,
            1,
            "error: a disk .*: [Errno 122] quota. Submit again.",
        ),
        (PermissionError(13, "no", "/dev/full"), False, 2, "error: .*/dev/full.*"),
        (PermissionError(13, "no"), True, 1, "error: [Errno 13] no. Submit again."),
        (KeyboardInterrupt(), False, 130, "interrupted. Submit again."),
        (SystemExit(128 + signal.SIGTERM), True, 143, "terminated. Submit again."),
    ],
)
def test_an_error_that_a_user_can_mend_is_one_line(capsys, error, has_begun, code, line):
    assert ended(error, has_begun) == code
    assert re.fullmatch(re.escape(line).replace(r"\.\*", ".*") + "\n", capsys.readouterr().err)


def test_work_of_one_command_does_not_count_for_the_next(capsys):
    ended(ValueError("a"), has_begun=True)
    assert ended(ValueError("b")) == 2


def test_a_fault_of_the_program_keeps_its_traceback_and_gets_the_advice():
    with pytest.raises(TypeError) as raised:
        fail(TypeError("a fault"), has_begun=True)
    assert raised.value.__notes__ == ["Submit again."]


def test_a_user_without_a_home_is_told_so(monkeypatch, capsys):
    """As `docker run --user 12345` without HOME: MLflow and Ray fail while they are imported."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(SystemExit) as ended, exit_codes():
        pass
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: HOME='~': expected ")


IMPATIENT = """
import atexit, os, signal, sys
from gram_platform.config.endings import exit_codes
# A background process of a script ignores the signal.
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(os.kill, os.getpid(), signal.SIGINT)
with exit_codes("Submit again."):
    os.kill(os.getpid(), signal.SIGINT)
"""


def test_a_second_ctrl_c_ends_what_is_left_without_a_traceback():
    done = subprocess.run(
        [sys.executable, "-c", IMPATIENT], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "interrupted. Submit again.\n")


def test_an_exit_that_has_been_said_is_said_once(capsys):
    with pytest.raises(SystemExit) as end, exit_codes(), exit_codes("Submit again."):
        raise SystemExit(128 + signal.SIGTERM)
    assert end.value.code == 143
    assert capsys.readouterr().err == "terminated. Submit again.\n"


def test_sigterm_ends_a_block_and_its_handler_is_restored(capsys):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end, exit_codes("Submit again."):
        signal.raise_signal(signal.SIGTERM)
    assert end.value.code == 143
    assert capsys.readouterr().err == "terminated. Submit again.\n"
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize(
    ("codes", "code"),
    [((), 0), ((0, 3), 3), ((3, 1, 0), 1), ((0, 0), 0), ((1, 2), 2), ((0, 130), 130)],
)
def test_a_failure_outweighs_the_end_of_the_time(codes, code):
    assert worst(*codes) == code


# ------------------------------------------------------------------------------------------ output


def run(
    tmp_path: Path, redirect: str = "", stdout: int = subprocess.PIPE, **variables: str
) -> tuple[bytes, bytes]:
    """Runs `PRINTING` in a shell; its output and errors. AssertionError if it has not gone on to
    its end."""
    (tmp_path / "printing.py").write_text(PRINTING)
    command = [
        "bash",
        "-c",
        f"'{sys.executable}' '{tmp_path}/printing.py' '{tmp_path}/done' {redirect}",
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    done = subprocess.run(
        command, env=environment, stdout=stdout, stderr=subprocess.PIPE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "done").read_text() == "done", done.stderr
    return done.stdout, done.stderr


def test_a_letter_that_the_terminal_cannot_spell_is_escaped(tmp_path):
    output, errors = run(tmp_path, PYTHONIOENCODING="ascii")
    assert output.splitlines()[-1] == rb"line 2 \u30a6\u30a4"
    assert not errors


def test_work_goes_on_when_nobody_reads_its_output(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    assert (
        run(tmp_path, stdout=writing)[1]
        == b"standard output takes no more (Broken pipe): continuing without it\n"
    )


@pytest.mark.parametrize("redirect", ["> /dev/full", "> /dev/full 2>&1", ">&-", ">&- 2>&-"])
def test_work_goes_on_when_its_output_takes_no_more(tmp_path, redirect):
    said = b"standard output takes no more (No space left on device): continuing without it\n"
    assert run(tmp_path, redirect)[1] == (said if redirect == "> /dev/full" else b"")


def test_a_file_name_that_the_locale_cannot_spell_is_an_error_with_a_remedy(tmp_path):
    code = (
        "from gram_platform.config.endings import exit_codes\nwith exit_codes():"
        " open('/tmp/\\u30a6', 'w')"
    )
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "PYTHONUTF8": "0",
        "PYTHONCOERCECLOCALE": "0",
        "LC_ALL": "POSIX",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    remedy = "PYTHONUTF8=1 or LC_ALL=C.UTF-8"
    assert re.fullmatch(rf"error: .*\bascii\b.*'/tmp/\\u30a6': set {remedy}\n", done.stderr)
