"""Executes a study's missing nodes on a machine without Ray, and brings their results back.

`gram run STUDY --export-nodes FILE` writes the nodes. The other machine needs torch, numpy,
safetensors, fsspec and tokenizers. `python -m gram_platform.engine.handover FILE --storage DIR`
executes the nodes there, or continues after an interruption. `--archive` packs the results, and
`--unpack` writes the results of an archive into the study's storage.
"""

import argparse
import gzip
import json
import math
import re
import tarfile
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from gram_platform.config import node_from_plain
from gram_platform.config.crash_safe import A_FILE, kind_of, whole_file
from gram_platform.config.endings import begin_work, exit_codes, outlive_output
from gram_platform.config.identity import (
    invalid,
    local_path,
    require_choice,
    require_int,
    require_real,
    to_plain,
)
from gram_platform.config.plain import MOST_JSON_BYTES
from gram_platform.config.provenance import code_of_process
from gram_platform.config.terminal import say
from gram_platform.config.written import read_json, target_kind
from gram_platform.corpora.recipe import CorpusRecipe, recipe_from_plain
from gram_platform.engine.execution import Execution
from gram_platform.engine.executor import ENDED, LocalExecutor, num_gpus
from gram_platform.engine.life import NodeLifecycle, Progress, find_done_ids, with_stored_tags
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.store.checkpoints import CHECKPOINTS, SHARDS, WEIGHTS
from gram_platform.store.data import open_corpus, provide_corpus
from gram_platform.store.files import is_safe_name
from gram_platform.store.folders import LocalFolder, open_folder
from gram_platform.store.root import FOLDERS

# Prefixes of the names in an attempt's folder that an archive omits, also if set aside.
HEAVY = (CHECKPOINTS, SHARDS, WEIGHTS)
# The most unpacked bytes of one file of an archive and of all its files, and the most files.
MOST_BYTES_UNPACKED, MOST_BYTES_IN_ALL = 2**30, 2**33
MOST_FILES = 500_000
# The most bytes of a header with a long name, and the most names in a path.
MOST_BYTES_LONG_NAME, DEEPEST_FILE = 4096, 8
SAY_EVERY_S = 15.0
# Tags that every node has.
NAMES = ("method", "size", "seed")


class NodeFields(TypedDict):
    id: str
    kind: str
    config: dict[str, Any]
    tags: dict[str, str]


class NodesFile(TypedDict):
    """The content of a nodes file. `corpora` maps each data_id to the recipe of its corpus."""

    corpora: dict[str, dict]
    nodes: list[NodeFields]


def missing_nodes(nodes: Sequence[Node], store: Store) -> list[Node]:
    """Returns the nodes that are not done, and the runs that they need.

    Includes needed runs even if they are done. Their weights are not exported, so the other machine
    has to train them again.
    """
    by_id = {node.id: node for node in nodes}
    open_ids = list(by_id.keys() - find_done_ids(nodes, store))
    missing: set[str] = set()
    while open_ids:
        node_id = open_ids.pop()
        missing.add(node_id)
        open_ids += by_id[node_id].needs - missing
    return [node for node in nodes if node.id in missing]


def write_nodes(path: Path, nodes: Sequence[Node], recipes: Sequence[CorpusRecipe]) -> None:
    """Writes the nodes, in the given order, and the recipes of their data to a JSON file."""
    data_ids = {node.data_id for node in nodes}
    corpora = {recipe.data_id: recipe.plain() for recipe in recipes if recipe.data_id in data_ids}
    plain = [
        {"id": n.id, "kind": n.kind, "tags": n.names, "config": to_plain(n.config)} for n in nodes
    ]
    with whole_file(path) as temporary:
        Path(temporary).write_text(json.dumps({"corpora": corpora, "nodes": plain}, indent=1))


