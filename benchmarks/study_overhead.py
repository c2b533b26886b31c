"""Measures a study's time beyond the training of its many small runs: placing, reading and
writing."""

import dataclasses
import time

from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from gram_platform.config import CORE
from gram_platform.corpora import PackedCorpus, Packing, prepare, resolve
from gram_platform.engine.capacity import Cordon
from gram_platform.engine.cluster import connect
from gram_platform.engine.execution import Execution, Resources
from gram_platform.engine.ray_executor import RayExecutor
from gram_platform.methods import Setting
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.store import Store
from gram_platform.studies.library.scaling import SMOKE

# The full form has 72.
NUM_RUNS = 24
# Tokens of core, as in the smoke preset.
NUM_TOKENS = 40_000


def measure(
    settings: BenchmarkSettings, num_runs: int = NUM_RUNS, num_tokens: int = NUM_TOKENS
) -> list[BenchmarkResult]:
    """Runs baselines of the smallest size, each with its evaluation, on every CPU of Ray.

    Starts Ray first, and then a process on every CPU with a run of its own; the details have these
    times.
    """
    import ray

    size = dataclasses.replace(SMOKE.sizes["tiny"], core_tokens=num_tokens)
    recipe = resolve(
        SMOKE.corpus,
        Packing(seq_len=size.seq_len, vocab_size=size.vocab_size, sample_bytes=SMOKE.sample_bytes),
    )
    store = Store(settings.storage).open_for_writing()
    corpus = prepare(recipe, store.data_root)
    started = time.perf_counter()
    connect()
    connected_s, num_slots = time.perf_counter() - started, int(ray.cluster_resources()["CPU"])
    first = nodes_of(size, corpus, range(num_slots))
    nodes = nodes_of(
        size, corpus, range(num_slots, num_slots + (3 if settings.full else 1) * num_runs)
    )
    first_s, elapsed_s, ahead_s = _run(settings, first, nodes)
    work = {
        kind: sum(_elapsed_s(store, node) for node in nodes if node.kind == kind)
        for kind in ("run", "evaluation")
    }
    overhead = BenchmarkResult(
        name="study of small runs",
        unit="s",
        values=(elapsed_s,),
        references=((work["run"] - ahead_s) / num_slots,),
        against=f"training time of its {len(nodes) // 2} runs over {num_slots} slots",
        aim=Aim("at most", 1.05),
        details={
            "evaluations over slots, s": work["evaluation"] / num_slots,
            "starting Ray, s": connected_s,
            "the first run of every process, s": first_s,
        },
    )
    return [overhead]


def nodes_of(size, corpus: PackedCorpus, seeds: range) -> list[Node]:
    """Plans a baseline and its evaluation for each seed."""
    num_core = size.core_tokens // size.seq_len
    setting = Setting(
        size=size,
        seed=0,
        data_id=corpus.data_id,
        num_sequences={CORE: num_core},
        profiles=((),),
        routing=SMOKE.routing,
        warmup_fraction=SMOKE.warmup_fraction,
        decay_fraction=SMOKE.decay_fraction,
        num_eval_points=SMOKE.num_eval_points,
        num_eval_sequences=SMOKE.num_eval_sequences,
    )
    return [
        node
        for seed in seeds
        for node in method_nodes("baseline", dataclasses.replace(setting, seed=seed))
    ]


def _run(
    settings: BenchmarkSettings, first: list[Node], nodes: list[Node]
) -> tuple[float, float, float]:
    """Executes all nodes; returns the seconds until `first` are done, the seconds from then on, and
    what was ahead.

    Ahead is the time that runs of `nodes` had worked when the last of `first` ended.
    """
    started, ended, ahead_s, store = time.perf_counter(), [], 0.0, Store(settings.storage)
    awaited = {node.id for node in first}

    with RayExecutor(Execution(settings.storage), Cordon(Resources())) as executor:
        progress = executor.progress
        for _ in executor.events([[*first, *nodes]]):
            if not ended and awaited <= progress.done:
                ended.append(time.perf_counter())
                ahead_s = sum(time.time() - since for since in progress.running.values())
                ahead_s += sum(
                    _elapsed_s(store, node)
                    for node in nodes
                    if node.is_run and node.id in progress.done
                )
    assert len(progress.done) == len(first) + len(nodes), progress.failed
    return ended[0] - started, time.perf_counter() - ended[0], ahead_s


def _elapsed_s(store: Store, node: Node) -> float:
    return store.node(node.kind, node.id).timing()["elapsed_s"]
