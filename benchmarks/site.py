"""Measures building the static site of many runs from nothing."""

import time
from pathlib import Path

from gram_platform.pages.site.build import build_site

from benchmarks.many_runs import DOMAINS, write_study
from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from gram_platform.pages.results.record import StudyRecord
from gram_platform.store import Store

NUM_RUNS, NUM_POINTS = 500, 100


def measure(
    settings: BenchmarkSettings, num_runs: int = NUM_RUNS, num_points: int = NUM_POINTS
) -> list[BenchmarkResult]:
    """Builds it twice; the details have the second build, when nothing has changed."""
    run_ids, eval_ids = write_study(settings.storage, num_runs, num_points)
    store = Store(settings.storage).open_for_writing()
    store.study_dir("benchmark").write("study.json", _record(store, run_ids, eval_ids).to_json())
    seconds = []
    for _ in range(2):
        started = time.perf_counter()
        built = build_site(store, None)
        seconds.append(time.perf_counter() - started)
    pages = len(list(Path(built.index).parent.rglob("*.html")))
    assert not built.problems, built.problems
    site = BenchmarkResult(
        name=f"site of {num_runs} runs",
        unit="s",
        values=(seconds[0],),
        references=(),
        against=f"{pages} pages",
        aim=Aim("at most", 10.0, "value"),
        details={"again, nothing changed, s": seconds[1]},
    )
    return [site]


def _record(store: Store, run_ids: list[str], eval_ids: list[str]) -> StudyRecord:
    runs = [{"id": i, "kind": "run", "tags": {**store.run(i).tags(), "kind": "run"}} for i in run_ids]
    views = [
        {"id": i, "kind": "evaluation", "tags": {**store.evaluation(i).tags(), "kind": "evaluation"}} for i in eval_ids
    ]
    return StudyRecord(
        name="benchmark",
        title="Many runs",
        question="How long does the site take?",
        facts=(f"{len(DOMAINS)} domains.",),
        params={},
        sizes=("tiny",),
        parameters={"tiny": 1234},
        profile="all",
        entries=(*runs, *views),
    )
