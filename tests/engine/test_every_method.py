"""Every method from its runs to its attacked views, on a small real corpus."""

import dataclasses

import pytest
import torch

from gram_platform.config import CORE, RunConfig
from gram_platform.engine.evaluation import execute_evaluation
from gram_platform.engine.node import execute_run
from gram_platform.methods import METHODS, plan
from gram_platform.methods.elicitation import plan_attacks, view_to_attack
from gram_platform.methods.nodes import method_nodes, require_closed, unique
from gram_platform.methods.setting import (
    GRADDIFF,
    RMU,
    Branching,
    Demix,
    Elicitation,
    Options,
    Undo,
    Unlearning,
)
from gram_platform.store import Store
from gram_platform.store.views import load_view, model_of
from tests.engine.conftest import elsewhere
from tests.engine.test_node import Stopped, result_bytes, stop_after
from tests.tiny import materialised, weights_of

OPTIONS = Options(
    branch_full=Branching(1.0, 0.5),
    branch_module=Branching(1.0, 1.0),
    maxent=Unlearning(num_steps=3, peak_lr=1e-3),
    rmu=dataclasses.replace(RMU, num_steps=4),
    graddiff=dataclasses.replace(GRADDIFF, num_steps=3),
    undo=Undo(compute=0.8),
    demix=Demix(expert_width=32, sampling="balanced"),
    elicitation=Elicitation(num_sequences=8, num_steps=6, patience=2, batch_size=8, lr_factor=1.0),
)


@pytest.fixture
def execution(execution):
    """Without checkpoints: nothing interrupts these runs."""
    return dataclasses.replace(execution, checkpoint_every_s=1e9)


@pytest.fixture
def cell(setting):
    """Two compared profiles, so that views can hold modules of several runs."""
    first, second = setting.auxiliary[:2]
    return dataclasses.replace(
        setting, profiles=((), (first,), (second,), (first, second)), options=OPTIONS
    )


def execute(nodes, execution):
    """In dependency order, as the graph would."""
    done = set()
    while waiting := [n for n in unique(nodes) if n.id not in done]:
        ready = [n for n in waiting if n.needs <= done]
        assert ready, "a cycle"
        for node in ready:
            run = execute_run if node.kind == "run" else execute_evaluation
            run(node.config, node.names, execution)
            done.add(node.id)


def mild(method, cell):
    """FT-Full has no view of two domains."""
    singles = tuple(p for p in cell.profiles if len(p) < 2)
    return dataclasses.replace(cell, profiles=singles) if method in ("ft_full",) else cell


# Of each way to train and to view one: no module, routed modules, branches, unlearning from a view,
# experts.
QUICK = ("baseline", "gram", "ft_full", "ft_lora", "maxent", "demix")
CASES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]


@pytest.mark.parametrize("method", CASES)
def test_runs_views_and_attacks(method, cell, execution):
    cell = mild(method, cell)
    nodes = method_nodes(method, cell)
    require_closed(nodes)
    trained = [n for n in nodes if n.is_run and not n.is_attack]
    views = [n for n in nodes if n.kind == "evaluation"]
    execute([*trained, *views], execution)
    store = Store(execution.storage)
    before = {n.id: store.run(n.id).folder.read("result.json") for n in trained}
    weights = {n.id: weights_of(store.run(n.id)) for n in trained}
    _check_views(store, plan(method, cell).views.values(), cell)
    execute(nodes, execution)
    for run_id, bytes_before in before.items():  # an attack never touches its parent
        assert store.run(run_id).folder.read("result.json") == bytes_before
        assert all(
            torch.equal(w, weights[run_id][n]) for n, w in weights_of(store.run(run_id)).items()
        )
    attacked = [n for n in nodes if n.is_attack]
    assert bool(attacked) == (method != "baseline")
    for node in attacked:
        final = store.run(node.id).result()["final"]
        domain = node.names["elicited"]
        assert final[f"best/loss/{domain}"] <= final[f"validation/loss/{domain}"]
        assert domain not in node.names["retained"].split(",")


