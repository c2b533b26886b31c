"""Presets by file and by --set: the same classes, the same ids, and errors before any work."""

import json
from dataclasses import replace

import pytest

from gram_platform.config.identity import InvalidField
from gram_platform.config.ladder import SMOKE_SIZES
from gram_platform.config.written import assignments
from gram_platform.studies.definition import AS_RUN_FAMILY, OURS, mask_place
from gram_platform.studies.dry_run import describe
from gram_platform.studies.library import lr_bs_grid, scaling, stories
from gram_platform.studies.library.scaling import SMOKE, STUDY
from gram_platform.studies.make_plan import read_study
from gram_platform.studies.record import record_of
from tests.refused import refused
from tests.submitted import parse, plan_of, study_plan

SAME_AS_SMOKE = """
base = "demo"
num_seeds = 3
first_seed = 0
methods = []
corpus = "stories-smoke"
aux_share = 0.25
aux_factor = 1
warmup_fraction = 0.1
decay_fraction = 0.1
num_eval_points = 8
num_eval_sequences = 8
sample_bytes = 1_000_000
seeds_of_size = []

[routing]
p_core_robust = 0.5
p_aux_spread = 0.3

[options.elicitation]
num_sequences = 4
num_steps = 6
patience = 0
batch_size = 4
compared_only = true
domain_share = 0

[options]
rmu.num_steps = 10
graddiff.num_steps = 10

[sizes]
"0.1M" = false
"0.15M" = false
"""


def sizes_of_smoke() -> str:
    """The sizes of the preset `smoke`, written as tables on top of one of `demo`, which has other
    numbers."""
    tables = []
    for name, size in SMOKE_SIZES.items():
        values = [text for text in assignments(vars(size)) if not text.startswith("name=")]
        tables.append("\n".join([f"[sizes.{name}]", 'base = "0.1M"', *values]))
    return "\n".join(tables)


@pytest.fixture
def written(tmp_path):
    """Writes a preset's file; returns the flags that name it."""

    def write(text: str, *flags: str) -> list[str]:
        path = tmp_path / "my.toml"
        path.write_text(text)
        return ["--preset", str(path), "--storage", str(tmp_path / "storage"), *flags]

    return write


def graph_of(arguments: list[str]):
    return study_plan(STUDY, arguments)


def test_a_file_with_the_values_of_smoke_has_the_runs_of_smoke(written, tmp_path):
    own = graph_of(written(SAME_AS_SMOKE + sizes_of_smoke()))
    smoke = graph_of(["--preset", "smoke", "--storage", str(tmp_path / "storage")])
    assert own.preset == replace(SMOKE, family=OURS)
    assert own.data_id == smoke.data_id
    assert [node.id for node in own.nodes] == [node.id for node in smoke.nodes]


def test_a_file_that_changes_nothing_is_its_base(written):
    graph = graph_of(written('base = "as_run"\nretain = "virology"\n', "--sizes", "50M"))
    assert graph.preset is STUDY.presets["as_run"]
    assert graph.preset.family == AS_RUN_FAMILY


def test_changes_are_in_the_runs_the_dry_run_and_the_record(written):
    text = 'base = "smoke"\nnum_seeds = 1\n[sizes.tiny]\npeak_lr = 2e-3\n[sizes]\nsmall = false\n'
    plan = plan_of(
        STUDY, written(text, "--set", "routing.p_aux_spread=0.1", "options.elicitation=false")
    )
    (graph,) = plan.studies
    changes = ("num_seeds=1", "sizes.tiny.peak_lr=0.002", "sizes.small=false")
    changes += ("routing.p_aux_spread=0.1", "options.elicitation=false")
    assert graph.changes == changes
    runs = {node.method: node.config for node in graph.nodes if node.is_run}
    assert {(run.optimizer.peak_lr, run.seed) for run in runs.values()} == {(2e-3, 0)}
    assert runs["gram"].routing.p_aux_spread == 0.1
    assert not any(node.is_attack for node in graph.nodes)
    assert [f"changed: {change}" for change in changes] == describe(plan).splitlines()[1:6]
    record = record_of(graph)
    assert record.params["changes"] == "; ".join(changes)
    assert json.loads(record.to_json())["params"]["preset"] == "smoke"


