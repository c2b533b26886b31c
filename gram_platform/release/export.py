"""Exports a view as standard Hugging Face checkpoints, and verifies them."""

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NotRequired, TypedDict

from gram_platform.config import View
from gram_platform.config.crash_safe import A_FOLDER
from gram_platform.config.identity import (
    canonical_json,
    hash_file,
    invalid,
    require_choice,
    require_int,
    to_plain,
)
from gram_platform.config.training import merge_config
from gram_platform.config.written import read_json, target_kind
from gram_platform.corpora.sources import silent
from gram_platform.release import MAX_WEIGHTS_BYTES
from gram_platform.release.files import (
    Progress,
    byte_counter,
    find_corpus,
    shards,
    write_tensors,
    write_tokenizer,
)
from gram_platform.release.selection import dense_parts
from gram_platform.release.stock_config import foreign_config
from gram_platform.release.stock_tensors import foreign_shapes, foreign_weights
from gram_platform.release.verification import (
    Agreement,
    Model,
    require_same_ids,
    verification_tokens,
    verify_by_transformers,
    verify_export,
)
from gram_platform.store import Store
from gram_platform.store.tensors import Shapes, stream_bytes
from gram_platform.store.views import open_view
from gram_platform.train.learner import DTYPES

RECORD, CARD = "export.json", "README.md"
EXPORT_LAYOUT = 2
CHECKS = ("own", "transformers")
# Errors of the user's folder or disk. EBUSY and EXDEV mean that something was mounted there.
USER_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.ENOTEMPTY, errno.ENOTDIR, errno.EBUSY, errno.EXDEV)


class ExportRecord(TypedDict):
    """The contents of export.json. `files` maps each file, except cards, to its SHA-256."""

    files: dict[str, str]
    agreements: NotRequired[dict[str, tuple[Agreement, ...]]]


@dataclass(frozen=True)
class ExportRequest:
    """The view to export, the format of its checkpoints, and how to verify them."""

    view: View
    dtype: str = "float32"
    max_file_bytes: int = MAX_WEIGHTS_BYTES
    # "own", or "transformers", which also loads the whole model.
    check: str = "own"

    def __post_init__(self) -> None:
        require_choice("dtype", self.dtype, tuple(DTYPES))
        require_choice("check", self.check, CHECKS)
        require_int("max_file_bytes", self.max_file_bytes, 1)


@dataclass(frozen=True)
class ExportResult:
    """The result of an export. `agreements` maps subfolders to verification results."""

    folder: Path
    agreements: Mapping[str, tuple[Agreement, ...]]
    num_bytes: int = 0
    is_new: bool = True


# Writes the card of a part, with its verification results, to a folder.
WriteCard = Callable[[Path, str, tuple[Agreement, ...]], None]


def export_view(
    store: Store,
    export: ExportRequest,
    out: Path,
    write_card: WriteCard,
    progress: Progress = silent,
) -> ExportResult:
    """Writes the view's checkpoints and their cards to `out`, and verifies them.

    If `out` is a symbolic link, writes to its target. If `out` already contains an export of the
    same view in the same format, only replaces the cards. Before writing, raises ValueError if
    `out` is a mount point or contains other files, or if the disk is too full. If a checkpoint does
    not match the view, raises ValueError and deletes the new files.
    """
    parts = dense_parts(export.view)
    if export.check == "transformers" and importlib.util.find_spec("transformers") is None:
        raise invalid("check", export.check, "own, because transformers is not installed")
    out = Path(os.path.realpath(out))
    # The files of an export depend only on these fields.
    identity = {
        "layout": EXPORT_LAYOUT,
        "view": to_plain(export.view),
        "weights_sha256": store.source_weights(export.view),
        "dtype": export.dtype,
        "max_file_bytes": export.max_file_bytes,
    }
    if (verified_before := _agreements_in(out, identity)) is not None:
        _write_cards(out, verified_before, write_card)
        return ExportResult(out, verified_before, is_new=False)
    # No folder can be moved onto a mount point.
    if os.path.ismount(out):
        raise invalid(
            "out",
            str(out),
            f"a folder that is no mount point, such as a new one in it: {out / 'model'}",
        )
    dtype, files = DTYPES[export.dtype], {}
    with open_view(store, export.view) as (config, weights):
        for name, part in parts.items():
            shapes = foreign_shapes(merge_config(config, dict(part.weights)))
            files[name] = shards(shapes, dtype, export.max_file_bytes)
        total = sum(stream_bytes(s, dtype) for group in files.values() for s in group.values())
        existing = next(parent for parent in out.parents if parent.exists())
        if (free := shutil.disk_usage(existing).free) < total:
            raise invalid(
                "out",
                str(out),
                f"a disk with {total / 1e9:,.2f} GB free, found {free / 1e9:,.2f} GB",
            )
        with atomic_folder(out) as staging:
            on_bytes, agreements = byte_counter(progress, "exporting", total), {}
            for name, part in parts.items():
                folder, routed = staging / name, (config, weights, dict(part.weights))
                folder.mkdir(exist_ok=True)
                request = replace(export, view=part)
                agreements[name] = _write_part(
                    store, request, routed, folder, files[name], on_bytes, progress
                )
            _write_cards(staging, agreements, write_card)
            record = identity | {"files": _hashes(staging), "agreements": agreements}
            (staging / RECORD).write_text(canonical_json(record) + "\n")
    return ExportResult(out, agreements, total)


