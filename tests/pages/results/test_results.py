"""A study's table from stored runs, evaluations and attacks: from MLflow and the storage alike,
under its own names."""

import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from mlflow import MlflowClient
from pandas import read_csv
from pandas.testing import assert_frame_equal

from gram_platform.analysis.intervals import ENDS
from gram_platform.analysis.recovery import RECOVERY
from gram_platform.analysis.tables import CLASSES, StudyLosses, analyse
from gram_platform.config import EvalPoints, Evaluation, View
from gram_platform.config.identity import metric_name
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.pages.figures.style import method_style
from gram_platform.pages.report.measurements import LOSSES_PRESENTATION
from gram_platform.pages.report.sections import report_sections
from gram_platform.pages.results.record import StudyRecord, load_record, sizes_text
from gram_platform.pages.results.results import ratio_lines, read_results, summary_text
from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.frame import final_frames
from tests.stories_frames import (
    AUXILIARY,
    COSTS,
    DOMAINS,
    PARAMETERS,
    PLANTED,
    PROFILES,
    SIZE,
    attacks,
    curves,
    evaluations,
    loss_at,
)
from tests.study_frames import NUM_STEPS, study_of
from tests.tiny import DOMAINS as TINY_DOMAINS
from tests.tiny import run_config

METHODS = ("gram", "maxent")
NUM_POINTS = 12  # the steps of a tiny run


class Planted:
    """Writes nodes with planted losses into a storage, and their entries in the study's order."""

    def __init__(self, root: str):
        self.store = Store(root).open_for_writing(min_free_bytes=0)
        self.entries: list[dict] = []

    def name(
        self, kind: str, node_id: str, method: str, profile: str, **tags: str
    ) -> dict[str, str]:
        names = {
            "method": method,
            "size": SIZE,
            "seed": "0",
            "profile": profile,
            "kind": kind,
            **tags,
        }
        self.entries.append({"id": node_id, "kind": kind, "tags": names})
        return names

    def run(
        self, method: str, profile: str, final: dict, records: Sequence[dict] = (), **tags: str
    ) -> str:
        run = run_config(
            seed=len(self.entries),
            eval_points=EvalPoints(NUM_POINTS if records else 1, 4, TINY_DOMAINS),
        )
        directory = self.store.run(run.run_id)
        directory.ensure_config(run)
        directory.add_tags(
            {**self.name("run", run.run_id, method, profile, **tags), "profile": "of another study"}
        )
        final = (records[-1]["metrics"] if records else {}) | final
        sizes = {"num_steps": run.num_steps, "num_tokens": run.num_tokens, "parameters": 9}
        sizes["compute_units"] = plan_compute_units(run)
        with directory.start_attempt("test") as attempt:
            attempt.complete(
                {**sizes, "data_fingerprint": "f" * 64, "plan_sha256": "a" * 64, "final": final},
                {},
                list(records),
            )
        return run.run_id

    def evaluation(self, run_id: str, row: dict) -> None:
        config = Evaluation(
            View.of(run_id, {"lisp": 0.01 * (1 + len(self.entries))}), "d" * 12, DOMAINS, 4
        )
        names = self.name(
            "evaluation", config.eval_id, row["method"], row["profile"], retained=row["retained"]
        )
        directory = self.store.evaluation(config.eval_id)
        directory.ensure_config(config)
        directory.add_tags(names)
        directory.complete({"losses": {d: row[f"loss/{d}"] for d in DOMAINS}}, {"elapsed_s": 0.5})


def attacked(method: str, domain: str, step: int) -> float:
    """A line from the view's loss to the baseline's. GRAM's attack ends before it is there."""
    start, end = (loss_at(domain, NUM_STEPS * ratio) for ratio in (PLANTED[method][2], 1.0))
    return start + step / {"gram": 16, "maxent": 8}[method] * (end - start)


