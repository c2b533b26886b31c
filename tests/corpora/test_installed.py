"""The corpus `installed`: equal text from equal packages, what is left out, too little text, this
environment."""

import base64
import json
import os
import random
import shutil
import time
from pathlib import Path

import pytest

from gram_platform.corpora import Packing, check, prepare, resolve
from gram_platform.corpora.installed import BYTES_OF_LABEL, DOCUMENT_CHARS, provide_installed_text
from tests.refused import refused

WANTED = {"core": 60_000, "cpp": 20_000, "javascript": 20_000, "stubs": 20_000, "licences": 20_000}
ENDINGS = {
    "core": "{}.py",
    "cpp": "{}.hpp",
    "javascript": "{}.js",
    "stubs": "{}.pyi",
    "licences": "LICENSE-{}.txt",
}


def some_text(seed: int, num_lines: int = 60) -> str:
    """About 40 characters a line, no two lines alike."""
    rng = random.Random(seed)
    return "".join(f"value_{seed}_{line} = {rng.getrandbits(64)}\n" for line in range(num_lines))


@pytest.fixture
def packages(tmp_path) -> Path:
    """A folder of packages with twice the text that is wanted of every label."""
    root = tmp_path / "site-packages"
    for number in range(80):
        for place, (label, name) in enumerate(ENDINGS.items()):
            folder = root / f"package{number % 7}" / label
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name.format(number)).write_text(some_text(100 * number + place))
    return root


def collected(cache: Path, *folders: Path, wanted=WANTED) -> list[tuple[str, str]]:
    lines = provide_installed_text(cache, folders, wanted).read_text().splitlines()
    return [(record["label"], record["text"]) for record in map(json.loads, lines)]


def test_equal_packages_are_one_corpus_wherever_and_whenever_they_were_installed(
    tmp_path, packages, settings
):
    other = shutil.copytree(packages, tmp_path / "elsewhere" / "lib", copy_function=shutil.copyfile)
    for path in other.rglob("*.py"):
        os.utime(path, (1, 1))
    first, second = (
        provide_installed_text(tmp_path / root.name, (root,), WANTED) for root in (packages, other)
    )
    assert first.read_bytes() == second.read_bytes()
    assert str(tmp_path) not in first.read_text()
    recipes = [resolve(path, Packing(**settings)) for path in (first, second)]
    assert recipes[0].data_id == recipes[1].data_id
    assert recipes[0].domains == ("core", "cpp", "javascript", "licences", "stubs")
    packed = prepare(recipes[0], tmp_path / "data")
    packed.verify()
    assert packed.num_sequences("validation", "cpp") >= settings["validation_sequences"]


def test_every_label_has_its_bytes_and_no_more_than_a_document_above(tmp_path, packages):
    found = dict.fromkeys(WANTED, 0)
    for label, text in collected(tmp_path, packages):
        found[label] += len(text)
    assert all(0 <= found[label] - wanted < DOCUMENT_CHARS for label, wanted in WANTED.items())


def test_the_text_is_written_once_until_packages_change(tmp_path, packages):
    first = provide_installed_text(tmp_path / "cache", (packages,), WANTED)
    before = first.stat().st_mtime_ns
    assert provide_installed_text(tmp_path / "cache", (packages,), WANTED) == first
    assert first.stat().st_mtime_ns == before
    changed = next(packages.rglob("*.hpp"))
    changed.write_text(changed.read_text() + some_text(1))
    second = provide_installed_text(tmp_path / "cache", (packages,), WANTED)
    assert sorted((tmp_path / "cache" / "installed").iterdir()) == sorted((first, second))


LEFT_OUT = {
    "a/latin.py": some_text(9).encode() + "é".encode("latin-1"),
    "a/empty.py": b"",
    "a/blank.h": b" \n" * 5000,
    "a/short.h": b"#pragma once\n",
    "a/table.py": some_text(9).encode() + b"TABLE = '" + b"9, " * 1000 + b"'\n",
    "a/font.js": base64.b64encode(random.Random(9).randbytes(2000)),
    "a/__pycache__/b.py": some_text(9).encode(),
    "a/.hidden/b.py": some_text(9).encode(),
    "gram_platform/own.py": some_text(9).encode(),
    "gram_platform-0.1.0.dist-info/licenses/LICENSE": some_text(9).encode(),
    "__editable___gram_platform_0_1_0_finder.py": some_text(9).encode(),
    "a/copy.py": some_text(100).encode(),  # package1's file of that text: a document is there once
    "a/copy_of_windows.py": some_text(100).replace("\n", "\r\n").encode(),
    "a/notes.txt": some_text(9).encode(),
    "a/license.json": some_text(9).encode(),
}


