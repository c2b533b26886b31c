"""The LR/batch grid on planted losses: its trials, its growth, what it writes, and the smoke preset
end to end."""

import io
import json
import math
import pickle

import pandas as pd
import pytest

from gram_platform.analysis.lr_grid import POOLED
from gram_platform.config.flops import total_parameters
from gram_platform.config.ladder import GRID_DEMO_SIZES, PAPER_SIZES, load_law
from gram_platform.methods.nodes import method_nodes
from gram_platform.store import Store
from gram_platform.store.files import seal
from gram_platform.studies.library.lr_bs_grid import SEARCH
from gram_platform.studies.library.scaling import STUDY as SCALING
from gram_platform.studies.searches.flags import Grids
from gram_platform.studies.searches.lr_bs_grid import at, objective
from tests.refused import refused
from tests.submitted import parse, study_plan

FINAL = {"validation/loss/core": 4.0, "validation/loss/a": 1.0, "validation/loss/b": 2.0}


def setup_of(tmp_path, *arguments, preset="smoke"):
    flags = parse(SEARCH, ["--preset", preset, "--storage", str(tmp_path), *arguments])
    return study_plan(SEARCH, flags)


def complete(setup, store, point, loss) -> None:
    """The run of a point as if it had been trained to this loss on every domain."""
    (node,) = setup.kind.nodes(point)
    run = store.run(node.id)
    run.ensure_config(node.config)
    run.add_tags(node.names)
    final = {f"validation/loss/{domain}": loss for domain in setup.corpora[0].domains}
    sizes = {"num_tokens": 1, "num_steps": 1}
    run.publish(seal({"run_id": node.id, "weights_sha256": "0" * 64, "final": final, **sizes}))


def bowl(setup, best_lr, best_batch):
    """A loss whose minimum is at the given factors of each size's own rate and batch."""

    def loss(point) -> float:
        size = setup.preset.sizes[point["size"]]
        x, y = point["lr"] / size.peak_lr / best_lr, point["batch"] / size.batch_size / best_batch
        return 3.0 + 0.1 * math.log(x) ** 2 + 0.05 * math.log(y) ** 2 + 0.001 * point["seed"]

    return loss


def run_all(setup, store, loss) -> list[str]:
    """Every cell that the grid asks for until it asks for no more; what it announced."""
    done: set[str] = set()
    while True:
        points, messages = setup.kind.points(setup, store)
        new = [(name, point) for name, point in points if name not in done]
        if not new:
            return messages
        for name, point in new:
            complete(setup, store, point, loss(point))
            done.add(name)


# ------------------------------------------------------------------------------------------- trials


def test_the_cell_of_a_sizes_own_values_is_the_studies_baseline(tmp_path):
    setup = setup_of(tmp_path)
    problem = pickle.loads(pickle.dumps(setup.kind))
    setting = next(s for s in setup.settings if s.size.name == "tiny")
    own = {"size": "tiny", "seed": 0, "lr": setting.size.peak_lr, "batch": setting.size.batch_size}
    (node,) = problem.nodes(own)
    assert node.id in {n.id for n in method_nodes("baseline", setting) if n.kind == "run"}
    assert (
        node.names.items()
        >= {
            "method": "baseline",
            "size": "tiny",
            "lr": "0.008",
            "batch": "16",
        }.items()
    )
    (other,) = problem.nodes({**own, "lr": 0.016, "batch": 6})
    assert (other.config.optimizer.peak_lr, other.config.batch_size, other.config.micro_batch) == (
        0.016,
        6,
        3,
    )
    assert other.id != node.id


def test_the_objective_is_half_core_and_half_the_auxiliary_mean():
    assert objective(FINAL) == {"loss": 0.5 * 4.0 + 0.5 * 1.5, "core": 4.0, "auxiliary": 1.5}
    with refused("loss"):
        objective({**FINAL, "validation/loss/a": math.nan})


def test_a_score_takes_the_losses_at_the_end(tmp_path):
    setup = setup_of(tmp_path)
    result = {"final": {**FINAL, "train/loss": 9.0, "best/loss/core": 9.0}}
    assert setup.kind.score({}, {"id": result})["loss"] == 2.75


def test_micro_batches_divide_the_batch():
    size = PAPER_SIZES["400M"]
    assert at(size, (1e-3, 184)).micro_batch == 92
    assert at(size, (1e-3, 100)).micro_batch == 50
    assert [at(size, (1e-3, batch)).micro_batch for batch in (128, 256, 528, 1056)] == [
        64,
        64,
        88,
        88,
    ]
    for name, size in SEARCH.presets["paper"].sizes.items():
        for cell in SEARCH.points["paper"].of(size).cells:
            found = at(size, cell).micro_batch
            assert found <= size.micro_batch, name
            assert (cell[1] % found, found % 8) == (0, 0), name
    assert at(size, (size.peak_lr, size.batch_size)) == size


