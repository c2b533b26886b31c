"""Flags and bad input: a clear error that names the field, before anything is packed or trained."""

import dataclasses
import json

import pytest

from gram_platform.config import RECIPE_VERSION
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import RAY_JOB_VARIABLE
from gram_platform.config.ladder import DEMO_LAW, GRID_DEMO_SIZES, PAPER_LAW, PAPER_SIZES
from gram_platform.planner import MACHINES
from gram_platform.planner.ranks import AUTO
from gram_platform.store import Store
from gram_platform.studies import main
from gram_platform.studies.campaign import drive_campaign
from gram_platform.studies.dry_run import describe
from gram_platform.studies.flags import parse_flags
from gram_platform.studies.library import hyperparams, lr_bs_grid
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.make_plan import plan_of as submission
from gram_platform.studies.make_plan import read_study
from gram_platform.studies.packing import pack_corpora, require_enough_data
from gram_platform.studies.record import record_of
from gram_platform.studies.searches.definition import make_search_plan
from gram_platform.studies.workplace import execution_of
from tests.refused import refused
from tests.submitted import parse, plan_of, study_plan


def planned(*arguments):
    return plan_of(STUDY, list(arguments))


def study_of(*arguments):
    return planned(*arguments).studies[0]


def test_defaults(storage):
    got = planned()
    (study,) = got.studies
    assert (study.preset_name, got.storage, study.choice.corpus) == (
        "demo",
        str(storage),
        "stories",
    )
    assert got.tracking_uri == f"sqlite:///{storage}/mlflow.db"
    assert study.methods == ("baseline", "filtering", "gram")  # the preset's
    assert study.choice.seeds == 0  # the preset's, size by size
    assert study.choice.sizes == tuple(STUDY.presets["demo"].sizes)


def test_the_flags_of_execution_reach_it(storage):
    execution, _ = execution_of(planned("--deterministic"))
    assert execution.deterministic
    assert not execution_of(planned())[0].deterministic


def test_whether_runs_are_compiled(storage):
    """By --compile and --no-compile, otherwise where it pays; what repeats bit for bit is not."""
    given = (), ("--compile",), ("--no-compile",), ("--deterministic",)
    found = [planned("--device", "cuda", *words).compiled for words in given]
    assert found == [None, True, False, False]
    for words in (("--compile", "--no-compile"), ("--device", "cpu", "--no-compile")):
        with refused("no_compile", True):
            planned(*words)
    with refused("deterministic", True):
        planned("--device", "cuda", "--compile", "--deterministic")


def test_lists_take_blanks_and_commas(storage):
    smoke = ("--preset", "smoke")
    first = planned(*smoke, "--methods", "gram,filtering", "--sizes", "small,tiny")
    second = planned(*smoke, "--methods", "filtering", "gram", "--sizes", "tiny", "small")
    assert first == second
    assert study_of("--methods", "gram").methods == ("baseline", "gram")


WRONG = [  # the field that the error names, and the flags
    ("preset", ["--preset", "huge"]),
    ("methods", ["--methods", "magic"]),
    ("sizes", ["--preset", "paper", "--sizes", "9B"]),
    ("seeds", ["--seeds", "-1"]),
    ("through", ["--preset", "smoke", "--through", "9B"]),
    ("num_workers", ["--preset", "smoke", "--num-workers", "3"]),
    ("num_workers", ["--num-workers", "many"]),
    ("num_workers", ["--num-workers", "0"]),
    ("num_workers", ["--num-workers", "8..4"]),
    ("num_workers", ["--preset", "smoke", "--num-workers", "2..4", "--max-gpus", "4"]),
    ("num_workers", ["--preset", "paper", "--num-workers", "9B=4"]),
    ("num_workers", ["--preset", "smoke", "--num-workers", "tiny=2", "tiny=4"]),
    ("tracking_uri", ["--tracking-uri", "server"]),
    ("storage", ["--storage", "~nobody-of-this-name/x"]),
    ("storage", ["--storage", __file__]),
    ("checkpoint_every", ["--checkpoint-every", "0"]),
    ("checkpoint_every", ["--checkpoint-every", "often"]),
    ("max_hours", ["--max-hours", "-1"]),
    ("max_cost", ["--max-cost", "nan"]),
    ("max_gpus", ["--max-gpus", "-1"]),
    ("gpus_per_run", ["--gpus-per-run", "2"]),
    ("gpus_per_machine", ["--gpus-per-machine", "0"]),
    ("stall_timeout", ["--stall-timeout", "0"]),
    ("collective_timeout", ["--collective-timeout", "1e300"]),
    ("trust_law", ["--preset", "smoke", "--trust-law"]),
    # Flags without an effect.
    ("max_gpus", ["--preset", "smoke", "--in-process", "--max-gpus", "2"]),
    ("stall_timeout", ["--preset", "smoke", "--in-process", "--stall-timeout", "60"]),
    ("verbose", ["--preset", "smoke", "--in-process", "--verbose"]),
    ("gpus_per_run", ["--preset", "smoke", "--device", "cpu", "--gpus-per-run", ".5"]),
    ("deterministic", ["--preset", "smoke", "--device", "cpu", "--deterministic"]),
    ("law", ["--preset", "smoke", "--law", "none"]),
]


