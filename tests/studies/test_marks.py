"""No figure has an error bar without an interval, or a fitted line through fewer than three
points."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from gram_platform.analysis.tables import StudyLosses, analyse
from gram_platform.pages.figures.style import whiskers
from gram_platform.pages.report.sections import study_page
from gram_platform.pages.results.replication import load_published_studies
from gram_platform.store import Store
from gram_platform.studies.library.lr_bs_grid import SEARCH
from tests import stories_frames, study_frames
from tests.marks import wrong_marks
from tests.studies.searches.test_lr_batch import bowl, complete, setup_of
from tests.submitted import study_plan

NO_RUNS = pd.DataFrame({"id": []})


def planted(frames, seeds: tuple[str, ...], **about) -> dict[str, go.Figure]:
    """Every figure of the report of a planted study with these seeds."""
    attacks = frames.attacks(seeds=seeds) if hasattr(frames, "attacks") else None
    analysis = analyse(
        StudyLosses(frames.evaluations(seeds=seeds), frames.curves(seeds=seeds), attacks=attacks)
    )
    study = study_frames.study_of(analysis, frames.curves(seeds=seeds), NO_RUNS, **about)
    return study_page(study.record, study, None).figures


def grid_figures(storage: str, *arguments: str) -> dict[str, go.Figure]:
    setup = study_plan(SEARCH, ["--preset", "smoke", "--storage", storage, *arguments])
    return setup.kind.write(setup, Store(storage).open_for_writing(), None)[0].figures


def test_whiskers_stand_where_an_interval_is():
    rows = pd.DataFrame({"core": [1.0, 2.0], "core_low": [0.5, np.nan], "core_high": [2.0, np.nan]})
    some = whiskers(rows, "core")
    assert [some["array"].tolist()[0], some["arrayminus"].tolist()[0]] == [1.0, 0.5]
    assert np.isnan([some["array"][1], some["arrayminus"][1]]).all()
    assert whiskers(rows.iloc[1:], "core") is None


@pytest.mark.parametrize(
    "seeds",
    [("0",), pytest.param(("0", "1", "2"), marks=pytest.mark.slow)],
    ids=["one seed", "three seeds"],
)
@pytest.mark.parametrize(
    ("frames", "about"),
    [
        (study_frames, {"sizes": tuple(study_frames.SIZES)}),
        (stories_frames, {"compare_with": "stories", "parameters": stories_frames.PARAMETERS}),
    ],
    ids=["scaling", "stories"],
)
def test_every_figure_of_a_study(frames, about, seeds):
    figures = planted(frames, seeds, **about)
    assert len(figures) >= 7
    assert wrong_marks(figures) == []


@pytest.mark.slow
def test_every_figure_of_the_published_studies():
    """2B and 5B have one seed beside three of other sizes."""
    for study in load_published_studies():
        figures = study_page(study.record, study, None).figures
        assert figures
        assert wrong_marks(figures) == []


@pytest.mark.parametrize("num_seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_figure_of_a_grid(tmp_path, num_seeds):
    """Of two sizes, one of them with its minimum at an edge."""
    setup = setup_of(tmp_path, "--seeds", str(num_seeds))
    store, losses = Store(setup.choice.storage).open_for_writing(), {"tiny": bowl(setup, 1.1, 0.4)}
    for _, point in setup.kind.points(setup, store)[0]:
        complete(setup, store, point, losses.get(point["size"], bowl(setup, 4.0, 0.4))(point))
    figures = grid_figures(str(tmp_path), "--seeds", str(num_seeds))
    assert set(figures) == {"surface-tiny", "surface-small", "law-lr", "law-batch"}
    assert wrong_marks(figures) == []
