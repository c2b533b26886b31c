"""A real small corpus and runs on it."""

import dataclasses
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from gram_platform.config import CORE, RoutingConfig, RunConfig
from gram_platform.config.ladder import SMOKE_SIZES
from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.engine import node
from gram_platform.engine.execution import Division, Execution, Placement
from gram_platform.engine.node import execute_run
from gram_platform.methods import Setting, plan
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.store import Store
from gram_platform.train.loop import training_steps


def on_ranks(*numbers: int) -> Placement:
    """Returns the placement of a run that may have these numbers of ranks, the most first, each in
    one pass.
    """
    return Placement(tuple(map(Division, numbers)))


TWO_RANKS = on_ranks(2)
TINY = dataclasses.replace(SMOKE_SIZES["tiny"], core_tokens=64 * 160)


@pytest.fixture(scope="session")
def packed_root(tmp_path_factory):
    """(recipe, folder of the packed corpus), which all modules that take this fixture over
    share."""
    root = tmp_path_factory.getbasetemp() / "packed-stories-smoke"
    recipe = resolve(
        "stories-smoke",
        Packing(seq_len=TINY.seq_len, vocab_size=TINY.vocab_size, sample_bytes=100_000),
    )
    prepare(recipe, root)
    return recipe, root


def execution_in(storage: Path, packed_root) -> Execution:
    """A storage whose data is the session's."""
    store = Store(storage).open_for_writing()
    shutil.copytree(packed_root[1], store.data_root)
    return Execution(store.root, checkpoint_every_s=0.0)


def elsewhere(execution: Execution, folder: Path, name: str) -> Execution:
    """The same data, another storage."""
    store = Store(folder / name).open_for_writing()
    shutil.copytree(Store(execution.storage).data_root, store.data_root)
    return dataclasses.replace(execution, storage=store.root)


def result_files(execution: Execution, nodes: Iterable[Node]) -> dict[str, bytes]:
    store = Store(execution.storage)
    return {node.id: store.node(node.kind, node.id).folder.read("result.json") for node in nodes}


@pytest.fixture
def execution(packed_root, tmp_path):
    return execution_in(tmp_path / "storage", packed_root)


def setting_of(recipe) -> Setting:
    auxiliary = [d for d in recipe.domains if d != CORE]
    return Setting(
        size=TINY,
        seed=0,
        data_id=recipe.data_id,
        num_sequences={CORE: 160, **dict.fromkeys(auxiliary, 12)},
        profiles=((auxiliary[0],),),
        routing=RoutingConfig(0.5, 0.3),
        warmup_fraction=0.1,
        decay_fraction=0.1,
        num_eval_points=4,
        num_eval_sequences=4,
    )


@pytest.fixture
def setting(packed_root):
    """One cell: a tiny size, 10 steps of core and a few auxiliary micro-batches."""
    return setting_of(packed_root[0])


def baselines(setting: Setting, number: int) -> list[Node]:
    """A run of the baseline for each of so many seeds."""
    return [
        method_nodes("baseline", dataclasses.replace(setting, seed=seed))[0]
        for seed in range(number)
    ]


NUM_TRAIN_RECORDS = 4


def longer(run: RunConfig, times: int) -> RunConfig:
    """The run with so many times its steps."""
    domains = tuple(
        dataclasses.replace(budget, num_draws=times * budget.num_draws)
        for budget in run.data.domains
    )
    return dataclasses.replace(run, data=dataclasses.replace(run.data, domains=domains))


def slow_steps(step_s: float):
    """Returns a `training_steps` whose steps take longer."""

    def slowly(*args):
        for record in training_steps(*args):
            time.sleep(step_s)
            yield record

    return slowly


def longer_run(setting: Setting) -> RunConfig:
    """66 steps, 16 to a record of training metrics."""
    found = longer(plan("gram", setting).runs["all"], 6)
    assert node.MetricsSummary(found).interval > 10
    return found


@pytest.fixture
def run(setting, monkeypatch):
    monkeypatch.setattr(node, "NUM_TRAIN_RECORDS", NUM_TRAIN_RECORDS)
    return longer_run(setting)


@pytest.fixture(scope="session")
def undisturbed(packed_root, tmp_path_factory):
    """(execution, records) of the run without any disturbance, which nobody may write."""
    straight = execution_in(tmp_path_factory.mktemp("undisturbed") / "storage", packed_root)
    straight = dataclasses.replace(straight, checkpoint_every_s=1e9)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(node, "NUM_TRAIN_RECORDS", NUM_TRAIN_RECORDS)
        run = longer_run(setting_of(packed_root[0]))
        execute_run(run, {}, straight)
    return straight, Store(straight.storage).run(run.run_id).records()
