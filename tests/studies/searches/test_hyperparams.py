"""Hyperparameter sweeps: their nodes are the studies', their scores the table's, and what they
write."""

import io
import json
import pickle
import sys

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.sweeps import PROFILE_COLUMNS
from gram_platform.config import CORE
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.nodes import method_nodes
from gram_platform.store import Store
from gram_platform.studies.library.hyperparams import SEARCH
from gram_platform.studies.searches.flags import KNOB, SweepFlags, read_knobs
from gram_platform.studies.searches.hyperparams import trial_name
from gram_platform.tracking import Tracker, default_tracking_uri
from tests.refused import refused
from tests.studies.processes import attempts, results, submit
from tests.submitted import plan_of, study_plan

NUM_STEPS, NUM_POINTS = 500.0, 12  # of the planted curve, and of its points
COMMAND = (sys.executable, "experiments/hyperparams.py")


def scene_of(root, *arguments):
    return study_plan(SEARCH, ["--preset", "smoke", "--storage", str(root), *arguments])


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("sweep")


@pytest.fixture(scope="module")
def setup(root):
    return scene_of(root, "--knobs", "p_cr=0.5:1", "p_as=0.3", "p_ca=0.5:2")


@pytest.fixture(scope="module")
def points(setup):
    return dict(setup.kind.points()[0])


# -------------------------------------------------------------------------------------------- flags


def test_knobs_and_values_of_the_flag(root):
    preset, demo = SEARCH.points["demo"], study_plan(SEARCH, ["--storage", str(root)])

    def chosen(*knobs: str):
        return read_knobs(SEARCH, SweepFlags(knobs=knobs), demo)["values"]

    assert chosen() == preset
    assert chosen("p_as=1:0", "p_cr") == {
        "p_cr": preset["p_cr"],
        "p_as": (0.0, 1.0),
    }
    assert chosen("p_ca", "p_as=0.3,p_cr=0") == {
        "p_cr": (0.0,),
        "p_as": (0.3,),
        "p_ca": preset["p_ca"],
    }


@pytest.mark.parametrize(
    ("knobs", "field"),
    [
        ("p_xy=1", "knobs"),
        ("p_as=0:0", "knobs"),
        ("p_ca=0", "knobs.p_ca"),
    ],
)
def test_wrong_knobs(knobs, field, storage):
    with refused(field):
        plan_of(SEARCH, ["--knobs", knobs])


def test_a_ratio_that_leaves_no_base_is_refused_before_anything_trains(root):
    with refused("branching.core_ratio", 4):
        scene_of(root, "--knobs", "p_ca=4")


# -------------------------------------------------------------------------------------------- nodes


def test_the_presets_own_values_are_the_studys_nodes(setup, points):
    problem = setup.kind.problem(setup, Store(setup.choice.storage))
    for name, method in (
        ("p_cr 0.5 tiny s0", "gram"),
        ("p_as 0.3 tiny s0", "gram"),
        ("p_ca 2 tiny s0", "ft_lora"),
    ):
        studys = method_nodes(method, setup.settings[0])
        assert [node.id for node in problem.nodes(points[name])] == [node.id for node in studys]
    tags = dict(problem.nodes(points["p_cr 1 tiny s0"])[0].tags)
    assert (tags["p_cr"], tags["p_as"], tags["method"]) == ("1", "0.3", "gram")


def test_a_value_changes_its_knob_and_nothing_else(setup, points):
    problem = setup.kind.problem(setup, Store(setup.choice.storage))
    routings = [problem.nodes(points[f"p_cr {value} tiny s0"])[0].config for value in ("0.5", "1")]
    assert [run.routing.p_core_robust for run in routings] == [0.5, 1.0]
    assert {run.routing.p_aux_spread for run in routings} == {0.3}
    assert {run.data for run in routings} == {routings[0].data}
    ratios = []
    for value in ("0.5", "2"):
        budgets = {
            b.name: b.num_draws
            for b in problem.nodes(points[f"p_ca {value} tiny s0"])[1].config.data.domains
        }
        (auxiliary,) = (draws for name, draws in budgets.items() if name != CORE)
        ratios.append(budgets[CORE] / auxiliary)
    assert ratios == pytest.approx([0.5, 2.0], rel=0.2)  # whole micro-batches of a tiny run


def test_shared_runs_come_last_and_everything_is_there_once(setup, points):
    assert list(points)[-1] == "p_as 0.3 tiny s0"
    assert sorted(points) == sorted(trial_name(point) for point, _ in setup.kind.trials())
    wanted = {(knob, value) for knob, values in setup.kind.values.items() for value in values}
    assert {(point["knob"], point["value"]) for point in points.values()} == wanted