def test_checkpoints_are_as_far_apart_as_writing_them_asks(storage):
    own = execution_of(planned("--preset", "smoke"))[0]
    assert [own.commit_interval(s) for s in (0.0, 0.5, 3.0, 100.0)] == pytest.approx(
        [30.0, 30.0, 150.0, 1800.0]
    )
    fixed = execution_of(planned("--preset", "smoke", "--checkpoint-every", "45"))[0]
    assert fixed.commit_interval(100.0) == 45.0


def test_a_database_of_trials_is_refused_where_no_search_keeps_any(storage):
    """It was never asked, whoever answered there."""
    uri = "postgresql+psycopg://me:word@host/optuna"
    flags = ["--preset", "smoke", "--optuna-uri", uri]
    with refused("optuna_uri", "postgresql+psycopg://***@host/optuna"):
        drive_campaign(plan_of(STUDY, [*flags, "--methods", "gram"]))
    for search in (lr_bs_grid.SEARCH, hyperparams.SEARCH):
        with refused("optuna_uri", "postgresql+psycopg://***@host/optuna"):
            make_search_plan(search, parse_flags(search.flags_type, "", flags))


def test_through_keeps_the_sizes_up_to_one(storage):
    paper = ("--preset", "paper", "--through")
    assert study_of(*paper, "200M").choice.sizes == ("50M", "100M", "200M")
    assert study_of(*paper, "400M", "--sizes", "100M,400M").choice.sizes == ("100M", "400M")


@pytest.mark.parametrize(
    ("field", "arguments"), WRONG, ids=lambda one: " ".join(one) if isinstance(one, list) else one
)
def test_a_wrong_flag_is_refused_by_name_before_any_work(field, arguments, storage, capsys):
    with pytest.raises(SystemExit) as ended:
        main(STUDY, arguments)
    assert ended.value.code == 2
    assert f"--{field.replace('_', '-')}" in capsys.readouterr().err
    assert not list(storage.iterdir())


def test_numbers_of_ranks(storage):
    """One for all, single sizes' own, or the planner's."""
    paper = ("--preset", "paper", "--num-workers")
    found = {
        words: [study_of(*paper, *words).ranks.number_of(size) for size in ("800M", "2B", "5B")]
        for words in (("2",), ("5B=16", "2B=8"), ("4", "5B=auto"), ("auto,800M=1",))
    }
    assert list(found.values()) == [[2, 2, 2], [AUTO, 8, 16], [4, 4, AUTO], [1, AUTO, AUTO]]
    assert study_of(*paper, "auto").ranks.machine == MACHINES["h100"]
    assert study_of(*paper, "auto", "--machine", "h200").ranks.machine == MACHINES["h200"]


def test_runs_that_no_number_of_ranks_can_hold(storage, monkeypatch):
    small = dataclasses.replace(MACHINES["cpu"], memory_bytes=1e6)
    monkeypatch.setitem(MACHINES, "cpu", small)
    plan = planned("--preset", "smoke", "--num-workers", "auto")
    with refused("machine", "cpu"):
        pack_corpora(plan, Store(storage))
    assert not (storage / "data").exists()


def test_servers_and_databases_that_mlflow_has(storage):
    for uri in (
        "https://host/path",
        "sqlite+pysqlite:////path/mlflow.db",
        "postgresql+psycopg://host/mlflow",
    ):
        assert planned("--tracking-uri", uri).tracking_uri == uri


@pytest.mark.parametrize("flag", ["storage", "corpus", "tracking_uri"])
def test_relative_places_are_refused_inside_a_ray_job(flag, storage, monkeypatch):
    place = "sqlite:///here.db" if flag == "tracking_uri" else "./here"
    arguments = [f"--{flag.replace('_', '-')}", place]
    flags = parse(STUDY, arguments)
    # Nothing is there yet, so that only the flags are read.
    assert submission(flags, (read_study(STUDY, flags, ()),))
    monkeypatch.setenv(RAY_JOB_VARIABLE, "{}")
    with refused(flag):
        planned(*arguments)