# ------------------------------------------------------------------------------- flags and identity


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--lrs", "0.001,0.002"], "lrs"),
        (["--batches", "8,16.5,32"], "batches"),
        (["--batches", "8,16,100000"], "batches"),
        (["--batches", "2,3,4", "--num-workers", "4"], "batches"),
        (["--preset", "paper", "--set", "sizes.new.base=50M"], "sizes"),
    ],
)
def test_grids_that_cannot_work_are_refused_by_name(tmp_path, arguments, field):
    with refused(field):
        setup_of(tmp_path, *arguments)


def test_flags_replace_the_presets_grid(tmp_path):
    setup = setup_of(
        tmp_path, "--lrs", "0.01,0.002,0.005", "--batches", "4,8,16,32", "--max-extensions", "3"
    )
    grid = setup.kind.grids["tiny"]
    assert (grid.lrs, grid.batches) == ((0.002, 0.005, 0.01), (4, 8, 16, 32))
    assert setup.kind.max_extensions == 3
    assert setup_of(tmp_path).kind.max_extensions == SEARCH.points["smoke"].max_extensions


def test_presets_have_their_cells():
    for size in SEARCH.presets["demo"].sizes.values():
        grid = SEARCH.points["demo"].of(size)
        assert len(grid.cells) == 12
        assert (size.peak_lr, size.batch_size) in grid.cells
    numbers = {
        name: len(SEARCH.points["paper"].of(size).cells)
        for name, size in SEARCH.presets["paper"].sizes.items()
    }
    assert numbers == {"50M": 12, "100M": 12, "200M": 16, "400M": 12}
    assert SEARCH.presets["demo"].sizes == GRID_DEMO_SIZES
    with refused("batches"):
        Grids(0, (0.5, 1.0, 2.0), (0.3, 1.0, 2.0)).of(GRID_DEMO_SIZES["0.2M"])


def test_the_identity_is_the_question_not_how_it_is_read(tmp_path):
    plain = setup_of(tmp_path).search_id
    assert plain == setup_of(tmp_path, "--window", "0.05", "--max-extensions", "3").search_id
    assert plain != setup_of(tmp_path, "--seeds", "2").search_id
    assert plain != setup_of(tmp_path, "--lrs", "0.001,0.002,0.004").search_id


# ------------------------------------------------------------------------------------------- growth


def test_a_grid_grows_towards_its_minimum_and_then_rests(tmp_path):
    setup = setup_of(tmp_path, "--max-extensions", "2", "--sizes", "tiny")
    store = Store(setup.choice.storage).open_for_writing()
    assert len(setup.kind.points(setup, store)[0]) == 9
    messages = run_all(setup, store, bowl(setup, 1.0, 2.0))
    points, _ = setup.kind.points(setup, store)
    assert sorted({point["batch"] for _, point in points}) == [4, 8, 16, 32, 64]
    assert len(messages) == 2
    assert len({name for name, _ in points}) == len(points) == 15


def test_a_grid_waits_for_all_its_trials(tmp_path):
    setup = setup_of(tmp_path, "--max-extensions", "2", "--sizes", "tiny")
    store = Store(setup.choice.storage).open_for_writing()
    points, _ = setup.kind.points(setup, store)
    for _, point in points[:-1]:
        complete(setup, store, point, bowl(setup, 1.0, 4.0)(point))
    assert setup.kind.points(setup, store) == (points, [])


def test_sizes_grow_apart(tmp_path):
    setup = setup_of(tmp_path, "--max-extensions", "1")
    store = Store(setup.choice.storage).open_for_writing()
    losses = {"tiny": bowl(setup, 1.0, 0.5), "small": bowl(setup, 4.0, 0.5)}
    messages = run_all(setup, store, lambda point: losses[point["size"]](point))
    points, _ = setup.kind.points(setup, store)
    assert sum(point["size"] == "tiny" for _, point in points) == 9
    assert sum(point["size"] == "small" for _, point in points) == 12
    assert all(message.startswith("small: ") for message in messages)


# ------------------------------------------------------------------------------------------ writing


def diverged(setup, store, point) -> None:
    (node,) = setup.kind.nodes(point)
    run = store.run(node.id)
    run.ensure_config(node.config)
    with run.start_attempt("a test") as attempt:
        attempt.fail("loss is nan at step 3", {"kind": "diverged"})


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    setup = setup_of(tmp_path_factory.mktemp("storage"), "--seeds", "2")
    store = Store(setup.choice.storage).open_for_writing()
    points, _ = setup.kind.points(setup, store)
    loss = bowl(setup, 1.1, 0.9)
    for _, point in points:
        is_hot = point["size"] == "tiny" and point["lr"] == 0.016 and point["batch"] == 8
        diverged(setup, store, point) if is_hot else complete(setup, store, point, loss(point))
    return setup, setup.kind.write(setup, store, None)[0]


def table(written, name) -> pd.DataFrame:
    return pd.read_csv(io.BytesIO(written[1].files[name]))


def test_nothing_is_written_before_a_trial_is_complete(tmp_path):
    setup = setup_of(tmp_path)
    assert setup.kind.write(setup, Store(setup.choice.storage).open_for_writing(), None) is None


