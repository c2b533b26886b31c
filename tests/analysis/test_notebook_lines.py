"""The lines for a notebook in docs/results.md run as they are printed, and find what was
planted."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gram_platform.store import Store
from gram_platform.tracking import Tracker, default_tracking_uri
from tests.store.training import run_config, train

PAGE = Path(__file__).resolve().parents[2] / "docs/results.md"
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
    """A mirror of a storage with one GRAM run."""
    store = Store(tmp_path / "storage").open_for_writing()
    run = run_config(4, 0)
    store.run(run.run_id).add_tags(
        {"method": "gram", "size": "0.6M", "seed": "0", "profile": "all"}
    )
    train(store.root, run)
    Tracker(default_tracking_uri(store.root)).sync(store)
    return default_tracking_uri(store.root)


def test_the_lines_for_a_notebook(uri, tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(import pandas.*?)```", PAGE.read_text(), flags=re.S)
    planted_trials().to_csv(tmp_path / "trials.csv", index=False)
    monkeypatch.chdir(tmp_path)
    names = {"URI": uri, "steps": STEPS, "losses": planted_losses(STEPS)}
    exec(code, names)
    assert list(names["runs"]["method"]) == ["gram"]
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