def test_what_is_left_out(tmp_path, packages):
    everything = dict.fromkeys(WANTED, 500_000)
    before = collected(tmp_path / "before", packages, wanted=everything)
    for name, content in LEFT_OUT.items():
        (packages / name).parent.mkdir(parents=True, exist_ok=True)
        (packages / name).write_bytes(content)
    assert sorted(collected(tmp_path / "after", packages, wanted=everything)) == sorted(before)


def test_documents_end_at_line_ends_and_minified_scripts_where_they_must(tmp_path, packages):
    script = "".join(f"f{n}(x);" for n in range(4000))
    (packages / "bundle.min.js").write_text(script)
    (packages / "long.py").write_text("\ufeff" + some_text(7, 2000))
    texts = [
        text for _, text in collected(tmp_path, packages, wanted=dict.fromkeys(WANTED, 500_000))
    ]
    assert max(map(len, texts)) == DOCUMENT_CHARS
    parts = [text for text in texts if text in some_text(7, 2000)]
    assert len(parts) >= 10
    assert all(text.endswith("\n") and len(text) > DOCUMENT_CHARS // 2 for text in parts)
    assert sum(map(len, parts)) <= 30_000  # of one file
    assert [text for text in texts if text in script][:2] == [script[:3000], script[3000:6000]]


def test_two_folders_are_one_corpus(tmp_path, packages):
    """Pure and compiled packages may lie in two places."""
    together = sorted(collected(tmp_path / "one", packages, wanted=dict.fromkeys(WANTED, 500_000)))
    (tmp_path / "lib64").mkdir()
    for number in (1, 4):
        (packages / f"package{number}").rename(tmp_path / "lib64" / f"package{number}")
    folders = (packages, tmp_path / "lib64")
    assert (
        sorted(collected(tmp_path / "two", *folders, wanted=dict.fromkeys(WANTED, 500_000)))
        == together
    )


def test_too_little_text_of_a_label(tmp_path, packages):
    for path in packages.rglob("*.hpp"):
        path.unlink()
    (packages / "only.cuh").write_text(some_text(1))
    with refused("corpus", "installed [label cpp]"):
        provide_installed_text(tmp_path / "cache", (packages,), WANTED)
    assert list((tmp_path / "cache" / "installed").iterdir()) == []
    with refused("corpus", "installed [label core]"):
        provide_installed_text(tmp_path / "cache", (tmp_path / "nowhere",), WANTED)


def test_its_text_needs_a_storage(settings):
    with refused("cache_dir", None):
        resolve("installed", Packing(**settings))


@pytest.mark.slow  # a study takes the packages on this disk in tests/studies/test_measurements.py
def test_this_environment(tmp_path, settings):
    """Every machine that runs the tests has the corpus, within seconds.

    Its file is the same corpus by another name.
    """
    began, calls = time.monotonic(), []
    recipe = resolve(
        "installed",
        Packing(**settings),
        cache_dir=tmp_path,
        progress=lambda *call: calls.append(call),
    )
    assert time.monotonic() - began < 30.0
    assert {what for what, _, _ in calls} == {"collecting installed text", "reading"}
    assert recipe.domains == ("core", "cpp", "javascript", "licences", "stubs")
    assert all(d.num_bytes >= 0.2 * BYTES_OF_LABEL[d.name] for d in recipe.domains_from)
    (file,) = (tmp_path / "installed").iterdir()
    assert "gram_platform" not in file.read_text()
    assert (
        resolve(file, Packing(**settings))
        == resolve("installed", Packing(**settings), cache_dir=tmp_path)
        == recipe
    )
    results = check("installed")
    assert [result.label for result in results] == list(BYTES_OF_LABEL)
    assert all(result.ok and Path(result.source).is_file() for result in results)
