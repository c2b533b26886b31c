"""Identity and validation."""

import dataclasses
import json
import subprocess
import sys

import pytest

from gram_platform.config import (
    Continuations,
    DataConfig,
    DomainBudget,
    EvalPoints,
    Evaluation,
    ModuleSpec,
    OptimizerConfig,
    RoutingConfig,
    TokenLosses,
    View,
    evaluation_from_plain,
    run_from_plain,
)
from gram_platform.config.identity import canonical_json
from tests import tiny
from tests.refused import refused


def leaves(value, path=()):
    """(path, value) of every scalar field of a config."""
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves(getattr(value, field.name), (*path, field.name))
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def changed(value, path, new):
    if not path:
        return new
    if isinstance(value, tuple):
        return tuple(changed(v, path[1:], new) if i == path[0] else v for i, v in enumerate(value))
    return dataclasses.replace(value, **{path[0]: changed(getattr(value, path[0]), path[1:], new)})


# a valid other value for every field of the tiny run, so that none can be forgotten
OTHERS = {
    "num_layers": 3, "d_model": 32, "num_heads": 2, "num_kv_heads": 1, "d_mlp": 48,
    "vocab_size": 65, "seq_len": 17, "width": 9, "kind": None, "domain": "nuclear",
    "rope_theta": 1e5, "norm_eps": 1e-6, "init_std": 0.03, "data_id": "other", "name": "cyber",
    "num_sequences": 23, "num_draws": None, "p_core_robust": 0.4, "p_aux_spread": 0.2,
    "accumulation": "uniform", "peak_lr": 1e-3, "warmup_fraction": 0.1, "decay_fraction": 0.1,
    "beta1": 0.8, "beta2": 0.99, "eps": 1e-9, "weight_decay": 0.0, "clip_norm": 2.0,
    "clip_scope": None, "batch_size": 16, "micro_batch": 4, "num_points": 1, "domains": None,
    "seed": 1, "precision": "bfloat16", "objective": None, "start": View("abc"),
    "freeze_core": None, "patience": None, "first": 1, "forget": None, "retain_weight": 2.0,
    "document_end": 0, "decay_vectors": True, "stop_below": None, "architecture": "llama",
    "steered_layers": None, "steering": None, "responses_after": " Response:",
    "companions": "subset", "p_aux_companion": 0.5, "num_probes": None, "spreads_embeddings": None,
    "head_width": 8, "noise": None, "noise_scale": None,
}  # fmt: skip


def test_every_field_that_changes_a_result_changes_the_id():
    run, seen = tiny.run_config(), set()
    for path, _ in leaves(run):
        name = next(part for part in reversed(path) if isinstance(part, str))
        is_head_of_module = name == "num_heads" and "modules" in path
        # The only value there is, or tied to another field.
        if OTHERS[name] is None or is_head_of_module:
            continue
        other = changed(run, path, OTHERS[name])
        assert other.run_id != run.run_id, path
        seen.add(other.run_id)
    assert len(seen) >= 40


def test_ids_are_the_same_in_another_process():
    run = tiny.run_config()
    code = "from tests import tiny; print(tiny.run_config().run_id)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == run.run_id


def test_integers_in_real_fields_are_the_same_number():
    one = OptimizerConfig(1, 0, 0)
    same = OptimizerConfig(1.0, 0.0, 0.0)
    assert one == same
    assert canonical_json(one) == canonical_json(same)


def test_probes_are_part_of_a_run_and_none_leave_ids_as_they_were():
    run = tiny.run_config(data=tiny.HALF_LABELLED)
    assert "num_probes" not in canonical_json(run)
    probed = dataclasses.replace(run, eval_points=EvalPoints(0, 4, tiny.DOMAINS, num_probes=3))
    assert probed.run_id != run.run_id
    assert run_from_plain(json.loads(canonical_json(probed))) == probed
    assert probed.num_probed == 2  # of four validation sequences, a micro-batch of two at a time


def test_canonical_json_refuses_what_it_does_not_know():
    for value in ({1, 2}, object(), b"x", {1: 2}, 1j):
        with pytest.raises(TypeError):
            canonical_json({"x": value} if not isinstance(value, dict) else value)
    with pytest.raises(ValueError):
        canonical_json({"x": float("nan")})


def test_an_unknown_measure_is_refused():
    with refused("evaluation.measure", "other"):
        evaluation_from_plain({"measure": "other"})


def evaluations_of(view):
    """One of each kind, with the fields that they share equal."""
    losses, tokens = (
        Evaluation(view, "data", tiny.DOMAINS, 4),
        TokenLosses(view, "data", tiny.DOMAINS, 4),
    )
    return losses, tokens, Continuations(view, "data", tiny.DOMAINS, (1, 0), 4, 8)


