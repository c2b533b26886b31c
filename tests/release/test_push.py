"""`gram export --push`: an export is on the hub as it is on the disk, and the login is never
told."""

import importlib.util

import pytest
from huggingface_hub import constants, get_token
from mlflow import MlflowClient

from gram_platform.cli import main
from gram_platform.store import Store
from tests import tiny
from tests.release.hub import OWNER, TOKEN, as_client, running_hub
from tests.release.planted import complete

NAME = f"{OWNER}/stories-core.1"


@pytest.fixture
def hub():
    with running_hub() as hub, as_client(hub):
        yield hub


@pytest.fixture
def storage(tmp_path):
    """(storage, id of a GRAM run)"""
    store = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)
    return str(tmp_path / "storage"), complete(store, tiny.run_config())


def export(storage, out, *arguments):
    place, run_id = storage
    main(["export", run_id, "--storage", place, "--out", str(out), *map(str, arguments)])


def refused(capsys, storage, out, *arguments):
    with pytest.raises(SystemExit) as ended:
        export(storage, out, *arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


def files_of(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_the_hub_has_the_folder(hub, storage, tmp_path, capsys):
    """In a new model, which is private; the same export again is one more commit."""
    out = tmp_path / "out"
    export(storage, out, "--modules", "lisp", "--max-file-gb", 1e-5, "--push", NAME)
    model, told = hub.models[NAME], capsys.readouterr()
    assert model.is_private
    assert {
        name: data for name, data in model.files.items() if name != ".gitattributes"
    } == files_of(out)
    assert sum(name.endswith(".safetensors") for name in model.files) > 1
    assert f"{NAME}: commit {model.commits[-1]} at {hub.url}/{NAME}" in told.out
    assert TOKEN not in told.out + told.err
    assert TOKEN.encode() not in b"".join(model.files.values())
    export(storage, out, "--modules", "lisp", "--max-file-gb", 1e-5, "--push", NAME)
    assert len(model.commits) == 3


def test_weights_of_another_export_are_not_covered(hub, storage, tmp_path, capsys):
    """A history keeps what a commit replaces, and with it the modules that were removed."""
    export(storage, tmp_path / "all", "--all-modules", "--push", NAME)
    before = dict(hub.models[NAME].files)
    refused(capsys, storage, tmp_path / "core", "--modules", "", "--push", NAME)
    assert hub.models[NAME].files == before
    assert (tmp_path / "core" / "model.safetensors").is_file()  # the export itself is complete


def test_the_registry_s_version_names_the_model_of_the_hub(hub, storage, tmp_path):
    """Also one that was registered before it was pushed."""
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    common = ("--modules", "", "--register", "core", "--tracking-uri", uri)
    export(storage, tmp_path / "out", *common)
    export(storage, tmp_path / "out", *common, "--push", NAME)
    (version,) = MlflowClient(uri).search_model_versions("name = 'core'")
    assert version.tags["gram.hub"] == NAME
    assert version.tags["gram.hub_commit"] == hub.models[NAME].commits[-1]


@pytest.mark.parametrize("name", ["stories", "a/b/c", "my lab/name"])
def test_a_malformed_name_is_refused_before_any_work(name, hub, storage, tmp_path, capsys):
    refused(capsys, storage, tmp_path / "out", "--modules", "", "--push", name)
    assert not (tmp_path / "out").exists()
    assert not hub.requests


def test_without_the_library_the_extra_is_named(hub, storage, tmp_path, capsys, monkeypatch):
    installed = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name: None if name == "huggingface_hub" else installed(name),
    )
    refused(capsys, storage, tmp_path / "out", "--modules", "", "--push", NAME)
    assert not (tmp_path / "out").exists()


def test_without_a_login_nothing_begins(hub, storage, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    assert get_token() is None
    refused(capsys, storage, tmp_path / "out", "--modules", "", "--push", NAME)
    assert not (tmp_path / "out").exists()
    assert not hub.requests


@pytest.mark.parametrize(
    ("token", "name", "reason"), [("hf_wrong", NAME, "401"), (TOKEN, "other/name", "403")]
)
def test_what_the_hub_refuses_is_told_without_the_login(
    token, name, reason, hub, storage, tmp_path, capsys
):
    with as_client(hub, token):
        message = refused(capsys, storage, tmp_path / "out", "--modules", "", "--push", name)
    assert reason in message
    assert token not in message
    assert not hub.models
    assert (tmp_path / "out" / "model.safetensors").is_file()


def test_a_file_that_fails_leaves_no_commit(hub, storage, tmp_path, capsys):
    hub.has_room = False
    message = refused(capsys, storage, tmp_path / "out", "--modules", "", "--push", NAME)
    assert TOKEN not in message
    assert len(hub.models[NAME].commits) == 1


def test_a_hub_that_is_away_is_told(storage, tmp_path, capsys):
    with running_hub() as hub:
        pass
    with as_client(hub):
        refused(capsys, storage, tmp_path / "out", "--modules", "", "--push", NAME)
