"""The search for GRAM's trade-off: equal compute, one attacker for all, the table's own means, and an honest front."""

import dataclasses
import io
import math
import pickle
import re

import optuna
import pandas as pd
import pytest

from gram_platform.analysis.maxent_objective import HIGHEST_RATIO, references_of
from gram_platform.analysis.ratios import MEAN
from gram_platform.analysis.tables import analyse
from gram_platform.analysis.trials import hypervolume_history, linked
from gram_platform.config import CORE, State
from gram_platform.config.flops import active_parameters
from gram_platform.engine.proposals import Group, OptunaSource
from gram_platform.engine.trials import Outcome
from gram_platform.methods.nodes import Node, method_nodes
from gram_platform.methods.setting import Elicitation, Options
from gram_platform.pages.report.page import Page
from gram_platform.studies.library.pareto import SEARCH
from gram_platform.studies.library.stories import STORIES_SMOKE
from gram_platform.studies.searches.definition import parse_search as parse
from gram_platform.studies.searches.optuna_studies import trials_frame
from gram_platform.studies.searches.pareto import space_around
from gram_platform.studies.searches.pareto_trials import (
    PARETO_OBJECTIVES,
    PRESET,
    REFERENCE_POINT,
    FrontTables,
    ParetoProblem,
    all_figures,
    default_point,
    front_brief,
    front_table,
    sections,
    setting_with,
    trials_table,
)
from gram_platform.studies.searches.report import attack_frame, result_frame, view_frame
from gram_platform.studies.searches.run import build_search
from tests import pseudo_terminal
from tests.methods.test_plans import setting
from tests.study_frames import DOMAINS, NUM_STEPS, curves, evaluations, loss_at

ATTACK = Elicitation(num_sequences=16, num_steps=4, patience=0, batch_size=8)
CELLS = tuple(
    setting(
        seed=seed,
        num_sequences={CORE: 20000, "biology": 2500, "chemistry": 2500},
        profiles=((), ("biology",), ("chemistry",)),
        options=Options(elicitation=ATTACK),
    )
    for seed in range(2)
)
CELLS = tuple(dataclasses.replace(c, size=dataclasses.replace(c.size, name="small")) for c in CELLS)
POINT = {"p_as": 0.7, "p_cr": 0.25, "d_aux": 40, "peak_lr": 1.5e-3}
RATIOS = {"core": 0.9, "retain": 0.8, "forget": 0.5, "elicited": 0.7}


@pytest.fixture(scope="module")
def problem() -> ParetoProblem:
    return ParetoProblem(CELLS, references_of(evaluations(), curves(), "small"))


def result(node: Node, shift: float, ratios: dict) -> dict:
    """A stored result whose losses are those of the planted ratios, `shift` apart from seed to seed."""
    tags = node.names
    ratio = lambda name: ratios[name] + shift * int(tags["seed"])
    at = lambda domain, name: float(loss_at("small", domain, NUM_STEPS * ratio(name)))
    if node.is_attack:
        return {"final": {f"best/loss/{tags['elicited']}": at(tags["elicited"], "elicited")}}
    if node.kind == "run":
        return {"final": {}}
    kept = tags["retained"].split(",")
    classes = {d: "core" if d == CORE else "retain" if d in kept else "forget" for d in DOMAINS}
    return {"losses": {d: at(d, name) for d, name in classes.items()}}


def results(problem: ParetoProblem, point=POINT, shift: float = 0.1, **ratios: float) -> dict:
    return {node.id: result(node, shift, RATIOS | ratios) for node in problem.nodes(point)}


# ------------------------------------------------------------------------------------------------------- trials


def test_the_point_without_a_search_is_the_settings_own_gram(problem):
    own = [node.id for cell in CELLS for node in method_nodes("gram", cell)]
    assert [node.id for node in problem.nodes(default_point(CELLS[0]))] == own
    assert not set(own) & {node.id for node in problem.nodes(POINT)}


