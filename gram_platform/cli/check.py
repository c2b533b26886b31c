"""Implements `gram check`."""

import warnings
from collections.abc import Callable, Iterator

from gram_platform.cli.flags import Storage, stored
from gram_platform.config.crash_safe import special_entries
from gram_platform.config.endings import BAD_INPUT, FAILED, explained
from gram_platform.config.identity import hash_file, local_path
from gram_platform.config.terminal import say
from gram_platform.corpora.packed import PackedCorpus, parse_manifest
from gram_platform.store import CorruptFile, EvaluationDirectory, RunDirectory, Store
from gram_platform.store.checkpoints import MANIFEST, list_checkpoints
from gram_platform.store.directories import TENSORS_HASH

# A place, and what raises or warns when it is damaged.
Check = tuple[str, Callable[[], object]]


def check_command(storage: Storage = "", exports: tuple[str, ...] = ()) -> None:
    """Read everything a storage keeps and compare it with its hashes; change nothing.

    Exit code 1 if something is lost, 2 if only permissions to read something are missing.

    Data, weights, checkpoints, metrics and tensors are read whole: this takes as long as the disk
    needs.

    Args:
        storage: folder or URL of the storage
        exports: folders that `gram export` wrote, to be checked too
    """
    num_places, lost, barred = 0, [], []
    for place, check in [*_checks(stored(storage)), *_exports(exports)]:
        try:
            lost += [f"{place}: {problem}" for problem in _problems(check)]
            num_places += 1
        except PermissionError as error:
            barred.append(f"{place}: {explained(error)}")
    say("\n".join([*lost, *barred, f"{num_places} places read, {len(lost)} problems"]))
    if lost or barred:
        raise SystemExit(FAILED if lost else BAD_INPUT)


def _problems(check: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check()
        except PermissionError:
            raise
        except (ValueError, OSError) as error:
            return [str(error)]
    return list(
        dict.fromkeys(
            str(warning.message) for warning in caught if warning.category is RuntimeWarning
        )
    )


def _checks(store: Store) -> Iterator[Check]:
    if store.is_local:
        for path, kind in special_entries(store.root):
            yield f"{kind} in the storage", lambda path=path, kind=kind: _refuse(path, kind)
    for data_id in store.list_data():
        yield f"data {data_id}", lambda i=data_id: _read_data(store, i)
    for run in map(store.run, store.list_runs()):
        yield f"run {run.run_id}", lambda run=run: _read_run(run)
    for place in map(store.evaluation, store.list_evaluations()):
        yield f"evaluation {place.eval_id}", lambda place=place: _read_evaluation(place)
    for import_id in store.list_imports():
        yield f"import {import_id}", lambda i=import_id: _read_weights(store.imported(i))


def _refuse(path: str, kind: str) -> None:
    raise CorruptFile(f"{path} is {kind}, and a storage has only files and folders: remove it")


def _read_data(store: Store, data_id: str) -> None:
    if store.is_local:
        PackedCorpus.open(store.data_root / data_id).verify()
        return
    folder = store.data_dir(data_id)
    for name, digest in parse_manifest(folder.read(MANIFEST), folder.file(MANIFEST))[
        "files"
    ].items():
        with folder.local_copy(digest) as path:
            if hash_file(path) != digest:
                raise CorruptFile(f"{folder.file(digest)}, its {name}, does not have its SHA-256")


def _read_run(run: RunDirectory) -> None:
    """Reads metrics and weights; of an unfinished run its checkpoints.

    Weights that were removed on purpose are not missed.
    """
    from gram_platform.store.shards import read_checkpoint

    run.records()
    if run.result() is None:
        for step, attempt_id in list_checkpoints(run.attempts):
            read_checkpoint(run.attempts, step, attempt_id)
    elif not run.weights_were_removed():
        _read_weights(run)


def _read_evaluation(place: EvaluationDirectory) -> None:
    if TENSORS_HASH in (place.result() or {}):
        place.tensors()


def _read_weights(directory) -> None:
    with directory.open_weights():
        # Opening compares them with their hash.
        pass


def _exports(folders: tuple[str, ...]) -> Iterator[Check]:
    from gram_platform.release.export import require_unchanged

    for folder in folders:
        yield (
            f"export {folder}",
            lambda folder=folder: require_unchanged(local_path("exports", folder)),
        )