# ------------------------------------------------------------------------------------ whole studies


def outcome(capsys, *arguments):
    """(exit code, what the user reads)."""
    with pytest.raises(SystemExit) as ended:
        main(STUDY, ["--preset", "smoke", *arguments])
    return ended.value.code, capsys.readouterr().err


def write_corpus(folder, lines):
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    return str(folder)


def record(label, text="a plain sentence of some words that says nothing much. "):
    return json.dumps({"text": text * 3, "label": label}).encode()


GOOD = [record("general") for _ in range(3)] + [record("law") for _ in range(3)]
BAD_LINES = {
    "no label": b'{"text": "x"}',
    "another case": b'{"Text": "x", "label": "law"}',
    "not utf-8": b'{"text": "\xff", "label": "law"}',
}


@pytest.mark.parametrize("line", BAD_LINES.values(), ids=BAD_LINES)
def test_bad_records_are_named_by_file_and_line(line, storage, tmp_path, capsys):
    corpus = write_corpus(tmp_path / "corpus", [*GOOD, line])
    code, text = outcome(capsys, "--corpus", corpus, "--core-label", "general")
    assert code == 2
    assert "a.jsonl" in text
    assert f"{len(GOOD) + 1}" in text
    assert "found Text, label" in text or b"Text" not in line
    assert not (storage / "runs").exists()


@pytest.mark.parametrize("field", ["corpus", "core_label", "retain"])
def test_unknown_names_of_a_corpus_are_refused(field, storage, tmp_path, capsys):
    place = [] if field == "retain" else ["--corpus", write_corpus(tmp_path / "corpus", GOOD)]
    code, text = outcome(capsys, *place, f"--{field.replace('_', '-')}", "nonsense")
    assert code == 2
    assert f"--{field.replace('_', '-')} nonsense: " in text
    assert not (storage / "runs").exists()


def test_a_label_with_too_little_text(storage, tmp_path, capsys):
    lines = [
        record("general", f"sentence number {i} about something else entirely. ")
        for i in range(400)
    ]
    lines += [record("law", f"the court held number {i}. ") for i in range(8)]
    corpus = write_corpus(tmp_path / "corpus", lines)
    code, text = outcome(capsys, "--corpus", corpus, "--core-label", "general")
    assert code == 2
    assert "domain law: " in text
    assert not (storage / "runs").exists()


def test_beside_a_single_label_core_alone_is_compared(storage, tmp_path):
    """Core with it is all: a filtering run without the label, views and attacks of core, and
    nothing else to retain."""
    for label in ("notes", "tales"):
        texts = [{"label": label, "text": f"{label} {number} " * 40} for number in range(200)]
        with (tmp_path / f"{label}.jsonl").open("w") as file:
            file.writelines(json.dumps(text) + "\n" for text in texts)
    own = (
        "--preset",
        "smoke",
        "--sizes",
        "tiny",
        "--seeds",
        "1",
        "--corpus",
        str(tmp_path),
        "--core-label",
        "notes",
    )
    graph = study_of(*own)
    seen = {(node.method, node.names["profile"], node.is_attack) for node in graph.nodes}
    assert {
        ("filtering", "core", False),
        ("filtering", "core", True),
        ("gram", "core", True),
    } <= seen
    with refused("retain", "tales"):
        study_of(*own, "--retain", "tales")


def test_a_storage_of_another_recipe_is_refused(storage, capsys):
    Store(storage).open_for_writing()
    (storage / "store.json").write_text(
        json.dumps({"layout": 1, "recipe_version": RECIPE_VERSION + 1})
    )
    code, text = outcome(capsys, "--storage", str(storage))
    assert code == 2
    assert "recipe_version" in text or "--storage" in text


def test_a_budget_that_the_corpus_cannot_serve(storage):
    """The check itself, on the real packed corpus of the smoke preset."""
    from gram_platform.corpora import prepare

    huge = dataclasses.replace(STUDY.presets["smoke"], num_eval_sequences=10_000)
    study = dataclasses.replace(STUDY, presets={"smoke": STUDY.presets["smoke"]})
    graph = study_plan(study, ["--preset", "smoke"])
    corpus = prepare(graph.corpora[0], storage / "data")
    require_enough_data(graph, corpus)
    with pytest.raises(ValueError, match="validation"):
        require_enough_data(dataclasses.replace(graph, preset=huge), corpus)