def _write_part(
    store: Store,
    export: ExportRequest,
    routed: Model,
    folder: Path,
    files: Mapping[str, Shapes],
    on_bytes: Callable[[int], None],
    progress: Progress,
) -> tuple[Agreement, ...]:
    model, dtype = merge_config(routed[0], routed[2]), DTYPES[export.dtype]
    corpus = find_corpus(store, export.view.run_id)
    end_of_text = write_tokenizer(corpus, folder, model.seq_len) if corpus else None
    config = json.dumps(foreign_config(model, dtype, end_of_text), indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(config)
    write_tensors(folder, files, dtype, foreign_weights(*routed), on_bytes)
    tokens = verification_tokens(corpus, model)
    agreements = [verify_export(routed, folder, dtype, tokens, partial(progress, "verifying"))]
    if export.check == "transformers":
        agreements.append(verify_by_transformers(store, export.view, folder, dtype, tokens))
        if corpus:
            require_same_ids(corpus, folder, tokens[0])
    return tuple(agreements)


def _write_cards(
    folder: Path, agreements: Mapping[str, tuple[Agreement, ...]], write_card: WriteCard
) -> None:
    for name, found in agreements.items():
        write_card(folder / name, name, found)
    if "" not in agreements:
        write_card(folder, "", tuple(chain.from_iterable(agreements.values())))


def _agreements_in(out: Path, identity: Mapping) -> Mapping[str, tuple[Agreement, ...]] | None:
    kind = target_kind("out", out)
    if kind not in (A_FOLDER, ""):
        raise invalid("out", str(out), "a folder, found a file")
    if not kind or not any(out.iterdir()):
        return None
    allowed = "an empty folder or a new one: this one holds"
    try:
        record = _record(out)
    except ValueError:
        raise invalid("out", str(out), f"{allowed} other files") from None
    expected = json.loads(canonical_json(identity))
    if "agreements" not in record or not expected.items() <= record.items():
        raise invalid("out", str(out), f"{allowed} another export")
    require_unchanged(out)
    return record["agreements"]


def require_unchanged(out: Path) -> None:
    """Raises ValueError if an export's files, except cards, do not match its export.json."""
    expected = _record(out)["files"]
    try:
        present = _hashes(out)
    except OSError as error:
        raise invalid("out", str(out), f"an export whose files can be read ({error})") from error
    if changed := sorted({name for name, _ in expected.items() ^ present.items()}):
        names = ", ".join(changed[:4])
        raise invalid(
            "out",
            str(out),
            f"an unchanged export: its files have changed ({names}), remove the folder",
        )


def _record(out: Path) -> ExportRecord:
    try:
        return read_json(out / RECORD, ExportRecord)
    except ValueError as error:
        raise invalid("out", str(out), f"an export, with its {RECORD} ({error})") from None


def _hashes(folder: Path) -> dict[str, str]:
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in (RECORD, CARD)]
    return {str(path.relative_to(folder)): hash_file(path) for path in paths}


@contextlib.contextmanager
def atomic_folder(out: Path) -> Iterator[Path]:
    """Context manager that yields a temporary folder and renames it to `out` on success.

    Also deletes the temporary folders that killed processes left for the same `out`.
    """
    staging = out.parent / f".{out.name}.{os.getpid()}.part"
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        for stale in out.parent.glob(f".{out.name}.*.part"):
            with contextlib.suppress(OSError), folder_lock(stale):
                shutil.rmtree(stale)
        staging.mkdir()
    except OSError as error:
        raise invalid("out", str(out), f"a writable folder ({error})") from error
    try:
        with folder_lock(staging):
            yield staging
            # This replaces only an empty folder.
            os.rename(staging, out)
    except OSError as error:
        if error.errno not in USER_ERRNOS:
            raise
        raise invalid(
            "out", str(out), f"a folder that accepts the export ({error.strerror})"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Context manager that locks a folder. Raises BlockingIOError if it is already locked."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