def test_a_point_is_the_model_the_routing_and_the_rate_but_not_the_attacker(problem):
    runs = [node for node in problem.nodes(POINT) if node.kind == "run"]
    trained = [node.config for node in runs if not node.is_attack]
    assert len(trained) == len(CELLS)
    for run in trained:
        assert (run.routing.p_aux_spread, run.routing.p_core_robust, run.optimizer.peak_lr) == (0.7, 0.25, 1.5e-3)
        assert {module.width for module in run.model.modules} == {40}
    rates = {node.config.optimizer.peak_lr for node in runs if node.is_attack}
    own = ATTACK.lr_factor * CELLS[0].size.peak_lr
    assert len(runs) - len(trained) == len(CELLS) * 4  # core forgets two domains, the other profiles one each
    assert all(rate == pytest.approx(own, rel=1e-12) for rate in rates)
    assert runs[0].names.items() >= {"p_as": "0.7", "d_aux": "40", "peak_lr": "0.0015"}.items()


@pytest.mark.parametrize("d_aux", [4, 16, 64])
def test_lambda_keeps_the_training_compute_whatever_the_width(problem, d_aux):
    """The paper's formula: a core batch costs the core. What p_cr adds is in `compute` and nowhere else."""
    plain, mixed = ({**POINT, "d_aux": d_aux, "p_cr": p_cr} for p_cr in (0.0, 1.0))
    unit = CELLS[0].size.batch_size / sum(CELLS[0].num_sequences.values())  # budgets are whole batches
    assert problem.compute(plain) == pytest.approx(1.0, abs=2 * unit)
    model = setting_with(CELLS[0], mixed).size.modular(DOMAINS)
    module = active_parameters(model, ("biology",)) - active_parameters(model, ())
    added = 20000 / 25000 * module / active_parameters(model, ())
    assert problem.compute(mixed) - problem.compute(plain) == pytest.approx(added, rel=0.1)


def test_a_score_is_the_mean_row_of_the_table(problem):
    stored = results(problem)
    score = pickle.loads(pickle.dumps(problem)).score(POINT, stored)
    nodes = problem.nodes(POINT)
    frame = result_frame(nodes, stored)
    baselines = evaluations()[lambda f: (f["size"] == "small") & (f["method"] == "baseline")]
    views = pd.concat([baselines, view_frame(nodes, frame)])
    table = analyse(views, curves(("small",)), attacks=attack_frame(nodes, frame)).table
    (row,) = table[(table["method"] == "gram") & (table["profile"] == MEAN)].to_dict("records")
    for name in (*PARETO_OBJECTIVES, "forget"):
        assert score[name] == pytest.approx(row[name], rel=1e-9)
        assert score[name] == pytest.approx(RATIOS[name] + 0.05, rel=1e-6)
    assert score["compute"] == problem.compute(POINT)


def test_ratios_are_clipped_and_unknown_losses_are_named(problem):
    lost = results(problem)
    for node in problem.nodes(POINT):
        if node.kind == "evaluation":
            lost[node.id] = {"losses": dict.fromkeys(DOMAINS, 50.0)}
    score = problem.score(POINT, lost)
    assert (score["core"], score["retain"]) == (0.0, 0.0)
    known = problem.score(POINT, results(problem, shift=0.0, elicited=9.0))
    assert known["elicited"] == HIGHEST_RATIO
    told = {objective.metric: objective.worst for objective in SEARCH.objectives}
    assert told["core"] < 0.0 > told["retain"]
    assert told["elicited"] > HIGHEST_RATIO
    attacked = next(node for node in problem.nodes(POINT) if node.is_attack)
    lost[attacked.id] = {"final": {f"best/loss/{attacked.names['elicited']}": math.inf}}
    with pytest.raises(ValueError, match=r"^results='elicited'"):
        problem.score(POINT, lost)


# -------------------------------------------------------------------------------------------------------- search


