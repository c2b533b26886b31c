"""A real small corpus and runs on it."""

import dataclasses
import shutil

import pytest

from gram_platform.config import CORE, RoutingConfig
from gram_platform.config.ladder import SMOKE_SIZES
from gram_platform.corpora import prepare, resolve
from gram_platform.engine import node
from gram_platform.engine.execution import Division, Execution, Placement
from gram_platform.engine.node import execute_run
from gram_platform.methods import Setting, plan
from gram_platform.store import Store


def on_ranks(*numbers: int) -> Placement:
    """Returns the placement of a run that may have these numbers of ranks, the most first, each in one pass."""
    return Placement(tuple(map(Division, numbers)))


TWO_RANKS = on_ranks(2)
TINY = dataclasses.replace(SMOKE_SIZES["tiny"], core_tokens=64 * 160)


@pytest.fixture(scope="session")
def packed_root(tmp_path_factory):
    """(recipe, folder of the packed corpus)."""
    root = tmp_path_factory.mktemp("packed")
    recipe = resolve("stories-smoke", seq_len=TINY.seq_len, vocab_size=TINY.vocab_size, sample_bytes=100_000)
    prepare(recipe, root)
    return recipe, root


@pytest.fixture
def execution(packed_root, tmp_path):
    """A storage of its own whose data is the session's."""
    store = Store(tmp_path / "storage").open_for_writing()
    shutil.copytree(packed_root[1], store.data_root)
    return Execution(store.root, checkpoint_every_s=0.0)


@pytest.fixture
def setting(packed_root):
    """One cell: a tiny size, 10 steps of core and a few auxiliary micro-batches."""
    recipe, _ = packed_root
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
def run(setting, monkeypatch):
    """66 steps, 16 to a record of training metrics."""
    monkeypatch.setattr(node, "NUM_TRAIN_RECORDS", 4)
    found = plan("gram", setting).runs["all"]
    longer = tuple(dataclasses.replace(b, num_draws=6 * b.num_draws) for b in found.data.domains)
    found = dataclasses.replace(found, data=dataclasses.replace(found.data, domains=longer))
    assert node.record_interval(found) > 10
    return found


@pytest.fixture
def undisturbed(run, execution, tmp_path):
    """(execution, records) of the run without any disturbance."""
    straight = dataclasses.replace(execution, storage=str(tmp_path / "other"), checkpoint_every_s=1e9)
    other = Store(straight.storage).open_for_writing()
    shutil.copytree(Store(execution.storage).data_root, other.data_root)
    execute_run(run, {}, straight)
    return straight, other.run(run.run_id).records()
