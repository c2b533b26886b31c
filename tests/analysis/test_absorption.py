"""Checks the modules' shares of the squared gradient: from planted norms to table, figures and
page."""

import numpy as np
import pandas as pd
import pytest

from gram_platform.analysis.intervals import t_interval
from gram_platform.analysis.tables import StudyLosses
from gram_platform.analysis.variants import (
    analyse_variants,
    compute_shares,
    final_shares,
    module_shares,
    share_curves,
)
from gram_platform.pages.report.modules import readable_shares
from gram_platform.pages.report.sections import study_page
from gram_platform.store import Store
from tests.study_frames import curves, evaluations, study_of
from tests.tiny import run_config

DOMAINS = ("core", "biology", "chemistry")
MODULES = ("biology", "chemistry")
SEEDS = ("0", "1", "2")
STEPS = (6, 12)


def planted(seed: str, step: int, domain: str, module: str) -> float:
    """The share of a domain's module, which grows with step and seed; a half on core's batches."""
    own = 0.5 + 0.02 * step + 0.03 * (int(seed) - 1)
    return 0.5 if domain == "core" else own if module == domain else 1.0 - own


def metrics_of(seed: str, step: int) -> dict[str, float]:
    # The scale is of all norms of a batch, so that shares do not change.
    scale = {"core": 0.1, "biology": 3.0, "chemistry": 40.0}
    pairs = [(domain, module) for domain in DOMAINS for module in MODULES]
    norms = {f"norm/probe/{d}/{m}": scale[d] * planted(seed, step, d, m) ** 0.5 for d, m in pairs}
    return {**norms, "norm/gradient/shared": 1.0, "train/loss": 2.0}


@pytest.fixture(scope="module")
def shares(tmp_path_factory) -> pd.DataFrame:
    """Shares of three runs with two probes each, and of one run without."""
    store = Store(str(tmp_path_factory.mktemp("probes"))).open_for_writing(min_free_bytes=0)
    rows = []
    for seed in (*SEEDS, "3"):
        run = run_config(seed=int(seed))
        store.run(run.run_id).ensure_config(run)
        probed = [
            {"step": step, "time": 1.5e9, "metrics": metrics_of(seed, step)} for step in STEPS
        ]
        plain = {"step": 3, "time": 1.5e9, "metrics": {"train/loss": 2.0}}
        fields = {
            "num_steps": 12,
            "num_tokens": 9,
            "data_fingerprint": "f",
            "plan_sha256": "a",
            "final": {},
        }
        with store.run(run.run_id).start_attempt("test") as attempt:
            attempt.complete(fields, {}, [plain, *(probed if seed in SEEDS else [])])
        rows.append(
            {
                "id": run.run_id,
                "variant": "0.5",
                "method": "gram",
                "size": "tiny",
                "seed": seed,
                "profile": "",
            }
        )
    return module_shares(pd.DataFrame(rows), lambda run_id: store.run(run_id).records())


def test_shares_are_of_squared_norms():
    found = compute_shares(
        {"norm/probe/lisp/lisp": 2.0, "norm/probe/lisp/virology": 1.0, "norm/weights/shared": 3.0}
    )
    assert found == {("lisp", "lisp"): pytest.approx(0.8), ("lisp", "virology"): pytest.approx(0.2)}
    assert compute_shares({"norm/probe/lisp/lisp": 0.0}) == {}
    assert compute_shares({"norm/probe/lisp/lisp": float("nan"), "norm/probe/core/lisp": 1.0}) == {
        ("core", "lisp"): 1.0
    }


def test_every_share_comes_back(shares):
    assert len(shares) == len(SEEDS) * len(STEPS) * len(DOMAINS) * len(MODULES)
    for row in shares.to_dict("records"):
        assert row["share"] == pytest.approx(
            planted(row["seed"], row["step"], row["domain"], row["module"])
        )
    assert shares.groupby(["run_id", "step", "domain"])["share"].sum().to_numpy() == pytest.approx(
        1.0
    )


def test_means_over_seeds_at_each_step_and_at_the_end(shares):
    curve = share_curves(shares).set_index(["domain", "module", "step"])
    for domain, module, step in curve.index:
        expected = t_interval([planted(seed, step, domain, module) for seed in SEEDS])
        row = curve.loc[(domain, module, step)]
        assert [row["share"], row["low"], row["high"]] == pytest.approx(expected)
    final = final_shares(shares).set_index(["domain", "module"])
    assert final.loc[("biology", "biology"), "share"] == pytest.approx(0.74)
    mean = final.loc[("mean", "mean")]
    expected = t_interval([planted(seed, 12, "biology", "biology") for seed in SEEDS])
    assert [mean["share"], mean["low"], mean["high"], mean["num_seeds"]] == pytest.approx(
        [*expected, 3]
    )
    assert not final.loc[("core", "biology"), "is_own"]


def test_the_table_has_a_row_a_domain(shares):
    table = readable_shares(final_shares(shares)).set_index("batches of")
    assert list(table.index) == ["core", "biology", "chemistry", "mean"]
    assert table.loc["core", "its own module"] == ""
    assert table.loc["chemistry", "its own module"] == table.loc["chemistry", "chemistry"]
    assert table.loc["chemistry", "chemistry"].startswith("0.740 [")
    assert table.loc["mean", "biology"] == ""


def test_the_page_shows_a_panel_a_domain_with_its_own_module_thick(shares):
    views, points = (
        frame.assign(variant="0.5") for frame in (evaluations(("tiny",)), curves(("tiny",)))
    )
    runs, about = pd.DataFrame({"id": []}), {"varies": "labelled", "profile": "core"}
    analysis = analyse_variants(StudyLosses(views, points), ("0.5",))
    study = study_of(analysis, points, runs, absorption=shares, **about)
    figures = {
        n: f
        for n, f in study_page(study.record, study, None).figures.items()
        if n.startswith("absorption-")
    }
    assert list(figures) == [f"absorption-0.5-gram-tiny-{domain}" for domain in DOMAINS]
    for domain in MODULES:
        lines = {
            line.name: line
            for line in figures[f"absorption-0.5-gram-tiny-{domain}"].data
            if line.name
        }
        own = lines.pop(f"{domain}, its own")
        assert list(own.x) == list(STEPS)
        expected = [
            np.mean([planted(seed, step, domain, domain) for seed in SEEDS]) for step in STEPS
        ]
        assert list(own.y) == pytest.approx(expected)
        assert all(own.line.width > other.line.width for other in lines.values())
    assert not any(
        "own" in (line.name or "") for line in figures["absorption-0.5-gram-tiny-core"].data
    )
    page = study_page(study.record, study, None).html()
    assert page.index('id="against-labelled') < page.index('id="which-module')
    without = study_of(analysis, points, runs, **about)
    assert not [
        n for n in study_page(without.record, without, None).figures if n.startswith("absorption-")
    ]