@torch.no_grad()
def _check_views(store, views, cell):
    """A view's routed logits on every domain equal its dense model's, at weight 1 and at 0.5."""
    tokens = torch.arange(24)[None]
    for view in views:
        halved = (
            tuple((d, 0.5) for d, _ in view.weights) if view.rule == "constant" else view.weights
        )
        for weighted in {view, dataclasses.replace(view, weights=halved)}:
            _, model = load_view(store, weighted)
            for domain in (CORE, *cell.auxiliary):
                dense = model_of(*materialised(store, view_to_attack(weighted, domain)))
                assert torch.allclose(
                    model(tokens, weighted.active(domain)), dense(tokens), atol=1e-4
                )


def test_attacks_use_the_same_sample_of_the_training_split_for_all(cell):
    samples = set()
    for method in ("filtering", "gram", "ft_lora", "demix"):
        plans = plan(method, cell)
        for profile, view in plans.views.items():
            for domain, run in plan_attacks(cell, profile, view, plans.runs.values()).items():
                assert isinstance(run, RunConfig)
                assert [d.name for d in run.data.domains] == [domain]
                samples.add(
                    (domain, run.data.domains[0].pool, run.num_steps, run.optimizer.peak_lr)
                )
    assert len(samples) == len(cell.auxiliary)


def test_an_attack_by_adapters_trains_them_alone(cell, execution):
    cell = cell.with_options(
        elicitation=dataclasses.replace(OPTIONS.elicitation, rank=2, patience=0)
    )
    base = plan("filtering", cell)
    (profile, view), run = next(iter(base.views.items())), next(iter(base.runs.values()))
    execute_run(run, {}, execution)
    domain, attack = next(iter(plan_attacks(cell, profile, view, base.runs.values()).items()))
    execute_run(attack, {}, execution)
    before, after = (weights_of(Store(execution.storage).run(r.run_id)) for r in (run, attack))
    assert all(torch.equal(after.pop(name), weight) for name, weight in before.items())
    assert all(f".aux.{domain}." in name for name in after)
    assert all(
        weight.abs().max() > 0 for name, weight in after.items() if name.endswith("_b.weight")
    )


@pytest.mark.parametrize("num_commits", [1, 2])
def test_early_stopping_ends_with_the_best_loss(
    cell, execution, tmp_path, monkeypatch, num_commits
):
    """A rate that only harms: the run ends after `patience` evaluations without a better loss, and
    resumed between two of them it ends the same.
    """
    base = plan("filtering", cell)
    run = next(iter(base.runs.values()))
    execute_run(run, {}, execution)
    view = next(iter(base.views.values()))
    domain, attack = next(iter(plan_attacks(cell, (), view, base.runs.values()).items()))
    harmful = dataclasses.replace(
        attack, optimizer=dataclasses.replace(attack.optimizer, peak_lr=3.0)
    )
    result = execute_run(harmful, {}, execution)
    assert result["num_steps"] < harmful.num_steps
    curve = [
        r["metrics"].get(f"validation/loss/{domain}")
        for r in Store(execution.storage).run(harmful.run_id).records()
    ]
    assert result["final"][f"best/loss/{domain}"] == min(loss for loss in curve if loss is not None)
    often = dataclasses.replace(elsewhere(execution, tmp_path, "other"), checkpoint_every_s=0.0)
    execute_run(run, {}, often)
    with monkeypatch.context() as patch:
        stop_after(patch, num_commits)
        with pytest.raises(Stopped):
            execute_run(harmful, {}, often)
    execute_run(harmful, {}, often)
    assert result_bytes(often, harmful.run_id) == result_bytes(execution, harmful.run_id)


@pytest.mark.parametrize(
    "method", ["gram", "filtering", pytest.param("ft_lora", marks=pytest.mark.slow)]
)
def test_partial_labels(method, cell, execution):
    cell = dataclasses.replace(
        cell, profiles=((cell.auxiliary[0],),), options=Options(unlabelled_share=0.5)
    )
    plans = plan(method, cell)
    hidden = {
        part
        for run in plans.runs.values()
        for d in run.data.domains
        for part in d.slices
        if part.first
    }
    assert {part.domain for part in hidden} >= {CORE, *cell.auxiliary}
    execute(method_nodes(method, cell), execution)
