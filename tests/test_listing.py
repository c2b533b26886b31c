"""`gram run`, `list` and `show`: studies by name from the package alone, and what can be run."""

import contextlib
import json
import runpy
import sys

import pytest

from gram_platform.cli import main
from gram_platform.cli.run import OURS, find_study
from gram_platform.corpora import catalog_names
from gram_platform.engine.devices import ProbeReport
from gram_platform.methods import METHODS
from gram_platform.store import Store
from gram_platform.store.root import write_cordoned
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.workplace import cordons_noted
from tests.conftest import ROOT
from tests.store.training import run_config
from tests.submitted import study_plan

SMALL = ["--preset", "smoke", "--sizes", "tiny", "--seeds", "1", "--methods", "gram"]
SMALL += ["--set", "options.elicitation=false"]
EXPERIMENTS = {path.stem for path in (ROOT / "experiments").glob("*.py")} - {
    "all",
    "bench",
    "one_run",
}


def printed(capsys, *arguments: str) -> str:
    """What `gram` prints; a study, and --help, end the process with 0."""
    ends = pytest.raises(SystemExit) if arguments[0] == "run" else contextlib.nullcontext()
    with ends as ended:
        main(list(arguments))
    assert ended is None or ended.value.code == 0
    return capsys.readouterr().out


def of_experiment(capsys, monkeypatch, name: str, *arguments: str) -> str:
    monkeypatch.setattr(sys, "argv", [f"experiments/{name}.py", *arguments])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(ROOT / f"experiments/{name}.py"), run_name="__main__")
    assert end.value.code == 0
    return capsys.readouterr().out


def test_every_experiment_runs_by_name():
    assert set(OURS) == EXPERIMENTS
    assert {find_study(name).name for name in OURS} == EXPERIMENTS


@pytest.mark.parametrize("name", ["scaling", "stories", "lr_bs_grid", "hyperparams"])
def test_a_study_prints_the_same_by_name_and_as_a_file(name, capsys, monkeypatch, tmp_path):
    flags = ("--preset", "smoke", "--dry-run", "--storage", str(tmp_path))
    by_name = printed(capsys, "run", name, *flags)
    assert by_name == of_experiment(capsys, monkeypatch, name, *flags)
    assert by_name


@pytest.mark.parametrize("what", ["studies", "methods", "presets", "corpora", "sizes"])
def test_lists_name_everything(what, capsys):
    names = {
        "studies": set(OURS),
        "methods": set(METHODS),
        "presets": {preset for name in OURS for preset in find_study(name).presets},
        "corpora": set(catalog_names()),
        "sizes": {
            size for n in OURS for preset in find_study(n).presets.values() for size in preset.sizes
        },
    }
    rows = json.loads(printed(capsys, "list", what, "--json"))
    assert {row["name"] for row in rows} == names[what]
    lines = printed(capsys, "list", what).splitlines()
    assert len(lines) == 1 + len(rows)
    assert lines[0].split() == list(rows[0])
    assert all(row["about"].endswith(".") for row in rows if what == "methods")


def test_lists_of_one_study(capsys):
    tiny, small, *_ = json.loads(printed(capsys, "list", "sizes", "--study", "scaling", "--json"))
    assert (tiny["preset"], tiny["name"], small["name"]) == ("smoke", "tiny", "small")
    assert tiny["peak_lr"] == STUDY.presets["smoke"].sizes["tiny"].peak_lr


def assert_a_cordoned_machine_is_named(capsys, store: Store) -> None:
    """Until the study is submitted again."""
    said: list[str] = []
    broken = ProbeReport(
        "f00", "gpu-7", "10.0.0.7", "cuda 3", "RuntimeError: CUDA error: unknown error"
    )

    def cordoned() -> list[dict]:
        return json.loads(printed(capsys, "status", "--storage", store.root, "--json"))["cordoned"][
            "scaling"
        ]

    cordons_noted(store, ["scaling"], said.append)(broken)
    assert len(said) == 1
    (machine,) = cordoned()
    assert (machine["host"], machine["machine"]) == ("gpu-7", "f00")
    assert "CUDA error: unknown error" in machine["message"]
    printed(capsys, "report", "scaling", "--storage", store.root)
    assert machine["message"] in store.study_dir("scaling").read("report.html").decode()
    # No time of a calendar.
    write_cordoned(store, "scaling", [{"message": "damaged", "time": 1e18}])
    assert cordoned() == []
    cordons_noted(store, ["scaling"], said.append)(broken)
    cordons_noted(store, ["scaling"], said.append)
    assert cordoned() == []