def test_evaluations_of_every_kind_have_ids_of_their_own():
    evaluation = Evaluation(View.of("abc", {"lisp": 1.0}), "d" * 12, ("core", "lisp"), 4)
    assert evaluation.eval_id == "2aa62899bf33"  # as it was before there were other kinds
    losses, tokens, samples = evaluations_of(evaluation.view)
    others = [
        dataclasses.replace(tokens, num_sequences=5),
        dataclasses.replace(tokens, precision="float32"),
    ]
    others += [
        dataclasses.replace(samples, **{name: 3})
        for name in ("num_prompt_tokens", "num_tokens", "seed")
    ]
    others += [
        dataclasses.replace(samples, documents=(0,)),
        dataclasses.replace(samples, temperature=0.5),
    ]
    assert len({e.eval_id for e in (losses, tokens, samples, *others)}) == 3 + len(others)
    assert dataclasses.replace(samples, documents=(0, 1)).eval_id == samples.eval_id


def test_views_drop_zeros_and_answer_by_their_rule():
    assert View.of("run", {"lisp": 0.0}) == View("run")
    assert View.of("run", {"b": 1, "a": 0.5}).weights == (("a", 0.5), ("b", 1.0))
    assert (
        View.of("run", {"lisp": 0.0}).view_id
        == View("run").view_id
        != View.of("run", {"lisp": 0.1}).view_id
    )
    granted = View.of("run", {"lisp": 1.0}, rule="by_domain")
    assert granted.active("lisp") == {"lisp": 1.0}
    assert granted.active("virology") == {"core": 1.0}
    assert View.of("run", {"lisp": 1.0}).active("virology") == {"lisp": 1.0}


def probes(number: int, num_sequences: int = 4) -> EvalPoints:
    return EvalPoints(0, num_sequences, ("core",), num_probes=number)


RUN, HALF = tiny.run_config(), tiny.run_config(data=tiny.HALF_LABELLED)
WRONG = {
    "token_losses.num_sequences": lambda: TokenLosses(View("abc"), "data", ("core",), 0),
    "continuations.documents": lambda: Continuations(View("abc"), "data", ("core",), (1, 1), 4, 8),
    "continuations.temperature": lambda: Continuations(
        View("abc"), "data", ("core",), (0,), 4, 8, 0.0
    ),
    "routing.p_core_robust": lambda: RoutingConfig(p_core_robust=1.5),
    "routing.p_aux_spread": lambda: RoutingConfig(p_aux_spread=float("nan")),
    "routing.accumulation": lambda: RoutingConfig(accumulation="mixed"),
    "optimizer.peak_lr": lambda: OptimizerConfig(0, 0.1, 0.1),
    "optimizer.decay_fraction": lambda: OptimizerConfig(1e-3, 0.2, 0.9),
    "module.domain": lambda: ModuleSpec("a.b", "mlp", 4),
    "module.kind": lambda: ModuleSpec("a", "moe", 4),
    "module.num_heads": lambda: ModuleSpec("a", "mlp", 4, 1),
    "model.modules.num_heads": lambda: dataclasses.replace(
        RUN.model, modules=(ModuleSpec("a", "reserved", 4, 3),)
    ),
    "model.head_width": lambda: dataclasses.replace(RUN.model, head_width=3),
    "model.num_kv_heads": lambda: dataclasses.replace(RUN.model, num_kv_heads=3),
    "model.d_mlp": lambda: dataclasses.replace(RUN.model, d_mlp=0, modules=()),
    "micro_batch": lambda: dataclasses.replace(RUN, micro_batch=3),
    "data.domains[lisp].num_draws": lambda: tiny.run_config(draws=(64, 15, 16)),
    "data.domains": lambda: tiny.run_config(draws=(66, 16, 16)),
    "eval_points.num_points": lambda: dataclasses.replace(
        RUN, eval_points=EvalPoints(100, 4, ("core",))
    ),
    "eval_points.num_probes": lambda: dataclasses.replace(RUN, eval_points=probes(2)),
    "eval_points.num_sequences": lambda: dataclasses.replace(HALF, eval_points=probes(1, 1)),
    "seed": lambda: dataclasses.replace(RUN, seed=-1),
    "precision": lambda: dataclasses.replace(RUN, precision="int8"),
    "view.weights[lisp]": lambda: View.of("run", {"lisp": 1.1}),
    "view.sources": lambda: View("run", sources=(("lisp", "other"),)),
    "view.weights": lambda: View("run", (("lisp", 1.0), ("lisp", 0.5))),
    "evaluation.split": lambda: Evaluation(View("run"), "x", ("core",), 1, split="test"),
}


@pytest.mark.parametrize("field", WRONG)
def test_errors_name_the_field(field):
    with refused(field):
        WRONG[field]()


def test_probes_beyond_the_steps_and_doubled_domains_are_refused():
    with refused("eval_points.num_probes", 13):
        dataclasses.replace(HALF, eval_points=probes(13))
    with refused("view.sources"):
        View("run", (("lisp", 1.0),), (("lisp", "a"), ("lisp", "b")))
    with refused("data.domains", ["a", "a"]):
        DataConfig("x", (DomainBudget("a", 1, 1), DomainBudget("a", 1, 1)))
