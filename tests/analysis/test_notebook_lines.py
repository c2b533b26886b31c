"""The lines for a notebook in docs/results.md run as they are printed, and find what was
planted."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from gram_platform.tracking.views import StudyLog
from tests.store.training import run_config, train

ROOT = Path(__file__).resolve().parents[2]
PAGE, NOTEBOOK = ROOT / "docs/results.md", ROOT / "dashboards/notebooks/compute_ratio.ipynb"
KINDS = {"execute_result", "display_data"}
STEPS = np.array([100, 200, 400, 800, 1600])


def planted_losses(steps: np.ndarray) -> np.ndarray:
    return 6.0 * (steps + 50.0) ** -0.15


def planted_trials() -> pd.DataFrame:
    """Bowls whose best rate is 2 N^-0.4 and whose best batch is 0.5 N^0.3 sequences, at three
    sizes."""
    rows = []
    for parameters in (1e6, 4e6, 16e6):
        best_lr, best_batch = 2.0 * parameters**-0.4, 0.5 * parameters**0.3
        for x in (-1.0, -0.3, 0.4, 1.1):
            for y in (-0.9, -0.2, 0.5, 1.2):
                loss = 3.0 + 0.05 * x**2 + 0.03 * y**2 + 0.01 * x * y
                rows.append(
                    (
                        f"{parameters:.0f}",
                        parameters,
                        0,
                        best_lr * np.exp(x),
                        best_batch * np.exp(y),
                        loss,
                    )
                )
    return pd.DataFrame(rows, columns=["size", "parameters", "seed", "lr", "batch", "loss"]).assign(
        state="complete"
    )


@pytest.fixture
def uri(tmp_path) -> str:
    """A mirror of a storage with three baselines, two of them in the study."""
    store = Store(tmp_path / "storage").open_for_writing()
    runs = [run_config(4, 0), run_config(4, 1), run_config(8, 0)]
    for run in runs:
        tags = {"method": "baseline", "size": "0.6M", "seed": str(run.seed), "profile": "all"}
        store.run(run.run_id).add_tags(tags)
        train(store.root, run)
    tracker = Tracker(default_tracking_uri(store.root))
    tracker.sync(store)
    nodes = {run.run_id: {} for run in runs[:2]}
    tracker.log_study(StudyLog("scaling", {}, {}, {}, node_tags=nodes))
    return tracker.tracking_uri


def test_the_notebook_has_its_outputs_and_stays_small():
    assert NOTEBOOK.stat().st_size < 300_000
    cells = json.loads(NOTEBOOK.read_text())["cells"]
    outputs = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    assert all(outputs)
    assert {one["output_type"] for each in outputs for one in each} == KINDS
    assert any("image/png" in one["data"] for each in outputs for one in each)


def test_the_lines_for_a_notebook(uri, tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(import pandas.*?)```", PAGE.read_text(), flags=re.S)
    planted_trials().to_csv(tmp_path / "trials.csv", index=False)
    monkeypatch.chdir(tmp_path)
    names = {"URI": uri, "STORAGE": tmp_path / "storage"}
    names |= {"steps": STEPS, "losses": planted_losses(STEPS)}
    exec(code, names)
    assert sorted(names["runs"]["seed"]) == ["0", "1"]
    assert names["pooled"].num_points == 8
    assert names["pooled"].alpha == pytest.approx(1.0, rel=1e-3)
    assert set(names["curves"]["run_id"]) == set(names["runs"]["run_id"])
    assert (names["curve"].alpha, names["curve"].s0) == (
        pytest.approx(0.15, rel=1e-3),
        pytest.approx(50.0, rel=1e-2),
    )
    inverse = [(6.0 / loss) ** (1 / 0.15) - 50.0 for loss in (2.1, 2.0, 2.02)]
    assert names["ratio"] == pytest.approx(inverse[0] / np.mean(inverse[1:]), rel=1e-3)
    laws = names["grid"].laws.set_index("quantity")
    assert laws.loc["lr", "exponent"] == pytest.approx(-0.4, rel=1e-6)
    assert laws.loc["batch", "exponent"] == pytest.approx(0.3, rel=1e-6)