def test_a_study_runs_and_its_runs_are_shown(capsys, tmp_path):
    printed(capsys, "run", "scaling", *SMALL, "--in-process", "--storage", str(tmp_path))
    graph = study_plan(STUDY, [*SMALL, "--storage", str(tmp_path)])
    store = Store(tmp_path)
    for node in (graph.nodes[0], graph.nodes[1]):
        shown = json.loads(
            printed(capsys, "show", node.id[:9], "--storage", str(tmp_path), "--json")
        )
        stored = store.node(node.kind, node.id)
        assert (shown["id"], shown["kind"], shown["state"]) == (node.id, node.kind, "complete")
        assert shown["studies"] == ["scaling"]
        assert shown["name"] == node.name
        assert (shown["config"], shown["result"], shown["tags"]) == (
            stored.config(),
            stored.result(),
            stored.tags(),
        )
        assert node.name in printed(capsys, "show", node.id, "--storage", str(tmp_path))
    status = json.loads(printed(capsys, "status", "--storage", str(tmp_path), "--json"))
    assert {run["id"] for run in status["runs"]} == {node.id for node in graph.nodes if node.is_run}
    num_evaluations = sum(not node.is_run for node in graph.nodes)
    assert status["evaluations"] == {"complete": num_evaluations, "total": num_evaluations}
    assert status["cordoned"] == {"scaling": []}
    assert_a_cordoned_machine_is_named(capsys, store.open_for_writing())
    with pytest.raises(SystemExit):
        main(["show", "000000000000", "--storage", str(tmp_path)])
    assert "node_id='000000000000': " in capsys.readouterr().err


def test_status_is_by_study_size_method_and_seed(capsys, tmp_path):
    """A run of several studies stands once, under all of them; one of no study comes last."""
    store = Store(tmp_path).open_for_writing(min_free_bytes=0)
    tags = [
        {"size": size, "method": method, "profile": "all", "seed": seed}
        for size in ("2B", "50M", "800M")
        for method in ("gram", "baseline")
        for seed in ("10", "9")
    ]
    runs = [run_config(8, seed=place) for place in range(len(tags) + 1)]
    for config, names in zip(
        runs, [*tags, {"size": "50M", "method": "baseline", "seed": "0"}], strict=True
    ):
        store.run(config.run_id).ensure_config(config)
        store.run(config.run_id).add_tags(names)
    ids = [config.run_id for config in runs]
    shared, of_scaling, of_none = ids[:4], ids[:-1], ids[-1]
    for study, members in (("scaling", of_scaling), ("stories", shared)):
        store.study_dir(study).write_json(
            "study.json", {"entries": [{"id": one} for one in [*members, *members]]}
        )
    rows = json.loads(printed(capsys, "status", "--storage", str(tmp_path), "--json"))["runs"]
    of = lambda *sizes: [
        f"{m} {s} all s{n}" for s in sizes for m in ("baseline", "gram") for n in (9, 10)
    ]
    assert [row["name"] for row in rows[:-1]] == [*of("50M", "800M"), *of("2B")]
    assert rows[-1]["id"] == of_none
    assert [row["studies"] for row in rows] == [["scaling"]] * 8 + [["scaling", "stories"]] * 4 + [
        []
    ]


def test_the_sizes_are_those_of_the_papers_table(capsys):
    """tab:grmoe-scaling-training: layers, core MLP, auxiliary MLP, and the module's parameters."""
    rows = json.loads(printed(capsys, "list", "sizes", "--study", "scaling", "--json"))
    (row,) = (row for row in rows if (row["preset"], row["name"]) == ("paper", "800M"))
    shape = [row[name] for name in ("layers", "d_model", "core_mlp", "module_mlp")]
    assert shape == [24, 1600, 6400, 640]
    assert round(row["module_parameters"] / 1e6, 1) == 49.2


def test_the_mixture_is_the_papers_table(capsys):
    """tab:realistic-mix: tokens and shares of all of them; of web text 13.4B and 83.2% are printed,
    of core's 16.1B."""
    rows = json.loads(printed(capsys, "list", "mixtures", "--study", "dual_use", "--json"))
    paper = [row for row in rows if row["preset"] == "paper"]
    found = {(row["name"], row["source"].split("/")[1]): row for row in paper}
    tokens = {key: row["tokens"] for key, row in found.items()}
    assert tokens["core", "fineweb-edu"] == pytest.approx(13.4e9, rel=0.01)
    assert tokens["core", "the-stack-dedup"] == pytest.approx(2.4e9, rel=0.01)
    assert tokens["core", "dual-use-papers"] == pytest.approx(160e6, rel=0.02)
    auxiliary = [row for row in paper if row["name"] != "core"]
    assert {row["name"] for row in auxiliary} == {"lisp", "virology", "nuclear", "cybersecurity"}
    assert [row["tokens"] for row in auxiliary] == [pytest.approx(40e6, rel=0.01)] * 4
    assert {row["share"] for row in auxiliary} == {"0.25%"}
    assert found["core", "dual-use-papers"]["share"] == "1.00%"
    assert json.loads(printed(capsys, "list", "mixtures", "--study", "titration", "--json"))
    # No preset of it reads the hub.
    assert json.loads(printed(capsys, "list", "mixtures", "--study", "finetuning", "--json")) == []