def recorded(step: int, losses: dict[str, float]) -> dict:
    metrics = {f"validation/loss/{domain}": float(loss) for domain, loss in losses.items()}
    return {"step": step, "time": 1.5e9 + step, "metrics": metrics}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """(store, record, tracking URI) of one seed of the baseline and two methods that share an
    attack."""
    planted = Planted(str(tmp_path_factory.mktemp("results")))
    steps = range(1, NUM_POINTS + 1)
    curve = [
        recorded(s, {d: loss_at(d, NUM_STEPS * s / NUM_POINTS) for d in DOMAINS}) for s in steps
    ]
    runs = {"baseline": planted.run("baseline", "all", {}, curve)}
    runs |= {method: planted.run(method, "core", {}) for method in METHODS}
    for row in evaluations(METHODS, ("1",)).to_dict("records"):
        planted.evaluation(runs[row["method"]], row)
    for method in METHODS:
        for profile, retained in PROFILES.items():
            for domain in (d for d in AUXILIARY if d != retained):
                loss = float(loss_at(domain, NUM_STEPS * PLANTED[method][3]))
                final = {f"best/loss/{domain}": loss, f"validation/loss/{domain}": 2.0 * loss}
                points = [
                    recorded(step, {domain: attacked(method, domain, step)}) for step in steps
                ]
                planted.run(method, profile, final, points, retained=retained, elicited=domain)
    record = StudyRecord(
        name="stories",
        title="Stories",
        question="?",
        facts=("A fact.",),
        params={},
        sizes=(SIZE,),
        parameters=PARAMETERS,
        profile="core",
        entries=tuple(planted.entries),
        costs=COSTS,
        compare_with="stories",
    )
    uri = default_tracking_uri(planted.store.root)
    Tracker(uri).sync(planted.store)
    return planted.store, record, uri


def test_the_table_has_the_planted_elicited_ratios_from_either_source(study):
    store, record, uri = study
    tracker = Tracker(uri)
    tracker.sync(store, record.ids)
    results = read_results(
        record, store, final_frames(store, tracker, record.ids, record.curve_runs)
    )
    local = read_results(record, store)
    assert (results.source, local.source) == ("MLflow", "the storage")
    assert_frame_equal(results.analysis.table, local.analysis.table, check_exact=True)
    table = results.analysis.table.set_index(["method", "profile"])
    for method in METHODS:
        for profile in (*PROFILES, "mean"):
            assert table.loc[(method, profile), "elicited"] == pytest.approx(
                PLANTED[method][3], rel=1e-6
            )
            assert table.loc[(method, profile), "forget"] == pytest.approx(
                PLANTED[method][2], rel=1e-6
            )
    times = table.loc[[(method, "mean") for method in METHODS], list(RECOVERY)]
    assert times.to_numpy().tolist() == [
        ["8.0", "1024.0", "1 of 1", "> 12.0", "> 1536.0", "0 of 1", 1.0],
        ["4.0", "512.0", "1 of 1", "7.2", "921.6", "1 of 1", 1.0],
    ]
    assert results.analysis.missing.empty
    assert results.runs["kind"].tolist()[: 3 + 11] == ["run"] * 3 + ["evaluation"] * 11
    assert results.runs["id"].tolist() == [entry["id"] for entry in record.entries]
    assert (results.runs["profile"] != "of another study").all()
    assert results.runs["best_loss"].notna().sum() == 2 * 16


def test_mlflow_has_the_ratios_of_each_seed_and_the_methods_colours(study, tmp_path):
    """A list of evaluations can be sorted by forget."""
    store, record, uri = study
    shutil.copy(uri.removeprefix("sqlite:///"), tmp_path / "copy.db")
    tracker = Tracker(f"sqlite:///{tmp_path}/copy.db")
    tracker.sync(store)
    LOSSES_PRESENTATION.write(record, store, read_results(record, store), {}, tracker)
    runs = {node_id: run for (_, node_id), run in tracker.runs().items()}
    for entry in record.entries:
        tags, metrics = entry["tags"], runs[entry["id"]].data.metrics
        assert runs[entry["id"]].data.tags["mlflow.runColor"] == method_style(tags["method"]).colour
        ratios = {
            name.removeprefix("ratio/"): value
            for name, value in metrics.items()
            if name.startswith("ratio/")
        }
        if entry["kind"] != "evaluation":
            assert not ratios
        elif tags["method"] in METHODS:
            planted = dict(
                zip(("core", "retain", "forget", "elicited"), PLANTED[tags["method"]], strict=True)
            )
            assert ratios == pytest.approx(
                {name: planted[name] for name in planted if name != "retain" or tags["retained"]}
            )
            attacked = [domain for domain in AUXILIARY if domain != tags["retained"]]
            times = {name: value for name, value in metrics.items() if "_to_" in name}
            steps, length = (8.0, 12.0) if tags["method"] == "gram" else (4.0, 7.2)
            per_mark = {"steps_to_50": steps, "steps_to_90": length}
            per_mark |= {"tokens_to_50": 128 * steps, "tokens_to_90": 128 * length}
            assert times == pytest.approx(
                {metric_name(f"{name}/{d}"): n for name, n in per_mark.items() for d in attacked}
            )
            is_reached = {metrics[metric_name(f"reached_90/{domain}")] for domain in attacked}
            assert is_reached == {float(tags["method"] == "maxent")}
    client = MlflowClient(tracker.tracking_uri)
    view = json.loads(
        client.get_experiment("1").tags["mlflow.sharedViewState.gram.stories.evaluations"]
    )
    state = json.loads(view["state"])
    found = client.search_runs(
        ["1"], state["searchFilter"], order_by=[f"{state['orderByKey']} ASC"]
    )
    forget = [
        run.data.metrics["ratio/forget"] for run in found if "ratio/forget" in run.data.metrics
    ]
    assert forget == sorted(forget)
    assert len(forget) == len(METHODS) * len(PROFILES)