def test_the_papers_preset_has_the_papers_sizes():
    graph = study_of("--preset", "paper")
    assert graph.preset.sizes == PAPER_SIZES
    assert {n: total_parameters(graph.preset.sizes[n].dense()) for n in ("50M", "5B")} == {
        "50M": 47_944_704,
        "5B": 4_967_623_680,
    }
    # (5 sizes of 3 seeds, 2 of one) x (5 trainings, 9 attacks)
    assert sum(node.is_run for node in graph.nodes) == (5 * 3 + 2) * (5 + 9)


# -------------------------------------------------------------------------------- laws and searches


def test_a_law_sets_every_sizes_rate_and_batch(tmp_path):
    law = {
        "name": "ours",
        "lr_coefficient": 2.0,
        "lr_exponent": -0.5,
        "batch_coefficient": 0.01,
        "batch_exponent": 0.6,
    }
    path = tmp_path / "law.json"
    fitted = {"num_sizes": 3, "smallest": 5e4, "largest": 2e5}
    path.write_text(json.dumps({**law, **fitted, "seq_len": 64, "source": "a test", "more": 1}))
    common = ("--preset", "smoke", "--storage", str(tmp_path / "s"))
    graph = study_of(*common, "--law", str(path))
    for setting in graph.settings:
        num_parameters = total_parameters(setting.size.dense())
        assert setting.size.peak_lr == pytest.approx(2.0 * num_parameters**-0.5)
        by_law = 0.01 * num_parameters**0.6
        assert abs(setting.size.batch_size - by_law) <= setting.size.micro_batch / 2
    own = study_of(*common)
    assert not {n.id for n in own.nodes} & {n.id for n in graph.nodes}


NO_EVIDENCE = {"num_sizes": 0, "smallest": 0, "largest": 0, "no_law": ""}


@pytest.mark.parametrize(
    "evidence",
    [
        {"num_sizes": 2, "smallest": 5e4, "largest": 2e5},
        {"num_sizes": 3, "smallest": 5e4, "largest": 2e5, "no_law": "x: edge"},
        # Both sizes of the preset are more than ten times as large as the largest that was fitted.
        {"num_sizes": 4, "smallest": 5e3, "largest": 8.8e3},
    ],
)
def test_a_law_against_its_evidence_is_refused_unless_it_is_trusted(tmp_path, evidence):
    path = tmp_path / "law.json"
    path.write_text(json.dumps({**dataclasses.asdict(DEMO_LAW), **NO_EVIDENCE, **evidence}))
    given = ("--preset", "smoke", "--storage", str(tmp_path / "s"), "--law", str(path))
    with refused("law"):
        study_of(*given)
    plan = planned(*given, "--trust-law")
    (trusted,) = plan.studies
    size = trusted.settings[0].size
    assert size.peak_lr == DEMO_LAW.lr(total_parameters(size.dense()))
    assert trusted.law_doubts
    facts, said = " ".join(record_of(trusted).facts), describe(plan)
    assert all(doubt in facts and doubt in said for doubt in trusted.law_doubts)


def test_sizes_within_ten_times_of_a_laws_need_no_trust(tmp_path):
    path = tmp_path / "law.json"
    path.write_text(
        json.dumps(
            {
                **dataclasses.asdict(DEMO_LAW),
                **NO_EVIDENCE,
                "num_sizes": 3,
                "smallest": 1e3,
                "largest": 1.5e4,
            }
        )
    )
    graph = study_of("--preset", "smoke", "--storage", str(tmp_path / "s"), "--law", str(path))
    assert graph.law_doubts == ()


def test_the_papers_law_predicts_its_ladder_to_2b():
    for size, parameters in (
        (name, total_parameters(s.dense())) for name, s in PAPER_SIZES.items()
    ):
        assert PAPER_LAW.predicts(parameters) == (size != "5B")
    assert PAPER_LAW.doubts({"5B": 4_967_623_680})


def test_the_demos_law_is_none_and_no_preset_needs_it(tmp_path):
    """The surface of 0.1M is bent by less than two standard errors; the demo's rates are numbers of
    its sizes."""
    common = ("--storage", str(tmp_path / "s"))
    assert not any(
        DEMO_LAW.predicts(total_parameters(size.dense())) for size in GRID_DEMO_SIZES.values()
    )
    with refused("law", "demo"):
        study_of(*common, "--law", "demo")
    trusted = study_of(*common, "--law", "demo", "--trust-law")
    assert trusted.settings[0].size.peak_lr == DEMO_LAW.lr(88_704)
    assert study_of(*common).settings[0].size.peak_lr == 3.9e-3
