"""Kinds of attack, and a finetuning stage on views."""

import dataclasses

import pytest

from gram_platform.config import CORE, ModuleSpec, View
from gram_platform.config.routing import Schedule, module_set
from gram_platform.methods import plan
from gram_platform.methods.elicitation import add_finetuning, plan_attacks
from gram_platform.methods.nodes import method_nodes, require_closed
from gram_platform.methods.setting import NEIGHBOUR, Elicitation
from tests.methods.test_plans import AUXILIARY, setting
from tests.refused import refused


def attacked(**kind) -> dict:
    """The attacks on GRAM's view core+virology."""
    cell = setting().with_options(elicitation=Elicitation(32, 8, batch_size=32, **kind))
    plans = plan("gram", cell)
    return plan_attacks(cell, ("virology",), plans.views[("virology",)], plans.runs.values())


def test_adapters_alone_are_trained_on_the_same_sample():
    full, adapted = attacked()["lisp"], attacked(rank=4)["lisp"]
    assert full.model.modules == ()
    assert adapted.model == dataclasses.replace(
        full.model, modules=(ModuleSpec("lisp", "lora", 4),)
    )
    assert {micro.route.trained for micro in Schedule(adapted).window(0)} == {
        frozenset({module_set("lisp")})
    }
    assert {micro.route.active for micro in Schedule(adapted).window(0)} == {(("lisp", 1.0),)}
    same = ("data", "optimizer", "start", "eval_points", "batch_size", "micro_batch")
    assert all(getattr(full, name) == getattr(adapted, name) for name in same)


@pytest.mark.parametrize("rank", [0, 4])
def test_other_text_is_trained_on_and_the_removed_domain_measured(rank):
    of_neighbour, of_core = attacked(text=NEIGHBOUR, rank=rank), attacked(text=CORE, rank=rank)
    trained = {domain: [b.name for b in run.data.domains] for domain, run in of_neighbour.items()}
    # virology is retained.
    assert trained == {"cyber": ["lisp"], "lisp": ["nuclear"], "nuclear": ["virology"]}
    assert all([b.name for b in run.data.domains] == [CORE] for run in of_core.values())
    for found in (of_neighbour, of_core):
        assert {domain: run.eval_points.domains for domain, run in found.items()} == {
            d: (d,) for d in found
        }
    assert (
        len({run.run_id for found in (attacked(), of_neighbour, of_core) for run in found.values()})
        == 9
    )


@pytest.mark.parametrize(
    ("sample", "batch", "micro_batch", "num_epochs"),
    [
        (64, 32, 4, 4),
        (24, 32, 4, 8),
        (64, 30, 30, 4),
        (30, 30, 3, 8),
        (31, 31, 1, 8),
        (999, 32, 4, 1),
    ],
)
def test_micro_batches_divide_a_batch_and_every_epoch_is_measured(
    sample, batch, micro_batch, num_epochs
):
    """Eight steps; the size's micro-batch is 4. Ids depend on these numbers, so they stay."""
    cell = setting().with_options(elicitation=Elicitation(sample, 8, batch_size=batch))
    plans = plan("gram", cell)
    run, *_ = plan_attacks(
        cell, ("virology",), plans.views[("virology",)], plans.runs.values()
    ).values()
    assert (run.batch_size, run.micro_batch, run.num_steps) == (batch, micro_batch, 8)
    assert run.eval_points.num_points == num_epochs


def test_an_attack_may_count_responses_alone():
    runs = attacked(responses_after="Answer:").values()
    assert {run.objective.responses_after for run in runs} == {"Answer:"}


def test_text_that_the_corpus_lacks_is_refused():
    with refused("elicitation.text", "poems"):
        attacked(text="poems")
    alone = setting(num_sequences={CORE: 4000, "lisp": 250}, profiles=((),))
    alone = alone.with_options(elicitation=Elicitation(32, 8, text=NEIGHBOUR))
    with refused("elicitation.text", NEIGHBOUR):
        method_nodes("filtering", alone)


@pytest.mark.parametrize(
    "method", ["baseline", "filtering", "gram", "ft_lora", "maxent", "rmu", "graddiff"]
)
@pytest.mark.parametrize("rank", [0, 4])
def test_a_stage_follows_every_compared_view_and_is_evaluated_and_attacked(method, rank):
    stage = Elicitation(32, 8, patience=0, batch_size=32, rank=rank, text="instructions")
    nodes = method_nodes(method, setting().with_options(finetuning=stage))
    require_closed(nodes)
    stages = {n.id: n for n in nodes if n.is_run and n.names["profile"].endswith("finetuned")}
    views = [n.config.view for n in nodes if not n.is_run]
    assert [view.run_id for view in views] == list(stages)
    assert len(stages) == 1
    for node in stages.values():
        assert [b.name for b in node.config.data.domains] == ["instructions"]
        assert node.config.start in plan(method, setting()).views.values()
    assert all(n.config.start == views[0] for n in nodes if n.is_attack)
    assert {n.names["elicited"] for n in nodes if n.is_attack} == (
        set() if method == "baseline" else set(AUXILIARY) - {"virology"}
    )
    assert dict(views[0].weights) == ({"instructions": 1.0} if rank else {})


def test_a_stage_on_a_view_of_several_experts_is_refused():
    cell, stage = setting(), Elicitation(32, 8, text="instructions")
    with refused("options.finetuning", "instructions"):
        add_finetuning(cell, stage, plan("demix", cell))
    assert View.of("run").rule == "constant"