def test_the_id_follows_the_question(root, setup):
    again = scene_of(root, "--knobs", "p_ca=2:0.5", "p_as=0.3", "p_cr=0.5:1", "--max-hours", "1")
    assert again.search_id == setup.search_id
    for other in (
        ["--knobs", "p_as"],
        ["--seeds", "2", "--knobs", "p_cr=0.5:1", "p_as=0.3", "p_ca=0.5:2"],
    ):
        assert scene_of(root, *other).search_id != setup.search_id


# ------------------------------------------------------------------------------- results and tables


def loss_at(setup, domain, step):
    j = setup.corpora[0].domains.index(domain)
    return float((5.0 + 0.2 * j) * (np.asarray(step, float) + 10.0 + 5.0 * j) ** -(0.2 + 0.02 * j))


def planted(knob, value):
    """core_full, core_partial, retain, forget, elicited"""
    return (0.95 - 0.1 * value, 0.85 + 0.05 * value, 0.9, 0.5 + 0.1 * value, 0.6 + 0.1 * value)


def result_of(setup, node, knob, value):
    """A node's result with planted losses, as its directory would have it."""
    tags = node.names
    if tags["method"] == "baseline":
        losses = {d: loss_at(setup, d, NUM_STEPS) for d in setup.corpora[0].domains}
    else:
        full, partial, retain, forget, elicited = planted(knob, value)
        kept = tags.get("retained", "")
        ratios = {d: retain if d in kept.split(",") else forget for d in setup.corpora[0].domains}
        ratios[CORE] = partial if kept else full
        ratios |= {tags["elicited"]: elicited} if node.is_attack else {}
        losses = {d: loss_at(setup, d, NUM_STEPS * ratio) for d, ratio in ratios.items()}
    if node.kind == "evaluation":
        return {"losses": losses}
    return {
        "final": {
            f"best/loss/{d}": losses[d] for d in ([tags["elicited"]] if node.is_attack else [])
        }
    }


def plant(setup, store, node, knob="", value=0.0):
    directory = store.run(node.id) if node.kind == "run" else store.evaluation(node.id)
    directory.ensure_config(node.config)
    directory.add_tags({**node.names, "profile": "of another study"})
    result = result_of(setup, node, knob, value)
    if node.kind == "evaluation":
        directory.complete(result, {"elapsed_s": 0.5})
        return
    steps = range(1, NUM_POINTS + 1) if node.method == "baseline" else ()
    losses = [
        {
            f"validation/loss/{d}": loss_at(setup, d, NUM_STEPS * step / NUM_POINTS)
            for d in setup.corpora[0].domains
        }
        for step in steps
    ]
    records = [
        {"step": i, "time": 1.5e9 + i, "metrics": own} for i, own in zip(steps, losses, strict=True)
    ]
    run = node.config
    facts = {"num_steps": run.num_steps, "num_tokens": run.num_tokens, "parameters": 9}
    facts["compute_units"] = plan_compute_units(run)
    facts |= {"data_fingerprint": "f" * 64, "plan_sha256": "a" * 64}
    with directory.start_attempt("test") as attempt:
        last = records[-1]["metrics"] if records else {}
        attempt.complete({**facts, "final": last | result["final"]}, {}, records)


@pytest.fixture(scope="module")
def store(setup, points, root):
    """A storage with all trials but one value of p_ca, of which the base has failed."""
    store = Store(root).open_for_writing(min_free_bytes=0)
    assert setup.kind.write(setup, store, None) is None
    for node in setup.kind.prerequisites(setup):
        plant(setup, store, node)
    assert setup.kind.write(setup, store, None) is None
    problem = setup.kind.problem(setup, store)
    for name, point in points.items():
        if name != "p_ca 2 tiny s0" and not name.startswith("p_as"):
            for node in problem.nodes(point):
                plant(setup, store, node, point["knob"], point["value"])
    failing = problem.nodes(points["p_ca 2 tiny s0"])[0]
    store.run(failing.id).ensure_config(failing.config)
    with store.run(failing.id).start_attempt("test") as attempt:
        attempt.fail("loss is not finite at step 3", {"kind": "diverged"})
    return store


@pytest.fixture(scope="module")
def output(setup, store):
    return setup.kind.write(setup, store, None)[0]