def read_nodes(path: Path) -> tuple[list[Node], dict[str, CorpusRecipe | None]]:
    """Reads a nodes file; returns (nodes, recipe by data_id). Raises ValueError if it is invalid.

    If a corpus cannot be packed from its recipe alone, None replaces the recipe.
    """
    try:
        plain: NodesFile = read_json(path, NodesFile)
        if unnamed := [n["id"] for n in plain["nodes"] if not n["tags"].keys() >= set(NAMES)]:
            raise invalid("tags", unnamed[:4], f"nodes with {', '.join(NAMES)}")
        nodes = [
            Node.of(node_from_plain(n["kind"], n["config"]), n["tags"]) for n in plain["nodes"]
        ]
        recipes = {i: recipe_from_plain(recipe) for i, recipe in plain["corpora"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        expected = f"a file that --export-nodes has written ({error})"
        raise invalid("file", str(path), expected) from error
    ids = [node.id for node in nodes] + [recipe.data_id for recipe in recipes.values() if recipe]
    stored = [n["id"] for n in plain["nodes"]] + [i for i, recipe in recipes.items() if recipe]
    if ids != stored:
        expected = "a file of this version of the package, which gives its nodes other ids"
        raise invalid("file", str(path), expected)
    for node in nodes:
        if lacking := ", ".join(sorted(node.needs - set(ids))):
            expected = f"a file with all runs that its nodes need: {node.id} needs {lacking}"
            raise invalid("file", str(path), expected)
    return nodes, recipes


def provide_data(recipes: Mapping[str, CorpusRecipe | None], store: Store) -> None:
    """Packs the corpora that have a recipe, unless the storage already has them.

    Raises ValueError if the storage lacks a corpus without a recipe.
    """
    for data_id, recipe in recipes.items():
        if recipe is not None:
            say(f"data {data_id}: packing, unless it is there")
            provide_corpus(recipe, store)
        elif not (store.data_root / data_id).exists():
            expected = (
                f"a storage with the folder data/{data_id} of the storage that exported the nodes:"
                " copy it there (only generated stories are packed from a recipe)"
            )
            raise invalid("storage", store.root, expected)
        else:
            open_corpus(store, data_id)


def write_archive(path: Path, nodes: Sequence[Node], store: Store) -> int:
    """Packs the files of ended nodes, except weights and checkpoints, into a .tar.gz.

    Returns the number of ended nodes. After unpacking, these nodes are done or diverged in the new
    storage. Nodes that need the weights of ended runs fail there, because the archive has none.
    """
    lifecycle, root = NodeLifecycle(store), Path(store.root)
    ends = lifecycle.ends(nodes)
    ended = [node for node in nodes if ends[node.id] is not None]
    with whole_file(path) as temporary, tarfile.open(temporary, "w:gz") as archive:
        for node in ended:
            folder = Path(store.node(node.kind, node.id).folder.path)
            for file in sorted(folder.rglob("*")):
                parts = file.relative_to(folder).parts
                is_heavy = parts[0] == "attempts" and len(parts) > 2 and parts[2].startswith(HEAVY)
                is_hidden = any(part.startswith(".") for part in parts)
                if kind_of(file) == A_FILE and not (is_heavy or is_hidden):
                    archive.add(file, str(file.relative_to(root)))
    return len(ended)


def unpack_archive(path: Path, store: Store) -> int:
    """Writes those files of an archive that the storage lacks; returns their number.

    Raises ValueError before writing anything if the archive contains what `write_archive` never
    writes, such as a link or a path outside the storage.
    """
    files, folders = set(), set()
    for names, *_ in _read_archive(path):
        files.add(names)
        folders |= {names[:end] for end in range(1, len(names))}
    for names in files & folders:
        raise invalid("archive", "/".join(names), "a file or a folder, not both")
    root = open_folder(store.open_for_writing().root, writable=True)
    for names in folders:
        if isinstance(folder := root.child(*names), LocalFolder):
            folder.require_folders()
    return sum(
        root.child(*parents).create(name, stream.read(num_bytes))
        for (*parents, name), num_bytes, stream in _read_archive(path)
    )


def _read_archive(path: Path) -> Iterator[tuple[tuple[str, ...], int, gzip.GzipFile]]:
    """Yields each file of an archive as (path components, bytes, stream at the file's content).

    Accepts only headers of files and of long file names, because `write_archive` writes no others.
    `tarfile` would read headers of other kinds into memory, whatever their size.
    """
    target_kind("archive", path)
    num_files, long_name = 0, ""
    try:
        with gzip.open(path) as stream:
            while block := stream.read(tarfile.BLOCKSIZE):
                if stream.tell() > MOST_BYTES_IN_ALL or num_files > MOST_FILES:
                    allowed = f"at most {MOST_BYTES_IN_ALL >> 30} GiB in {MOST_FILES:,} files"
                    raise invalid("archive", str(path), allowed)
                if not any(block):
                    continue
                header = tarfile.TarInfo.frombuf(block, tarfile.ENCODING, "surrogateescape")
                name, size = long_name or header.name, header.size
                names = tuple(name.split("/"))
                most = MOST_BYTES_UNPACKED
                if is_long := header.type == tarfile.XHDTYPE:
                    most = MOST_BYTES_LONG_NAME
                elif name.endswith((".json", ".jsonl")):
                    most = MOST_JSON_BYTES
                is_placed = names[0] in FOLDERS.values() and 2 < len(names) <= DEEPEST_FILE
                is_file = header.type == tarfile.REGTYPE and is_placed
                is_file = is_file and all(map(is_safe_name, names))
                if not (0 <= size <= most and (is_long or is_file)):
                    allowed = f"only files of runs and evaluations, of at most {most:,} bytes each"
                    raise invalid("archive", name, allowed)
                end = stream.tell() - -size // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
                if is_long:
                    match = re.search(rb"\d path=(.*)", stream.read(size))
                    long_name = match[1].decode(errors="surrogateescape") if match else ""
                else:
                    yield names, size, stream
                    num_files, long_name = num_files + 1, ""
                if stream.seek(end) < end:
                    raise EOFError("its last file is cut")
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        expected = f"a file that --archive has written ({error})"
        raise invalid("archive", str(path), expected) from error


def _execute(executor: LocalExecutor, nodes: Sequence[Node]) -> Progress:
    progress, store, next_s = executor.progress, executor.store, 0.0
    count = lambda: f"[{len(progress.done) + len(progress.failed)}/{len(nodes)}]"  # noqa: E731

    def look() -> None:
        nonlocal next_s
        if time.monotonic() < next_s:
            return
        next_s = time.monotonic() + SAY_EVERY_S
        for node in (node for node in nodes if node.id in progress.running and node.is_run):
            beat = {"step": 0, "tokens_per_second": 0.0} | progress.heartbeats.get(node.id, {})
            rate = f"{beat['tokens_per_second']:,.0f} tokens/s"
            say(f"{count()} {node.name}: step {beat['step']} of {node.config.num_steps}, {rate}")

    executor.look = look
    for event in executor.events([nodes]):
        if event.kind == ENDED and (node := event.node):
            elapsed_s = store.node(node.kind, node.id).timing().get("elapsed_s", 0.0)
            outcome = f"FAILED: {event.text}" if event.text else f"{elapsed_s:.1f} s"
            say(f"{count()} {node.kind} {node.id} {node.name}: {outcome}")
    return progress


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command.

    Exits with 0 if all nodes are done, 1 if some failed, 2 for invalid input, and 3 if the time
    limit is reached before all nodes have ended.
    """
    outlive_output()
    with exit_codes(
        "Start it again: finished nodes are kept, and the others continue from their last"
        " checkpoints."
    ):
        code = _run(_flags(arguments), time.monotonic())
    raise SystemExit(code)


def _flags(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m gram_platform.engine.handover", description=__doc__
    )
    flag = parser.add_argument
    flag("file", help="file written by --export-nodes, or (with --unpack) by --archive")
    flag("--unpack", action="store_true", help="write the results that the storage lacks, and exit")
    flag("--storage", required=True, help="local folder of runs, results and packed data")
    flag("--archive", default="", help="a .tar.gz for the results, without weights and checkpoints")
    flag("--max-minutes", type=float, default=0, help="then save a checkpoint and exit with code 3")
    flag("--device", default="", help="cpu or cuda (default: cuda if there is a GPU)")
    flag("--threads", type=int, default=1, help="CPU threads; a run's exact result depends on them")
    return parser.parse_args(arguments)


def _run(flags: argparse.Namespace, started: float) -> int:
    require_choice("device", flags.device or "cpu", ("cpu", "cuda"))
    require_int("threads", flags.threads, 1)
    require_real("max_minutes", flags.max_minutes, 0.0)
    if flags.unpack:
        num_files = unpack_archive(local_path("file", flags.file), Store(flags.storage))
        say(f"{num_files} files written to {flags.storage}")
        return 0
    nodes, recipes = read_nodes(local_path("file", flags.file))
    store = Store(flags.storage).open_for_writing()
    if not store.is_local:
        raise invalid("storage", flags.storage, "a local folder, as the archive is made from files")
    provide_data(recipes, store)
    device = flags.device or ("cuda" if num_gpus() else "cpu")
    execution = Execution(
        store.root, num_threads=flags.threads, device=device, code=str(code_of_process())
    )
    begin_work()
    executor = LocalExecutor(execution)
    executor.limit_s = (60 * flags.max_minutes or math.inf) - (time.monotonic() - started)
    try:
        with executor:
            progress = _execute(executor, with_stored_tags(nodes, store))
    finally:
        if flags.archive:
            num_ended = write_archive(local_path("archive", flags.archive), nodes, store)
            say(f"{flags.archive}: {num_ended} of {len(nodes)} nodes")
    say(f"{len(progress.done)} of {len(nodes)} nodes done, {len(progress.failed)} failed")
    return 1 if progress.failed else 0


if __name__ == "__main__":
    main()
