"""A storage with links and pipes in the wrong places: nothing outside it is read, written or
removed."""

import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import json
import os
import pickle
import shutil
import socket
import tarfile
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gram_platform.cli import main
from gram_platform.cli.check import check_command
from gram_platform.cli.storage import gc_command, show_command, status_command
from gram_platform.config import Evaluation, View
from gram_platform.config.identity import absolute_place
from gram_platform.config.plain import MOST_JSON_BYTES
from gram_platform.config.written import read_json, read_toml
from gram_platform.corpora import Packing, hub, prepare, resolve
from gram_platform.corpora.packed import CorruptCorpus
from gram_platform.engine import handover
from gram_platform.engine.handover import MOST_BYTES_UNPACKED, unpack_archive, write_archive
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.store.data import open_corpus, provide_corpus
from gram_platform.store.files import CorruptFile, seal
from gram_platform.store.folders import LocalFolder
from gram_platform.studies.searches.optuna_studies import open_storage
from tests.refused import refused
from tests.store.training import run_config, train
from tests.tiny import weights_of

DONE, HALF = run_config(8), run_config(8, seed=1)
EVALUATION = Evaluation(View.of(DONE.run_id), "d" * 12, ("core",), 4)
RECIPE = resolve("stories-smoke", Packing(seq_len=32, vocab_size=320, sample_bytes=25_000))

pytestmark = pytest.mark.timeout(120)  # a reader of a pipe would wait for ever


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """Packed data, a run that ended and one that did not, an evaluation with tensors, a study, a
    search and a site."""
    root = tmp_path_factory.mktemp("finished") / "storage"
    store = Store(root).open_for_writing(min_free_bytes=0)
    prepare(RECIPE, store.data_root)
    train(str(root), DONE)
    train(str(root), HALF, last=4)
    store.run(DONE.run_id).add_tags(
        {"method": "gram", "size": "x", "seed": "0", "elicited": "lisp"}
    )
    store.run(HALF.run_id).add_tags({"method": "gram", "size": "x", "seed": "1"})
    place = store.evaluation(EVALUATION.eval_id)
    place.ensure_config(EVALUATION)
    place.complete({"losses": {"core": 2.5}}, {"elapsed_s": 1.0}, {"means": torch.ones(2)})
    store.study_dir("scaling").write("table.csv", b"a,b\n")
    store.search_dir("0" * 12).write("search.json", b"{}")
    LocalFolder(str(root), writable=True).child("site", "studies").write("scaling.html", b"")
    return root


@pytest.fixture
def root(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "storage"))


