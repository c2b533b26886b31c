"""`make lock`: a lock made from pip's report installs the same file, and no other one."""

import json
import subprocess
import sys
import zipfile

import pytest

from tests import lock as script


def make_wheel(folder, body):
    folder.mkdir(exist_ok=True)
    info = "thing-1.0.dist-info"
    with zipfile.ZipFile(folder / "thing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("thing.py", body)
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: Thing\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


def pip(folder, *arguments):
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--no-index"]
    found = subprocess.run([*command, "--find-links", str(folder), *arguments], capture_output=True, text=True)
    return found.returncode, found.stderr


def lock(report):
    return subprocess.run([sys.executable, script.__file__, report], capture_output=True, text=True)


def test_a_lock_installs_the_same_file_and_no_other(tmp_path):
    wheels, report = tmp_path / "wheels", tmp_path / "report.json"
    make_wheel(wheels, "x = 1\n")
    assert pip(wheels, "--report", str(report), "thing") == (0, "")
    locked = lock(report)
    assert locked.stdout.startswith("Thing==1.0 --hash=sha256:")
    (tmp_path / "constraints.lock").write_text(locked.stdout)
    asked = ("--require-hashes", "--no-deps", "-r", str(tmp_path / "constraints.lock"))
    assert pip(wheels, *asked) == (0, "")
    make_wheel(wheels, "x = 2\n")
    code, said = pip(wheels, *asked)
    assert code != 0
    assert "DO NOT MATCH THE HASHES" in said


@pytest.mark.parametrize("found", [{"url": "git+https://x", "vcs_info": {}}, {"url": "file:///x", "archive_info": {}}])
def test_a_package_without_a_hash_is_named(tmp_path, found):
    item = {"metadata": {"name": "thing", "version": "1.0"}, "download_info": found}
    own = {"metadata": {"name": "gram-platform", "version": "0"}, "download_info": {"url": "", "dir_info": {}}}
    (tmp_path / "report.json").write_text(json.dumps({"install": [own, item]}))
    locked = lock(tmp_path / "report.json")
    assert locked.returncode != 0
    assert locked.stdout == ""
    assert "thing: " in locked.stderr
