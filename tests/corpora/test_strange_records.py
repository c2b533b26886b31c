"""Records as strangers write them: bombs, other encodings and line ends, nested columns, edits that
keep the time."""

import gzip
import json
import os
import tracemalloc

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from gram_platform.config.identity import InvalidField
from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.corpora.compression import open_unpacked
from gram_platform.corpora.records import MAX_RECORD_BYTES, ChangedText, Unit, read_unit
from gram_platform.corpora.sources import SCANS, find_units, scan_units
from tests.refused import refused

MB = 1_000_000


def test_a_record_may_have_268_mb(tmp_path, monkeypatch):
    """Of a file with holes: nothing is read where it is too large."""
    path = tmp_path / "a.txt"
    path.touch()
    os.truncate(path, 268_435_457)
    with pytest.raises(ValueError, match=r"a\.txt: "):
        list(read_unit(Unit((path,), "core")))
    os.truncate(path, 268_435_456)
    monkeypatch.setattr(type(path), "read_bytes", lambda path: b"its text")
    assert list(read_unit(Unit((path,), "core"))) == [("core", "its text")]
    assert MAX_RECORD_BYTES == 268_435_456


def test_a_zst_is_unpacked_a_little_at_a_time(tmp_path):
    """Some kilobytes may unpack to gigabytes."""
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(zstandard.compress(b" " * (120 * MB)))
    tracemalloc.start()
    try:
        with open_unpacked(path) as file:
            assert sum(map(len, iter(lambda: file.read(MB), b""))) == 120 * MB
        assert tracemalloc.get_traced_memory()[1] < 100 * MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("end", [b"\n", b" \r\n"])
def test_empty_lines_without_end_are_an_error_soon(tmp_path, end, monkeypatch):
    monkeypatch.setattr("gram_platform.corpora.records.MAX_EMPTY_LINES", 1000)
    path, record = tmp_path / "a.jsonl.gz", b'{"text": "a", "label": "core"}\n'
    path.write_bytes(gzip.compress(record + end * 1000 + record + end * 1001))
    records = read_unit(Unit((path,)))
    assert [next(records), next(records)] == [("core", "a")] * 2
    with pytest.raises(ValueError, match=r"a\.jsonl\.gz:2003: "):
        next(records)


def shared_text(path, num_chars: int, is_dictionary: bool, **options):
    """1,024 rows that share one text, in some hundred bytes.

    Typed as a dictionary, or only stored as one.
    """
    column = pyarrow.DictionaryArray.from_arrays(
        pyarrow.array([0] * 1024, pyarrow.int32()), ["x" * num_chars]
    )
    table = pyarrow.table(
        {"text": column if is_dictionary else column.cast("string"), "label": ["core"] * 1024}
    )
    pyarrow.parquet.write_table(table, path, compression="zstd", **options)
    return path