@pytest.fixture
def outside(tmp_path) -> Iterator[Path]:
    """A folder of the reader's, with names that mean something in a storage; it is unchanged after
    the test."""
    home = tmp_path / "home"
    for name in (
        "weights/a.bin",
        "000000004/b.jpg",
        "000000006/manifest.json",
        ".old.tmp",
        "weights.safetensors",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("mine")
    os.utime(home / ".old.tmp", (0, 0))
    before = contents(home)
    yield home
    assert contents(home) == before


def contents(folder: Path) -> dict[str, str]:
    return {
        str(p.relative_to(folder)): p.read_text() if p.is_file() else ""
        for p in sorted(folder.rglob("*"))
    }


def use_everything(root: Path) -> None:
    """What studies, nodes and commands do in a storage; each may refuse by name, and none may do
    anything else."""
    works: list[Callable[[], object]] = [
        lambda: status_command(str(root)),
        lambda: show_command(DONE.run_id, str(root)),
        lambda: check_command(str(root)),
        lambda: gc_command(str(root), dry_run=True),
        lambda: train(str(root), HALF),
        lambda: train(str(root), DONE),
        lambda: provide_corpus(RECIPE, writable(root)),
        lambda: open_corpus(Store(root), RECIPE.data_id).train("core")[:],
        lambda: writable(root).run(DONE.run_id).add_tags({"method": "dense"}),
        lambda: weights_of(Store(root).run(DONE.run_id)),
        lambda: write_evaluation(writable(root)),
        lambda: writable(root).evaluation(EVALUATION.eval_id).tensors(),
        lambda: writable(root).study_dir("scaling").write("table.csv", b"c,d\n"),
        lambda: writable(root).search_dir("0" * 12).write("search.json", b"{}"),
        lambda: (
            LocalFolder(str(root), writable=True)
            .child("site", "studies")
            .write("scaling.html", b"new")
        ),
        lambda: gc_command(str(root)),
    ]
    for work in works:
        with contextlib.suppress(ValueError, SystemExit):
            work()


def writable(root: Path) -> Store:
    return Store(root).open_for_writing(min_free_bytes=0)


def write_evaluation(store: Store) -> None:
    place = store.evaluation(EVALUATION.eval_id)
    place.ensure_config(EVALUATION)
    place.add_tags({"study": "scaling"})
    place.complete({"losses": {"core": 2.5}}, {"elapsed_s": 1.0}, {"means": torch.ones(2)})


def places(root: Path, kind: str) -> list[Path]:
    """One path of the storage for each name, such as one of all that are called
    tensors.safetensors."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*")):
        if path.is_dir() if kind == "folder" else path.is_file():
            parents = path.relative_to(root).parts
            name = path.name if path.suffix or path.parent == root or path.name.isalpha() else "id"
            name = path.suffix if path.suffix in (".bin", ".jsonl") else name
            found.setdefault(f"{len(parents)} {parents[0]} {name}", path)
    return list(found.values())


def replace(path: Path, make: Callable[[Path], object]) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    make(path)


def bind(path: Path) -> None:
    with contextlib.chdir(path.parent):  # a socket's path has at most 108 bytes
        socket.socket(socket.AF_UNIX).bind(path.name)


def plant(path: Path, what: str, target: Path) -> None:
    """Puts a link to the target, a pipe or a socket in the place of a file or a folder."""
    makers = {"a link": lambda path: path.symlink_to(target), "a pipe": os.mkfifo, "a socket": bind}
    replace(path, makers[what])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "what", ["a link", "a pipe", pytest.param("a socket", marks=pytest.mark.slow)]
)
def test_what_has_the_place_of_a_file_leads_nowhere(finished, outside, tmp_path, capsys, what):
    relatives = [path.relative_to(finished) for path in places(finished, "file")]
    assert len(relatives) > 15
    for number, relative in enumerate(relatives):
        root = Path(shutil.copytree(finished, tmp_path / str(number)))
        plant(root / relative, what, outside / "weights.safetensors")
        use_everything(root)
        shutil.rmtree(root)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_has_the_place_of_a_folder_leads_nowhere(finished, outside, tmp_path, capsys):
    relatives = [path.relative_to(finished) for path in places(finished, "folder")]
    assert len(relatives) > 15
    for number, relative in enumerate(relatives):
        root = Path(shutil.copytree(finished, tmp_path / str(number)))
        plant(root / relative, "a link", outside)
        use_everything(root)
        shutil.rmtree(root)


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path):
        self.mark = str(mark)

    def __reduce__(self):
        return os.mkdir, (self.mark,)


def forge(root: Path, path: Path, data: bytes) -> None:
    """Replaces a file, and the hashes of it, as somebody who can write the storage can."""
    old, new = (hashlib.sha256(raw).hexdigest() for raw in (path.read_bytes(), data))
    path.write_bytes(data)
    for place in root.rglob("*.json"):
        if old in (text := place.read_text()):
            fields = json.loads(text.replace(old, new))
            place.write_bytes(
                seal({k: v for k, v in fields.items() if k != "sha256"})
                if "sha256" in fields
                else b"{}"
            )


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_pickle_in_the_place_of_tensors_is_not_executed(finished, tmp_path, capsys):
    """With its right hash everywhere: weights, a checkpoint, an evaluation's tensors, packed
    data."""
    mark = tmp_path / "executed"
    data = pickle.dumps(Payload(mark))
    pickle.loads(data)
    mark.rmdir()
    tensors = [
        p.relative_to(finished)
        for p in places(finished, "file")
        if p.suffix in (".safetensors", ".bin")
    ]
    assert len(tensors) >= 4, tensors
    for number, relative in enumerate(tensors):
        root = Path(shutil.copytree(finished, tmp_path / str(number)))
        forge(root, root / relative, data)
        use_everything(root)
        assert not mark.exists(), relative


# ------------------------------------------------------------------------------ what is said of it


def test_readers_name_the_link_that_they_leave_out(root, outside, capsys):
    attempts = next((root / "runs" / DONE.run_id).glob("attempts"))
    (attempts / "0000-x").symlink_to(outside)
    (root / "studies" / "other").symlink_to(outside)
    replace(
        root / "runs" / DONE.run_id / ".tags.lock",
        lambda path: path.symlink_to(outside / "weights.safetensors"),
    )
    for command in ("status", "gc"):
        with pytest.warns(RuntimeWarning, match="attempts/0000-x"):
            main([command, "--storage", str(root)])
    with pytest.raises(SystemExit):
        main(["check", "--storage", str(root)])
    said = capsys.readouterr().out
    assert all(name in said for name in ("attempts/0000-x", "studies/other", ".tags.lock"))


@pytest.mark.parametrize("name", ["runs", "mlflow.db"])
def test_nothing_is_written_to_a_storage_with_a_link(root, outside, name):
    shutil.rmtree(root / name, ignore_errors=True)
    (root / name).symlink_to(outside)
    with refused("storage", str(root / name)):
        Store(root).open_for_writing()


def test_the_storage_itself_may_be_a_link(root, tmp_path):
    (tmp_path / "link").symlink_to(root)
    store = Store(tmp_path / "link").open_for_writing(min_free_bytes=0)
    assert weights_of(store.run(DONE.run_id))
    assert open_corpus(store, RECIPE.data_id).path == tmp_path / "link" / "data" / RECIPE.data_id
    (tmp_path / "circle").symlink_to("circle")
    with refused("storage", str(tmp_path / "circle")):
        Store(tmp_path / "circle").open_for_writing()


@pytest.mark.parametrize("name", ["scans", "installed", "hub", f".parts-{RECIPE.data_id}"])
def test_folders_that_packing_uses_are_no_links(tmp_path, outside, name):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).symlink_to(outside)
    (tmp_path / "text").mkdir()
    for label in ("core", "other"):
        (tmp_path / f"text/{label}.jsonl").write_text(
            json.dumps({"text": "a b c " * 50, "label": label}) + "\n"
        )
    works = {
        "scans": lambda: resolve(
            tmp_path / "text", Packing(seq_len=32, vocab_size=320), cache_dir=tmp_path / "data"
        ),
        "installed": lambda: resolve(
            "installed", Packing(seq_len=32, vocab_size=320), cache_dir=tmp_path / "data"
        ),
        "hub": lambda: hub.fetch(None, tmp_path / "data/hub", lambda *_: None),
    }
    with refused("storage", str(tmp_path / "data" / name)):
        works.get(name, lambda: prepare(RECIPE, tmp_path / "data"))()


def test_a_file_system_without_locks_ends_nothing(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.warns(RuntimeWarning):
        assert train(str(tmp_path), DONE)["run_id"] == DONE.run_id


def test_a_file_system_without_hard_links_or_synced_folders_holds_a_run(tmp_path, monkeypatch):
    fsync = os.fsync

    def refuse(number: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{number}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(number)

    def no_link(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(os, "link", no_link)
    assert train(str(tmp_path), DONE)["run_id"] == DONE.run_id
    assert train(str(tmp_path), DONE) == Store(tmp_path).run(DONE.run_id).result()


@pytest.mark.parametrize("name", ["a#b", "s3://x"])
def test_a_folders_name_may_look_like_an_address(tmp_path, name):
    place = f"{tmp_path}/{name}"
    assert absolute_place("storage", place) == os.path.abspath(place)
    train(place, DONE)
    assert Store(place).root == os.path.abspath(place)
    assert Path(place, "runs", DONE.run_id, "result.json").is_file()


@pytest.mark.parametrize("name", ["../../home/weights.safetensors", "part-00000.jsonl.zst/.."])
def test_a_fetched_row_names_no_file_elsewhere(tmp_path, outside, name):
    folder = tmp_path / "hub" / "row"
    folder.mkdir(parents=True)
    part = {"name": name, "bytes": 4, "documents": 1, "digest": "d", "skipped": 0}
    (folder / "state.json").write_text(
        json.dumps({"parts": [part], "position": None, "exhausted": True})
    )
    assert hub._load_state(folder)["parts"] == []


@pytest.mark.parametrize(
    "name", [".optuna.db.unfinished", "optuna.db", "optuna.db-journal", ".optuna.lock"]
)
def test_optunas_database_is_not_written_through_a_link(tmp_path, outside, name):
    (tmp_path / "storage").mkdir()
    (tmp_path / "storage" / name).symlink_to(outside / "weights.safetensors")
    with contextlib.suppress(ValueError):
        open_storage(f"sqlite:///{tmp_path}/storage/optuna.db").engine.dispose()
    assert (tmp_path / "storage/optuna.db").is_symlink() == (name == "optuna.db")


# --------------------------------------------------------------------------- values of stored JSON


@pytest.mark.parametrize("text", ["{", "[]", '{"layout":"1"}', "[" * 10**5])
def test_a_damaged_store_json_is_refused_with_what_to_do(root, text):
    (root / "store.json").write_text(text)
    with refused("storage", str(root)):
        Store(root).open_for_writing()
    (root / "store.json").unlink()
    assert Store(root).open_for_writing(min_free_bytes=0).writable
    assert json.loads((root / "store.json").read_text())["layout"] == 1


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["state.json", "layout.json"])
@pytest.mark.parametrize("text", [b"[" * 10**5, b"[]"])
def test_a_checkpoints_json_of_another_shape_with_the_right_hash_is_set_aside(root, name, text):
    newest = sorted((root / "runs" / HALF.run_id).rglob("checkpoints/*"))[-1]
    forge(newest, newest / name, text)
    with writable(root).run(HALF.run_id).start_attempt("next") as attempt:
        assert attempt.resume().step == 2


@pytest.mark.parametrize("line", [b"7", b'{"step":1,"time":2,"metrics":{"a":"x"}}'])
def test_a_segment_of_another_shape_with_the_right_hash_is_left_out(root, line):
    segment = sorted((root / "runs" / HALF.run_id).rglob("segments/*.jsonl"))[0]
    forge(root / "runs" / HALF.run_id, segment, line + b"\n")
    with pytest.warns(RuntimeWarning, match=segment.name):
        assert [r["step"] for r in Store(root).run(HALF.run_id).records()] == [3, 4]


# -------------------------------------------------------------------------------------- an archive


def archive_of(root: Path, path: Path) -> Path:
    nodes = [Node.of(DONE, {}), Node.of(EVALUATION, {})]
    assert write_archive(path, nodes, Store(root)) == 2
    return path


def test_an_archive_writes_what_the_storage_lacks_and_nothing_else(root, tmp_path):
    # Its path is too long for a header.
    long = Path("runs", DONE.run_id, "x" * 150)
    (root / long).write_text("y")
    archive = archive_of(root, tmp_path / "results.tar.gz")
    home = Store(tmp_path / "home").open_for_writing(min_free_bytes=0)
    home.run(DONE.run_id).folder.write("tags.json", b'{"name":"mine"}\n')
    assert unpack_archive(archive, home) > 4
    assert home.run(DONE.run_id).result() == Store(root).run(DONE.run_id).result()
    assert (
        home.evaluation(EVALUATION.eval_id).result()
        == Store(root).evaluation(EVALUATION.eval_id).result()
    )
    assert home.run(DONE.run_id).tags() == {"name": "mine"}
    assert (tmp_path / "home" / long).read_text() == "y"
    assert unpack_archive(archive, home) == 0


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("runs/x/attempts", tarfile.SYMTYPE, "HOME"),
        ("runs/x/config.json", tarfile.LNKTYPE, "../../home/weights.safetensors"),
        ("runs/x/config.json", tarfile.FIFOTYPE, ""),
        ("runs/../../home/new", tarfile.REGTYPE, ""),
        ("/tmp/new", tarfile.REGTYPE, ""),
        ("data/x/manifest.json", tarfile.REGTYPE, ""),
    ],
)
def test_an_archive_with_anything_else_is_refused_before_anything_is_written(
    tmp_path, outside, name, kind, target
):
    path = tmp_path / "results.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member, type_ in (
            (tarfile.TarInfo("runs/y/config.json"), tarfile.REGTYPE),
            (tarfile.TarInfo(name), kind),
        ):
            member.type, member.linkname = (
                type_,
                target.replace("HOME", str(outside)) if type_ == kind else "",
            )
            archive.addfile(member, io.BytesIO(b""))
    home = Store(tmp_path / "storage").open_for_writing(min_free_bytes=0)
    with refused("archive"):
        unpack_archive(path, home)
    assert [entry.name for entry in (tmp_path / "storage").iterdir()] == ["store.json"]


SEGMENT, MIB = "runs/x/attempts/1/segments/1", 2**20


def member(
    name: str, claimed: int = 0, content: bytes = b"", kind: bytes = tarfile.REGTYPE
) -> bytes:
    """A member of an archive, whose header claims another size than the content has."""
    header = tarfile.TarInfo(name)
    header.size, header.type = claimed, kind
    return header.tobuf(tarfile.GNU_FORMAT) + content.ljust(-(-len(content) // 512) * 512, b"\0")


@pytest.mark.parametrize(
    "members",
    [
        member("runs/x/result.json", MOST_JSON_BYTES + 1),
        member(f"{SEGMENT}.jsonl", MOST_JSON_BYTES + 1),
        member(SEGMENT, MOST_BYTES_UNPACKED + 1),
        member(SEGMENT, MIB, bytes(MIB)) * 3,
        member(SEGMENT) + bytes(3 * MIB),
        member(SEGMENT) * 4,
        member(SEGMENT, -1024),
        member("long", MIB, b"1" * MIB, tarfile.XHDTYPE),
        member("long", 512, b"1" * 512, tarfile.XGLTYPE),
        member("long", 512, b"1" * 512, tarfile.GNUTYPE_LONGNAME),
        member(SEGMENT, 512, b"1" * 512, tarfile.GNUTYPE_SPARSE),
        member("runs/x"),
        member("runs/" + "x/" * 30 + "x"),
        member("runs/x/attempts") + member(SEGMENT),
        member(SEGMENT) + member("runs/x/attempts"),
        member(SEGMENT, 1024, b"cut"),
        member(SEGMENT) + b"not a header".ljust(512),
    ],
)
def test_an_archive_of_another_size_or_shape_is_refused(tmp_path, monkeypatch, members):
    """It is refused before anything is written, and before a long member is in memory."""
    monkeypatch.setattr(handover, "MOST_BYTES_IN_ALL", 2 * MIB)
    monkeypatch.setattr(handover, "MOST_FILES", 3)
    path, storage = tmp_path / "results.tar.gz", tmp_path / "storage"
    path.write_bytes(gzip.compress(member("runs/x/tags.json", 3, b"{}\n") + members))
    tracemalloc.start()
    with refused("archive"):
        unpack_archive(path, Store(storage))
    assert tracemalloc.get_traced_memory()[1] < MIB
    tracemalloc.stop()
    assert not storage.exists()


def test_an_archive_with_a_folder_where_the_storage_has_a_file_writes_nothing(tmp_path):
    path, storage = tmp_path / "results.tar.gz", tmp_path / "storage"
    path.write_bytes(gzip.compress(member("runs/x/tags.json") + member(SEGMENT)))
    store = Store(storage).open_for_writing(min_free_bytes=0)
    store.run("x").folder.write("attempts", b"")
    with refused("storage", str(storage / "runs/x/attempts")):
        unpack_archive(path, store)
    assert os.listdir(storage / "runs/x") == ["attempts"]


def test_json_of_many_megabytes_counts_as_damaged(root):
    """Its content is not read."""
    config = root / "runs" / DONE.run_id / "tags.json"
    os.truncate(config, 300 * MIB)
    os.truncate(root / "data" / RECIPE.data_id / "manifest.json", 300 * MIB)
    tracemalloc.start()
    with pytest.raises(CorruptFile):
        Store(root).run(DONE.run_id).folder.read_json("tags.json")
    with pytest.raises(CorruptCorpus):
        open_corpus(Store(root), RECIPE.data_id)
    with refused("recipe", str(config)):
        read_toml("recipe", config)
    assert tracemalloc.get_traced_memory()[1] < 2 * MOST_JSON_BYTES
    tracemalloc.stop()
    with refused("file", str(config)):
        read_json(config)


def test_an_archive_is_not_written_through_a_link(root, outside, tmp_path):
    archive = archive_of(root, tmp_path / "results.tar.gz")
    home = tmp_path / "other"
    (home / "runs" / DONE.run_id).mkdir(parents=True)
    (home / "runs" / DONE.run_id / "attempts").symlink_to(outside)
    with refused("storage", str(home / "runs" / DONE.run_id / "attempts")):
        unpack_archive(archive, Store(home).open_for_writing(min_free_bytes=0))


@pytest.mark.parametrize("content", [b"no archive", b"\x1f\x8b\x08\x00 cut"])
def test_a_file_that_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "results.tar.gz").write_bytes(content)
    with refused("archive"):
        unpack_archive(
            tmp_path / "results.tar.gz", Store(tmp_path / "home").open_for_writing(min_free_bytes=0)
        )
