"""The folder of an export: symbolic links are followed, and what nothing can be moved onto is
refused at once."""

import errno
import json
import os

import pytest

from gram_platform.config import View
from gram_platform.release import export as exporting
from gram_platform.release.export import RECORD
from gram_platform.store import Store
from tests import tiny
from tests.refused import refused
from tests.release.planted import complete, exported


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)


@pytest.fixture
def view(store):
    return View(complete(store, tiny.run_config()))


@pytest.fixture
def no_work(monkeypatch):
    def work(*_):
        raise AssertionError("work has begun")

    monkeypatch.setattr(exporting, "open_view", work)


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_is_followed(is_there, store, view, tmp_path):
    real, link, longer = tmp_path / "disk" / "real", tmp_path / "link", tmp_path / "longer"
    if is_there:
        real.mkdir(parents=True)
    link.symlink_to(real)
    longer.symlink_to("link")
    found = exported(store, view, longer)
    assert (found.folder, found.is_new) == (real, True)
    assert (real / RECORD).is_file()
    assert link.is_symlink()
    assert longer.is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"disk", "link", "longer", "storage"}
    assert [path.name for path in real.parent.iterdir()] == ["real"]
    assert not exported(store, view, link).is_new


def test_a_folder_behind_a_link_is_not_overwritten(store, view, tmp_path, no_work):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "thesis.txt").write_text("mine")
    (tmp_path / "link").symlink_to("real")
    with refused("out", str(tmp_path / "real")):
        exported(store, view, tmp_path / "link")


def test_a_circle_of_links_is_refused_before_the_work(store, view, tmp_path, no_work):
    (tmp_path / "circle").symlink_to("back")
    (tmp_path / "back").symlink_to("circle")
    for out in (tmp_path / "circle", tmp_path / "circle" / "new"):
        with refused("out", str(out)):
            exported(store, view, out)


def test_a_mount_point_is_refused_before_the_work(store, view, tmp_path, monkeypatch, no_work):
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "link").symlink_to("out")
    monkeypatch.setattr(exporting.os.path, "ismount", lambda path: path == out)
    for name in ("out", "link"):
        with refused("out", str(out)):
            exported(store, view, tmp_path / name)
    assert not any(out.iterdir())


def test_a_folder_that_cannot_be_replaced_is_named(store, tmp_path, monkeypatch):
    """Something was mounted or put there while the export was written."""

    def fail(*_):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    monkeypatch.setattr(exporting.os, "rename", fail)
    with refused("out", str(tmp_path / "out")), exporting.atomic_folder(tmp_path / "out"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["storage"]


def test_a_record_of_another_kind_is_no_export(store, view, tmp_path):
    exported(store, view, tmp_path / "out")
    record = tmp_path / "out" / RECORD
    fields = json.loads(record.read_text())
    without = {key: value for key, value in fields.items() if key != "agreements"}
    for odd in ([], without, fields | {"agreements": {"": [{"tolerance": "none"}]}}):
        record.write_text(json.dumps(odd))
        with refused("out", str(tmp_path / "out")):
            exported(store, view, tmp_path / "out")


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/null")])
def test_a_place_that_is_no_folder_is_refused(make, store, view, tmp_path, no_work):
    make(tmp_path / "out")
    with refused("out"):
        exported(store, view, tmp_path / "out")