def test_every_trial_is_in_trials_csv(written):
    trials = table(written, "trials.csv")
    assert list(trials.columns[:3]) == ["search", "trial", "state"]
    assert len(trials) == 2 * 9 * 2
    assert trials["state"].value_counts().to_dict() == {"complete": 34, "diverged": 2}
    hot = trials[trials["state"] == "diverged"]
    assert hot["loss"].isna().all()
    assert hot["message"].str.contains("step 3").all()
    assert trials.loc[trials["state"] == "complete", "loss"].between(3.0, 4.0).all()


def test_the_table_has_the_planted_optima(written):
    setup, optima = written[0], table(written, "table.csv")
    pooled = optima[optima["seed"] == POOLED].set_index("size")
    for name, size in setup.preset.sizes.items():
        row = pooled.loc[name]
        assert row["lr"] == pytest.approx(1.1 * size.peak_lr)
        assert row["batch"] == pytest.approx(0.9 * size.batch_size)
        assert row["parameters"] == total_parameters(size.dense())
        assert not row["on_edge"]
    assert pooled["num_cells"].to_dict() == {"tiny": 8, "small": 9}
    assert pooled["num_diverged"].to_dict() == {"tiny": 1, "small": 0}


def test_two_sizes_are_no_law_everywhere_it_is_shown(written):
    """Their fit offered a rate of 2.1 and a batch of 1.8e11 at 5B, and was called a law."""
    assert json.loads(written[1].files["law.json"])["no_law"]
    for name in ("laws.csv", "windows.csv"):
        assert table(written, name)["no_law"].notna().all()
    predicted = table(written, "predictions.csv").set_index("size")
    assert predicted[["lr", "batch", "times_beyond"]].isna().all(axis=None)
    assert predicted.loc["800M", "ladder_lr"] == 5.7e-4
    for quantity in ("lr", "batch"):
        assert not [
            trace for trace in written[1].figures[f"law-{quantity}"].data if trace.mode == "lines"
        ]


def test_a_study_refuses_the_law_of_two_sizes_unless_it_is_told_to_trust_it(written):
    setup, (tiny, small) = written[0], written[0].preset.sizes.values()
    store = Store(setup.choice.storage).open_for_writing()
    store.study_dir("lr_bs_grid").write("law.json", written[1].files["law.json"])
    path = store.study_dir("lr_bs_grid").file("law.json")
    given = ["--preset", "smoke", "--storage", setup.choice.storage, "--law", path]
    with refused("law"):
        study_plan(SCALING, given)
    trusted = study_plan(SCALING, [*given, "--trust-law"])
    assert len(trusted.law_doubts) == 1
    sizes = {setting.size.name: setting.size for setting in trusted.settings}
    assert sizes["tiny"].peak_lr == pytest.approx(1.1 * tiny.peak_lr)
    assert abs(sizes["small"].batch_size - 0.9 * small.batch_size) <= small.micro_batch / 2
    assert load_law(path).seq_len == setup.preset.seq_len


def test_a_law_of_three_sizes_is_a_studys_law(tmp_path):
    setup = setup_of(tmp_path, "--seeds", "1", preset="demo")
    store = Store(setup.choice.storage).open_for_writing()
    run_all(setup, store, bowl(setup, 1.1, 0.35))
    output, text, _ = setup.kind.write(setup, store, None)
    assert "law.json" in text
    (tmp_path / "law.json").write_bytes(output.files["law.json"])
    law = load_law(str(tmp_path / "law.json"))
    counts = [total_parameters(size.dense()) for size in setup.preset.sizes.values()]
    assert (law.num_sizes, law.smallest, law.largest, law.flaw) == (3, min(counts), max(counts), "")
    given = ["--storage", str(tmp_path), "--law", str(tmp_path / "law.json")]
    graph = study_plan(SCALING, given)
    assert graph.law_doubts == ()
    assert {s.size.name: s.size.peak_lr for s in graph.settings}["0.15M"] == pytest.approx(
        law.lr(117_920)
    )
    predicted = pd.read_csv(io.BytesIO(output.files["predictions.csv"])).set_index("size")
    assert predicted.index[predicted["lr"].notna()].tolist() == list(setup.preset.sizes)


def test_every_file_and_figure_is_written(written):
    assert "nan at step 3" in written[1].files["report.html"].decode()
    assert set(written[1].figures) == {"surface-tiny", "surface-small", "law-lr", "law-batch"}
    assert json.loads(written[1].files["search.json"])["search_id"] == written[0].search_id


def test_without_a_law_the_law_file_is_none_that_a_study_takes(tmp_path):
    setup = setup_of(tmp_path, "--sizes", "tiny")
    store = Store(setup.choice.storage).open_for_writing()
    run_all(setup, store, bowl(setup, 1.0, 1.0))
    left, *_ = setup.kind.write(setup, store, None)
    (tmp_path / "law.json").write_bytes(left.files["law.json"])
    with refused("law"):
        load_law(str(tmp_path / "law.json"))
