"""A folder that is full of modules: no command that is started there imports one of them, nor does
a process that it starts."""

import os
import pkgutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import pytest

from gram_platform.engine.machine import free_port
from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from tests.conftest import ROOT

PROBE = """
from gram_platform.engine.devices import probe_afresh
print(repr(probe_afresh("cpu").failure))
"""
GRAM = "from gram_platform.cli import main; main()"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Every module of the standard library and of the installed packages has a double here."""
    place = tmp_path_factory.mktemp("full")
    for name in {*sys.stdlib_module_names, *(one.name for one in pkgutil.iter_modules())}:
        (place / f"{name}.py").write_text(
            f"open('was_run', 'a').write('{name} ')\nraise SystemExit"
        )
    return place


def start(folder: Path, program: str, *arguments: str) -> subprocess.Popen:
    """Starts a program as an installed script is started."""
    script = folder.parent / f"{folder.name}-bin" / "gram"
    script.parent.mkdir(exist_ok=True)
    script.write_text(program)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local"}
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(folder: Path, program: str, arguments: Sequence[str] = ()) -> str:
    process = start(folder, program, *arguments)
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    assert not (folder / "was_run").exists()
    return said


def test_a_probe_imports_none(folder):
    assert output_of(folder, PROBE).strip().endswith("''")


@pytest.mark.slow
@pytest.mark.ray
def test_a_study_on_ray_imports_none(folder, tmp_path):
    flags = ["--preset", "smoke", "--sizes", "tiny", "--seeds", "1", "--methods", "baseline"]
    said = output_of(folder, GRAM, ["run", "scaling", *flags, "--storage", str(tmp_path)])
    assert "2 of 2 nodes done" in said
    assert (tmp_path / "site" / "index.html").exists()


@pytest.mark.slow
def test_mlflows_pages_import_none(folder, tmp_path):
    Store(tmp_path).open_for_writing(min_free_bytes=0)
    Tracker(default_tracking_uri(str(tmp_path))).prepare_database()
    port = free_port()
    process = start(folder, GRAM, "ui", "--storage", str(tmp_path), "--port", str(port))
    deadline, answered = time.monotonic() + 100.0, False
    while not answered and process.poll() is None and time.monotonic() < deadline:
        try:
            answered = urllib.request.urlopen(f"http://127.0.0.1:{port}/health").status == 200
        except OSError:
            time.sleep(0.5)
    process.terminate()
    said, _ = process.communicate(timeout=60)
    assert answered, said
    assert not (folder / "was_run").exists()