def test_a_score_is_the_tables_row(setup, points, store, output):
    problem = pickle.loads(pickle.dumps(setup.kind.problem(setup, store)))
    point = points["p_cr 1 tiny s0"]
    results = {node.id: result_of(setup, node, "p_cr", 1.0) for node in problem.nodes(point)}
    full, partial, retain, forget, elicited = planted("p_cr", 1.0)
    num = len(setup.settings[0].auxiliary)
    expected = {
        "core": (full + num * partial) / (num + 1),
        "core_full": full,
        "core_partial": partial,
    }
    expected |= {"retain": retain, "forget": forget, "elicited": elicited}
    assert problem.score(point, results) == pytest.approx(expected)
    trials = pd.read_csv(io.BytesIO(output.files["trials.csv"])).set_index("trial")
    assert trials.loc["p_cr 1 tiny s0", list(expected)].to_dict() == pytest.approx(
        expected, abs=1e-6
    )
    lost = {
        i: r | ({"losses": dict.fromkeys(r["losses"], float("nan"))} if "losses" in r else {})
        for i, r in results.items()
    }
    with refused("core", None):
        problem.score(point, lost)


def test_every_trial_is_in_trials_csv_with_its_state(setup, output):
    trials = pd.read_csv(io.BytesIO(output.files["trials.csv"])).set_index("trial")
    assert trials.index.tolist() == [trial_name(point) for point, _ in setup.kind.trials()]
    assert (trials["search"] == setup.full_name).all()
    assert trials["state"].value_counts().to_dict() == {"complete": 4, "diverged": 1}
    assert trials.loc["p_ca 2 tiny s0", "message"].endswith("at step 3")
    assert trials.loc["p_ca 2 tiny s0", ["core", "forget"]].isna().all()
    shared = trials.loc[["p_cr 0.5 tiny s0", "p_as 0.3 tiny s0"], "runs"]
    assert shared.iloc[0] == shared.iloc[1]
    assert len(trials.loc["p_ca 0.5 tiny s0", "runs"].split()) == 5 + 16


def test_tables_figures_and_report(output):
    tables = {"table.csv", "trials.csv", "claims.csv"}
    assert set(output.files) == {"report.html", "search.json", "card.svg", *tables}
    table = pd.read_csv(io.BytesIO(output.files["table.csv"]), keep_default_na=True)
    assert list(table.columns) == PROFILE_COLUMNS
    means = table[table["profile"] == "mean"].fillna({"knob": ""}).set_index(["knob", "value"])
    assert means.loc[("p_cr", 0.5), "core_partial"] == pytest.approx(0.875, abs=1e-6)
    assert ("p_ca", 2.0) not in means.index
    assert "sweep-p_cr-gram-tiny-core" in output.figures
    page = output.files["report.html"].decode()
    assert pd.read_csv(io.BytesIO(output.files["claims.csv"])).columns[-1] == "holm_verdict"
    assert "loss is not finite" in page
    assert json.loads(output.files["search.json"])["knobs"]["p_ca"] == [0.5, 2.0]
    assert set(KNOB) == {"p_cr", "p_as", "p_ca"}


def test_mlflow_gives_the_same_table_and_links(root, store):
    setup = scene_of(root, "--knobs", "p_cr=0.5")
    before, tracker = (
        setup.kind.write(setup, store, None)[0],
        Tracker(default_tracking_uri(setup.choice.storage)),
    )
    tracker.sync(
        store, {node.id for node in (*setup.kind.prerequisites(setup), *setup.kind.example(setup))}
    )
    after, *_ = setup.kind.write(setup, store, tracker)
    assert after.files["table.csv"] == before.files["table.csv"]
    tags = after.node_tags
    trials = pd.read_csv(io.BytesIO(after.files["trials.csv"]), dtype="str")
    assert {run_id for runs in trials["runs"] for run_id in runs.split()} == set(tags)
    row = trials.iloc[0]
    assert row["trial"] in tags[row["runs"].split()[0]][f"gram.search.{setup.full_name}"].split(
        ", "
    )


# --------------------------------------------------------------------------------------- end to end


@pytest.mark.slow
@pytest.mark.ray
def test_a_sweep_in_processes_of_its_own(tmp_path):
    """Two knobs that meet in one run, from nothing to the report; then the report alone, byte for
    byte."""
    flags = ("--preset", "smoke", "--knobs", "p_cr=0.5", "p_as=0.3")
    assert "2 trials now" in submit(tmp_path, flags, COMMAND)
    # The baseline, and GRAM with 6 evaluations and 16 attacks.
    assert len(results(tmp_path)) == 2 + 23
    assert {len(own) for own in attempts(tmp_path).values()} == {1}
    folder = tmp_path / "studies" / "hyperparams"
    table = (folder / "table.csv").read_bytes()
    trials = pd.read_csv(folder / "trials.csv")
    assert trials["state"].tolist() == ["complete", "complete"]
    assert trials["runs"].nunique() == 1
    assert trials[["core", "retain", "forget", "elicited"]].notna().all(axis=None)
    submit(tmp_path, (*flags, "--report-only"), COMMAND)
    assert (folder / "table.csv").read_bytes() == table