def test_lines_have_intervals():
    analysis = analyse(
        StudyLosses(evaluations(METHODS), curves(), attacks=attacks(METHODS)), (SIZE,)
    )
    results = study_of(analysis, curves(), None, parameters=PARAMETERS)
    lines = {line.name: line.points for line in ratio_lines(results)}
    rows = analysis.table.set_index(["method", "profile"])
    for method in METHODS:
        points = lines[f"{method} mean"][PARAMETERS[SIZE]]
        names = {name + end for name in CLASSES for end in ENDS}
        assert points == {name: rows.loc[(method, "mean"), name] for name in names}
        assert points["forget_low"] < points["forget"] < points["forget_high"]


def test_an_attack_under_two_names_counts_for_both(study):
    store, record, _ = study
    own, other = (
        [e for e in record.entries if e["tags"]["method"] == m and "elicited" in e["tags"]]
        for m in METHODS
    )
    renamed = [{**e, "tags": {**e["tags"], "method": METHODS[1]}} for e in own]
    kept = [entry for entry in record.entries if entry not in other]
    shared = StudyRecord(**{**vars(record), "entries": (*kept, *renamed)})
    table = read_results(shared, store).analysis.table.set_index(["method", "profile"])
    assert table.loc[(METHODS[1], "mean"), "elicited"] == pytest.approx(
        PLANTED[METHODS[0]][3], rel=1e-6
    )
    assert table.loc[(METHODS[0], "mean"), "elicited"] == pytest.approx(
        PLANTED[METHODS[0]][3], rel=1e-6
    )


def test_what_is_declared_and_not_done_is_named(study):
    store, record, _ = study
    undone = {
        "kind": "run",
        "id": "0" * 12,
        "tags": {**record.entries[-1]["tags"], "method": METHODS[0], "seed": "1"},
    }
    view = {
        "kind": "evaluation",
        "id": "1" * 12,
        "tags": {**record.entries[4]["tags"], "seed": "1"},
    }
    partial = StudyRecord(**{**vars(record), "entries": (*record.entries, undone, view)})
    results = read_results(partial, store)
    assert len(results.analysis.missing) == 1
    assert results.analysis.missing["why"].str.contains("seed 1").all()
    lost = [e for e in record.entries if e["tags"].get("elicited") != AUXILIARY[0]]
    lost += [{**e, "id": f"{i:012d}"} for i, e in enumerate(record.entries) if e not in lost]
    results = read_results(StudyRecord(**{**vars(record), "entries": tuple(lost)}), store)
    # The profile that retains the domain.
    assert results.analysis.table["elicited"].notna().sum() == 2
    assert results.analysis.missing["why"].str.contains(f"attack on seed 0: {AUXILIARY[0]}").all()


def test_report_and_record(study):
    store, record, _ = study
    results = read_results(record, store)
    paths = LOSSES_PRESENTATION.write(record, store, results, {}, None)
    lead, others = report_sections(results)
    assert "At a glance" in {section.title for section in lead}
    titles = {section.title for section in others}
    assert {"Claims", "Cost", "Attacks", "Steps to recover"} <= titles
    stored = load_record(store, "stories")
    assert replace(stored, card=record.card) == record
    assert stored.card.verdicts == Counter(results.claims["verdict"])
    assert stored.card.headline.startswith("GRAM (1 seed) and MaxEnt (1 seed) at 26M, ")
    # A single seed judges nothing.
    answers = stored.card.headline.split("\n\n")[1:]
    assert answers
    assert all("? Not judged: GRAM's " in answer for answer in answers)
    assert read_csv(paths["claims.csv"])["verdict"].tolist() == results.claims["verdict"].tolist()
    text = summary_text(record, results)
    assert "paper" in text
    assert "(no interval)" in text  # one seed
    # GRAM's retain above its forget, on the published numbers.
    assert "agree, 0.186 [0.170, 0.202]" in text


def test_sizes_are_named_with_their_parameters():
    assert sizes_text({}) == ""
    assert "0.28M: 219,800 parameters, 3M: 2,836,992 parameters" in sizes_text(
        {"0.28M": 219_800, "3M": 2_836_992}
    )