def test_the_record_has_no_local_path(tmp_path):
    graph = graph_of(["--preset", "smoke", "--storage", str(tmp_path)])
    choice = replace(graph.choice, corpus="/home/me/my_text")
    elsewhere = replace(graph, choice=choice, sources={"law": "/home/me/law.json"})
    facts = " ".join(record_of(elsewhere).facts)
    assert "my_text" in facts
    assert "law.json" in facts
    assert "/home" not in facts
    assert [mask_place(place) for place in ("demo", "hf://org/name?label=a")] == [
        "demo",
        "hf://org/name?label=a",
    ]


def test_set_takes_the_names_that_others_print(tmp_path):
    arguments = ["--preset", "study", "--sizes", "0.6M", "--storage", str(tmp_path)]
    graph = graph_of([*arguments, "--set", "sizes[0.6M].peak_lr=2e-3", "retain=beach"])
    assert {setting.size.peak_lr for setting in graph.settings} == {2e-3}
    assert {setting.profiles for setting in graph.settings} == {(("beach",),)}


def test_a_search_takes_the_changes_too(tmp_path):
    arguments = [
        "--preset",
        "smoke",
        "--storage",
        str(tmp_path),
        "--set",
        "sizes.tiny.peak_lr=2e-3",
    ]
    flags = parse(lr_bs_grid.SEARCH, arguments)
    graph = study_plan(lr_bs_grid.SEARCH, flags)
    assert graph.settings[0].size.peak_lr == 2e-3
    assert graph.study.presets["smoke"].sizes["tiny"].peak_lr == 2e-3
    assert {node.config.optimizer.peak_lr for node in graph.kind.example(graph) if node.is_run} >= {
        1e-3,
        4e-3,
    }


def test_a_studys_corpus_may_be_the_files(written, tmp_path, monkeypatch):
    folder = tmp_path / "text"
    folder.mkdir()
    lines = [
        json.dumps({"text": f"{label} {i} " * 40, "label": label})
        for i in range(40)
        for label in ("core", "x")
    ]
    (folder / "all.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    graph = graph_of(written('base = "smoke"\ncorpus = "./text"\n'))
    assert graph.choice.corpus == str(folder)
    assert graph.corpora[0].domains == ("core", "x")
    assert "recipe" not in record_of(graph).params
    (tmp_path / "recipe.toml").write_text('records = ["text"]\n')
    by_recipe = graph_of(written('base = "smoke"\ncorpus = "recipe.toml"\n'))
    assert by_recipe.data_id == graph.data_id
    assert json.loads(record_of(by_recipe).params["recipe"])["records"] == ["text"]


WRONG = {  # the lines of a file -> the field that is wrong, and its place
    "num_seeds = 1\n": ("base", ""),
    'base = "smoke"\nnum_seeds = 0\n': ("preset.num_seeds", "line 2"),
    'base = "smoke"\n\nnum_seed = 1\n': ("num_seed", "line 3"),
    'base = "smoke"\n[routing]\np_aux_spread = 2\n': ("routing.p_aux_spread", "line 3"),
    'base = "smoke"\n[sizes.tiny]\nd_model = 33\n': ("model.d_model", "line 3"),
    'base = "smoke"\n[sizes.tiny]\nbatch_size = 18\n': ("micro_batch", ""),
    'base = "smoke"\n[sizes.tiny]\nseq_len = 128\n': ("preset.sizes", "line 2"),
    'base = "smoke"\n[sizes.new]\nd_model = 32\n': ("sizes.new", "line 2"),
    'base = "smoke"\nvariants = []\n': ("variants", "line 2"),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_refused_before_any_work(text, written, tmp_path):
    with pytest.raises(InvalidField) as caught:
        plan_of(STUDY, written(text))
    field, line = WRONG[text]
    assert caught.value.field == field
    assert "my.toml" in caught.value.place
    assert line in caught.value.place
    assert not (tmp_path / "storage").exists()


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ("sizes[huge].peak_lr=1", "sizes.huge"),
        ("sizes.tiny.micro_batch=0", "micro_batch"),
        ("peak_lr", "set"),
        ("options.maxent.kind=other", "unlearning.kind"),
    ],
)
def test_a_wrong_change_is_refused(change, field, tmp_path):
    with refused(field):
        plan_of(STUDY, ["--preset", "smoke", "--storage", str(tmp_path), "--set", change])


@pytest.mark.parametrize("study", [scaling.STUDY, stories.STUDY])
def test_every_preset_can_be_changed(study, tmp_path):
    """What is tried of a changed preset holds for every preset."""
    for name in study.presets:
        flags = parse(
            study, ["--preset", name, "--storage", str(tmp_path), "--set", "first_seed=7"]
        )
        found = read_study(study, flags, flags.subject.changes)
        assert found.changes == ("first_seed=7",)