@pytest.mark.parametrize("is_dictionary", [True, False])
def test_rows_that_share_a_text_are_read_a_few_at_a_time(tmp_path, is_dictionary):
    """Python holds 64 MB of them, and Arrow too, not 256."""
    path = shared_text(tmp_path / "a.parquet", MB // 4, is_dictionary)
    assert path.stat().st_size < 2_000
    arrow_before = pyarrow.default_memory_pool().bytes_allocated()
    tracemalloc.start()
    try:
        held = [pyarrow.total_allocated_bytes() - arrow_before for _ in read_unit(Unit((path,)))]
        most_python = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(held) == 1024
    assert most_python < 100 * MB
    assert max(held) < 150 * MB


def test_a_small_file_that_unpacks_to_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gram_platform.corpora.records.MAX_RECORD_BYTES", MB)
    bomb = shared_text(tmp_path / "a.parquet", 20_000, is_dictionary=False, use_dictionary=False)
    with pytest.raises(ValueError, match=r"a\.parquet: "):
        list(read_unit(Unit((bomb,))))
    for kind in ("gz", "zst"):
        packed = tmp_path / f"b.parquet.{kind}"
        packed.write_bytes(
            pyarrow.compress(bytes(5 * MB), {"gz": "gzip", "zst": "zstd"}[kind], asbytes=True)
        )
        with pytest.raises(ValueError, match=rf"b\.parquet\.{kind}: "):
            list(read_unit(Unit((packed,))))


def test_columns_that_are_nested_are_named(tmp_path):
    for name in ("text", "label"):
        columns = {"text": ["a"], "label": ["core"], name: [[["a"]]]}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        with pytest.raises(ValueError, match=rf"a\.parquet: .*{name}"):
            list(read_unit(Unit((tmp_path / "a.parquet",))))


FIRST, SECOND = b'{"text": "one", "label": "core"}', b'{"text": "two", "label": "core"}'


@pytest.mark.parametrize(
    "raw",
    [
        FIRST + b"\r\n\r\n" + SECOND + b"\r\n",
        b"\xef\xbb\xbf\n" + FIRST + b"\n" + SECOND,
        b"\n" + FIRST + b"\n" + SECOND[:-1] + b', "id": {"deep": [0, null]}}',
    ],
)
def test_line_ends_and_byte_order_marks(tmp_path, raw):
    (tmp_path / "a.jsonl").write_bytes(raw)
    assert list(read_unit(Unit((tmp_path / "a.jsonl",)))) == [("core", "one"), ("core", "two")]


def test_separators_inside_a_text_end_no_line(tmp_path):
    text = "one\u2028two\u2029three\x85four\x0bfive\x0csix\x1cseven\rlast"
    line = json.dumps({"text": text, "label": "core"}, ensure_ascii=False)
    (tmp_path / "a.jsonl").write_text(f"{line}\n{line}\n", newline="")
    assert list(read_unit(Unit((tmp_path / "a.jsonl",)))) == [("core", text)] * 2


@pytest.mark.parametrize(
    ("raw", "line"),
    [
        (FIRST.decode().encode("utf-16-be"), 1),
        (FIRST + b"\r" + SECOND, 1),
        (FIRST + b"\n" + b"[" * 200_000, 2),
        (b'{"text": ["a"], "label": "core"}', 1),
    ],
)
def test_what_is_no_record_is_named(tmp_path, raw, line):
    (tmp_path / "a.jsonl").write_bytes(raw)
    with pytest.raises(ValueError, match=rf"a\.jsonl:{line}: "):
        list(read_unit(Unit((tmp_path / "a.jsonl",))))


def test_an_edit_that_keeps_size_and_time_is_read_when_submitted_again(tmp_path, corpus, settings):
    """As `rsync -t` and a restored backup make it; a scan that its text bears out stays."""
    root, file = tmp_path / "data", corpus / "part.jsonl"
    (corpus / "other.jsonl").write_bytes(file.read_bytes().replace(b"number", b"second"))
    first, stat = resolve(corpus, Packing(**settings), cache_dir=root), file.stat()
    scans = {path: path.stat().st_mtime_ns for path in (root / SCANS).iterdir()}
    file.write_bytes(file.read_bytes().replace(b"river", b"brook"))
    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert resolve(corpus, Packing(**settings), cache_dir=root) == first
    assert {path: path.stat().st_mtime_ns for path in (root / SCANS).iterdir()} == scans
    with pytest.raises(ChangedText):
        prepare(first, root)
    again = resolve(corpus, Packing(**settings), cache_dir=root)
    assert again.data_id != first.data_id
    assert prepare(again, root).domains == ("core", "virology")


def test_a_file_that_grows_while_it_is_scanned_is_scanned_again(tmp_path, corpus, settings):
    file = corpus / "part.jsonl"

    def grow(*_) -> None:
        if file.stat().st_size == before:
            file.write_bytes(file.read_bytes() + FIRST + b"\n")

    before = file.stat().st_size
    units = find_units(corpus)
    (scanned,) = scan_units(units, tmp_path, grow)
    (again,) = scan_units(units, tmp_path)
    assert again.labels["core"][0] == 61
    assert scanned.labels["core"][0] in (60, 61)


def test_labels_without_number_are_named_in_short(tmp_path, jsonl, settings, monkeypatch):
    monkeypatch.setattr("gram_platform.corpora.recipe.MAX_DOMAINS", 1_000)
    records = [
        {"text": f"{label} {copy}", "label": str(label)}
        for label in range(3_000)
        for copy in (0, 1)
    ]
    path = jsonl(tmp_path / "a.jsonl", records)
    with pytest.raises(InvalidField) as caught:
        resolve(path, Packing(**{**settings, "core_label": "nope"}))
    assert len(str(caught.value)) < 2_000
    with refused("corpus.domains", 3_000):
        resolve(path, Packing(**{**settings, "core_label": "0"}))