def test_flags_are_refused_before_anything_is_prepared(tmp_path):
    place = ["--preset", "smoke", "--storage", str(tmp_path)]
    with pytest.raises(ValueError, match=r"^space='p_zz'|^space="):
        parse(SEARCH, [*place, "--space", "p_zz=0:1"])
    with pytest.raises(ValueError, match=r"^space.p_as="):
        parse(SEARCH, [*place, "--space", "p_as=0:2"])
    with pytest.raises(ValueError, match=r"^space.d_aux="):
        parse(SEARCH, [*place, "--space", "d_aux=1.5:8"])
    unattacked = dataclasses.replace(
        STORIES_SMOKE, options=dataclasses.replace(STORIES_SMOKE.options, elicitation=None)
    )
    with pytest.raises(ValueError, match=r"^preset='smoke'"):
        parse(dataclasses.replace(SEARCH, presets={"smoke": unattacked}), place)
    two = dataclasses.replace(
        STORIES_SMOKE,
        sizes={**STORIES_SMOKE.sizes, "other": dataclasses.replace(STORIES_SMOKE.sizes["tiny"], name="o")},
    )
    with pytest.raises(ValueError, match=r"^sizes="):
        parse(dataclasses.replace(SEARCH, presets={"smoke": two}), place)


def test_the_same_question_is_the_same_search_however_long_it_is_pursued(tmp_path):
    setup = lambda *more: build_search(SEARCH, parse(SEARCH, ["--preset", "smoke", "--storage", str(tmp_path), *more]))
    own = setup()
    assert SEARCH.identify(own) == SEARCH.identify(setup("--trials", "9"))
    assert SEARCH.identify(own) != SEARCH.identify(setup("--seeds", "2"))
    assert SEARCH.identify(own) != SEARCH.identify(setup("--space", "p_cr=0.5"))
    example = SEARCH.example(setup("--trials", "3"))
    widths = {m.width for n in example if n.kind == "run" and not n.is_attack for m in n.config.model.modules}
    size = own.settings[0].size
    assert {size.d_aux // 4, size.d_aux * 4} < widths
    needed = {need for node in example for need in node.needs}
    assert needed <= {node.id for node in example}  # GRAM starts from nothing, its attacks from itself


# -------------------------------------------------------------------------------------------------------- report


def searched(problem: ParetoProblem) -> tuple[optuna.Study, dict]:
    """Three complete trials, of which one is dominated, a diverged, a failed and a running one; results by node id."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(study_name="pareto-x", directions=["maximize", "maximize", "minimize"])
    space = space_around(CELLS[0].size)
    source = OptunaSource([Group("front", {}, study, 6)], space, SEARCH.objectives)
    ends = [
        {"core": 0.95},
        {"core": 0.6, "elicited": 0.3},
        {"core": 0.5, "elicited": 0.9},
        State.DIVERGED,
        State.FAILED,
    ]
    stored = {}
    for end in ends:
        proposal = source.next()
        nodes = problem.nodes(proposal.point)
        own = results(problem, proposal.point, **end) if isinstance(end, dict) else {}
        stored |= own
        outcome = Outcome(
            name=proposal.name,
            point=proposal.point,
            state=State.COMPLETE if own else end,
            started=0.0,
            elapsed_s=1.0,
            metrics=problem.score(proposal.point, own) if own else {},
            nodes=tuple(node.id for node in nodes),
            runs=tuple(node.id for node in nodes if node.kind == "run"),
        )
        source.tell(proposal, outcome)
    source.next()
    return study, stored


@pytest.fixture(scope="module")
def front(problem) -> FrontTables:
    study, stored = searched(problem)
    trials, space = trials_frame(study, tuple(PARETO_OBJECTIVES)), space_around(CELLS[0].size)
    own = default_point(CELLS[0])
    table = front_table(trials, space.names, problem, lambda node: (stored | results(problem, own)).get(node.id))
    pages = {runs.split()[0]: f"http://x/{i}" for i, runs in enumerate(trials["runs"]) if runs}
    preset = linked(table[table["label"] == PRESET], pages)
    history = hypervolume_history(trials, PARETO_OBJECTIVES, REFERENCE_POINT)
    return FrontTables(linked(trials, pages), table, preset, history, space.parameters, study)


def test_the_table_is_the_front_behind_the_presets_own_point(front):
    assert list(front.table["label"]) == [PRESET, "trial 0", "trial 1"]
    first = front.table.iloc[1]
    assert first["core"] == pytest.approx(1.0)
    assert first["core_low"] < first["core"] < first["core_high"]
    assert first["num_seeds"] == 2
    assert first["runs"] == front.trials["runs"].iloc[0]  # Optuna gives the point back to the last bit
    assert pd.isna(front.table["trial"].iloc[0])
    assert "nan" not in front.table.to_csv(index=False)
    lines = pseudo_terminal.in_short(front_brief(front))
    head = lines[lines.index("Pareto front") + 1].split()
    assert head[:6] == ["label", *PARETO_OBJECTIVES, "p_as", "p_cr"]
    assert any(line.startswith("hypervolume ") for line in lines)


def test_a_point_that_is_not_done_has_no_row(front, problem):
    table = front_table(front.trials, space_around(CELLS[0].size).names, problem, lambda node: None)
    assert table.empty


def test_every_trial_is_in_trials_csv_with_its_state(front):
    trials = trials_table(front.trials, ("p_as", "p_cr", "d_aux", "peak_lr"))
    read = pd.read_csv(io.StringIO(trials.to_csv(index=False)))
    assert list(read["state"]) == [State.COMPLETE] * 3 + [State.DIVERGED, State.FAILED, "running"]
    assert list(read["on_front"]) == [True, True, False, False, False, False]
    assert read["core"].isna().tolist() == [False] * 3 + [True] * 3
    assert read["p_as"].between(0, 1).all()


def test_the_report_has_every_figure_and_says_what_chose_the_front(front):
    figures = all_figures(front)
    slices = {f"slice-{o}-{p}" for o in PARETO_OBJECTIVES for p in ("p_as", "p_cr", "d_aux", "peak_lr")}
    expected = {"front-core-retain", "front-core-elicited", "front-retain-elicited", "front-space", "hypervolume"}
    assert set(figures) == expected | slices | {f"history-{name}" for name in PARETO_OBJECTIVES}
    links = {front.trials["runs"].iloc[0].split()[0]: "http://127.0.0.1:5000/#/runs/1"}
    page = Page("T", "", sections(front, figures, links)).html()
    assert re.search("6 trials: 3 complete, 1 diverged, 1 failed, 1 running", page)
    assert "importances need 10" in page
    assert page.count("importances need 10") == 1
    assert '<a href="http://127.0.0.1:5000/#/runs/1">' in page
    assert "very seeds" in page
    first = front.table.iloc[1]
    assert f"{first['core']:.3f} [{first['core_low']:.3f}, {first['core_high']:.3f}]" in page
    assert page.count('class="plot"') == len(figures)


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(600)
def test_a_search_from_its_flags_to_its_files(ray_cluster, tmp_path, capsys):
    from gram_platform.studies.searches.run import run_search

    tiny = dataclasses.replace(STORIES_SMOKE.sizes["tiny"], core_tokens=64 * 320)
    preset = dataclasses.replace(
        STORIES_SMOKE, sizes={"tiny": tiny}, num_seeds=1, equal_compute=True, num_eval_points=4
    )
    search = dataclasses.replace(SEARCH, presets={"smoke": preset}, num_trials={"smoke": 2}, default_preset="smoke")
    storage = tmp_path / "storage"
    assert run_search(search, parse(search, ["--storage", str(storage)])) == 0
    folder = storage / "studies" / "pareto"
    table, trials = (pd.read_csv(folder / name) for name in ("table.csv", "trials.csv"))
    assert table["label"].iloc[0] == PRESET
    assert list(trials["state"]) == [State.COMPLETE] * 2
    assert set(table["trial"].dropna()) == set(trials["trial"][trials["on_front"]])
    assert trials[list(PARETO_OBJECTIVES)].notna().all(axis=None)
    before = (folder / "trials.csv").read_bytes()
    assert run_search(search, parse(search, ["--storage", str(storage)])) == 0
    assert (folder / "trials.csv").read_bytes() == before
    assert "hypervolume" in capsys.readouterr().out
