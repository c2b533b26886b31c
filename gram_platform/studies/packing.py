"""Packs the corpora that studies and searches need and a storage lacks."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from gram_platform.config.terminal import say
from gram_platform.corpora.packed import PackedCorpus
from gram_platform.corpora.parts import Workers
from gram_platform.corpora.recipe import CorpusRecipe, FilesSource
from gram_platform.engine.cluster import connect
from gram_platform.engine.part_workers import part_workers
from gram_platform.store import Store
from gram_platform.store.root import provide_corpus
from gram_platform.studies.build import Graph, require_memory
from gram_platform.studies.supply import require_document_end, require_enough_data


def provide(recipe: CorpusRecipe, store: Store, needs_ray: bool, is_verbose: bool) -> PackedCorpus:
    """Packs a corpus that the storage lacks, by tasks of Ray unless the study runs in process; see `provide_corpus`.

    The tasks run on this machine, unless all machines see the text and the parts: a storage that they mount, and text
    that is fetched or generated. Then the cluster's machines for packing do it, where it has or starts some.
    """
    anywhere = store.is_local and not isinstance(recipe.source, FilesSource)
    workers = ray_workers(anywhere, is_verbose) if needs_ray else None
    return provide_corpus(recipe, store, reporter(), workers)


def provide_data(graphs: Sequence[Graph], store: Store) -> None:
    """Packs the corpora that are not packed yet.

    ValueError for a run that fits no number of ranks, before packing, and for a label with too little packed text.
    """
    for graph in graphs:
        require_memory(graph.nodes, graph.flags.ranks)
    for graph in graphs:
        for recipe in graph.corpora:
            corpus = provide(recipe, store, graph.flags.needs_ray, graph.flags.verbose)
            for line in corpus.skipped:
                say(line)
            require_enough_data(graph, corpus)
            require_document_end(graph.nodes, corpus)


def ray_workers(anywhere: bool = False, is_verbose: bool = False) -> Workers:
    """Returns `part_workers` that connect to Ray, or start it, once there is work for two."""
    return part_workers(partial(connect, is_verbose), anywhere)


def reporter() -> Callable[[str, int, int | None], None]:
    """Returns a function that prints the progress of reading and packing every few seconds."""
    last = time.monotonic()

    def report(what: str, done: int, total: int | None) -> None:
        nonlocal last
        if time.monotonic() - last > 5.0:
            last = time.monotonic()
            share = f" {done / total:.0%}" if total else ""
            say(f"{what}:{share} {done / 1e6:,.1f} MB")

    return report
