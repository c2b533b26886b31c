"""Implements `gram check`."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial

from gram_platform.cli.flags import Storage, open_existing
from gram_platform.config import State
from gram_platform.config.crash_safe import special_entries
from gram_platform.config.endings import BAD_INPUT, FAILED, explain_error
from gram_platform.config.identity import hash_file, local_path
from gram_platform.config.terminal import say, warn
from gram_platform.corpora.packed import PackedCorpus, parse_manifest
from gram_platform.store import CorruptFile, EvaluationDirectory, RunDirectory, Store
from gram_platform.store.checkpoints import MANIFEST, list_checkpoints
from gram_platform.store.directories import CONFIG, RESULT, SOURCE_HASHES, TENSORS_HASH
from gram_platform.store.root import BEST

# A place, and a function that raises or warns if the place is damaged.
Check = tuple[str, Callable[[], object]]


def check_command(storage: Storage = "", exports: tuple[str, ...] = ()) -> None:
    """Read a whole storage and verify its hashes, without changing anything.

    The exit code is 1 if something is lost or damaged, or if a run's weights have changed since a
    result was computed from them. It is 2 if the only problem is missing read permission. MLflow's
    files and the folder `site` are not checked.

    Args:
        exports: folders of `gram export` that are checked too
    """
    places, lost, barred, unknown = set(), {}, {}, []
    for place, check in [*_checks(open_existing(storage), unknown), *map(_check_export, exports)]:
        places.add(place)
        try:
            for problem in _problems(check):
                lost.setdefault(problem, f"{place}: {problem}")
        except PermissionError as error:
            barred[place] = f"{place}: {explain_error(error)}"
    for line in (*lost.values(), *barred.values()):
        say(line)
    if unknown:
        say(f"source unknown: {len(unknown)} results do not name the weights that they are of")
    say(f"{len(places - barred.keys())} places read, {len(lost)} problems")
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
            warn(str(error), 2)
    return [str(warning.message) for warning in caught if warning.category is RuntimeWarning]


def _checks(store: Store, unknown: list[str]) -> Iterator[Check]:
    """Yields all checks of a storage.

    If a node's result does not name its source weights, a check adds the node's id to `unknown`.
    """
    if store.is_local:
        for path, kind in special_entries(store.root):
            yield f"{kind} in the storage", partial(_refuse, path, kind)
    for data_id in store.list_data():
        yield f"data {data_id}", partial(_read_data, store, data_id)
    for node in store.nodes():
        read = _read_run if isinstance(node, RunDirectory) else _read_evaluation
        for check in partial(read, node), node.tags, partial(_read_origin, store, node, unknown):
            yield f"{node.kind} {node.node_id}", check
    for imported in map(store.import_dir, store.list_imports()):
        tokenizer = partial(imported.tokenizer, store.data_root)
        for check in imported.config, tokenizer, partial(_read_weights, imported):
            yield f"import {imported.node_id}", check
    for search_id in store.list_searches():
        best = partial(store.search_dir(search_id).read_or_set_aside, BEST, dict)
        yield f"search {search_id}", best
    for name in store.list_studies():
        for page in store.study_dir(name), *store.history_dirs(name).values():
            yield f"study {name}", page.require_whole


def _read_origin(
    store: Store, node: RunDirectory | EvaluationDirectory, unknown: list[str]
) -> None:
    result = node.result() or {}
    if reason := store.explain_outdated(result):
        warn(f"{node.folder.file(RESULT)} was {reason}: submit again", 2)
    # A foreign or an incomplete folder has neither.
    if node.folder.exists(CONFIG) or node.status() != State.ABSENT:
        plain = node.config()
        if result and SOURCE_HASHES not in result and plain.get("start", plain.get("view")):
            unknown.append(node.node_id)


def _refuse(path: str, kind: str) -> None:
    raise CorruptFile(f"{path} is {kind}, and a storage has only files and folders: remove it")


def _read_data(store: Store, data_id: str) -> None:
    if store.is_local:
        PackedCorpus.open(store.data_root / data_id).verify()
        return
    folder = store.data_dir(data_id)
    manifest = parse_manifest(folder.read(MANIFEST), folder.file(MANIFEST))
    for name, digest in manifest["files"].items():
        with folder.local_copy(digest) as path:
            if hash_file(path) != digest:
                raise CorruptFile(f"{folder.file(digest)}, its {name}, does not have its SHA-256")


def _read_run(run: RunDirectory) -> None:
    from gram_platform.store.shards import read_checkpoint

    run.records()
    if run.result() is None:
        for step, attempt_id in list_checkpoints(run.attempts):
            read_checkpoint(run.attempts, step, attempt_id)
    elif not run.weights_were_removed():
        _read_weights(run)


def _read_evaluation(place: EvaluationDirectory) -> None:
    place.timing()
    if TENSORS_HASH in (place.result() or {}):
        place.tensors()


def _read_weights(directory) -> None:
    with directory.open_weights():
        pass


def _check_export(folder: str) -> Check:
    from gram_platform.release.export import require_unchanged

    return f"export {folder}", lambda: require_unchanged(local_path("exports", folder))
