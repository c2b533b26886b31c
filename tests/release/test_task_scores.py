"""Scores on tasks of the LM Evaluation Harness: what is computed from its records, and a task of
our own, offline."""

import hashlib
import json
import math
import os
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from gram_platform.cli import main
from gram_platform.config import TaskScores, View, evaluation_from_plain
from gram_platform.config.identity import hash_file, to_plain
from gram_platform.corpora.tokenizer import load_tokenizer
from gram_platform.release import task_scores
from gram_platform.release.selection import AvailableModules
from gram_platform.release.task_scores import (
    ABOVE,
    AT_CHANCE,
    BELOW,
    answers,
    contents_sha256,
    folder_sha256,
    parse_profile,
)
from gram_platform.store.data import open_corpus
from gram_platform.store.views import load_view
from gram_platform.tracking.frame import load_store
from gram_platform.train.objectives import token_cross_entropy
from tests.engine import conftest as cells
from tests.refused import refused
from tests.release.planted import complete

packed_root, execution, setting, run = cells.packed_root, cells.execution, cells.setting, cells.run


def sample(
    right: int, log_likelihoods: list[float], choices: tuple[str, ...] = (" a", " bcd")
) -> dict:
    """The harness's record of one document of multiple choice."""
    pairs = [("Question", choice) for choice in choices]
    return {
        "doc_id": 0,
        "arguments": pairs,
        "target": right,
        "filtered_resps": [(v, False) for v in log_likelihoods],
    }


def test_bits_a_byte_are_of_the_right_answers_and_chance_is_a_guess():
    found = answers(
        [
            sample(0, [-2.0, -9.0]),
            sample(1, [-1.0, -4.0]),
            sample(0, [-1.0] * 4, (" a", " b", " c", " d")),
        ]
    )
    assert found["bits_per_byte"] == pytest.approx((2.0 + 4.0 + 1.0) / math.log(2.0) / (2 + 4 + 2))
    assert found["chance"] == pytest.approx((0.5 + 0.5 + 0.25) / 3)


@pytest.mark.parametrize(
    "change", [{"target": "text"}, {"target": 2}, {"arguments": [("a whole text",)], "target": 0}]
)
def test_other_tasks_have_neither(change):
    assert answers([{**sample(0, [-1.0, -2.0]), **change}]) == {}


@pytest.mark.parametrize(
    ("accuracy", "error", "verdict"),
    [(0.3, 0.05, AT_CHANCE), (0.5, 0.05, ABOVE), (0.1, 0.05, BELOW)],
)
def test_a_score_is_judged_against_a_guess(accuracy, error, verdict):
    found = {
        "documents": 80.0,
        "acc": accuracy,
        "acc_stderr": error,
        "chance": 0.25,
        "bits_per_byte": 1.5,
    }
    row = task_scores._judge(found)
    assert row["verdict"] == verdict
    assert (row["low"], row["high"]) == pytest.approx(
        (accuracy - 1.645 * error, accuracy + 1.645 * error)
    )


def test_profiles_are_named_as_in_tables():
    found = AvailableModules("0" * 12, ("lisp", "virology"), {}, has_core=True)
    assert parse_profile(found, "core") == View("0" * 12)
    assert parse_profile(found, "all") == View.of("0" * 12, {"lisp": 1.0, "virology": 1.0})
    assert parse_profile(found, "core+lisp") == View.of("0" * 12, {"lisp": 1.0})
    with refused("modules", "x"):
        parse_profile(found, "core+x")
    with refused("profiles", "lisp"):
        parse_profile(found, "lisp")


def test_the_id_depends_on_every_content_that_changes_scores(tmp_path):
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "a.yaml").write_text("task: a")
    before = folder_sha256(folder)
    (folder / "a.yaml").write_text("task: b")
    assert folder_sha256(folder) != before
    scores = TaskScores(View("0" * 12), "d" * 12, ("b", "a"), "0.4", before)
    assert scores.eval_id == TaskScores(View("0" * 12), "d" * 12, ("a", "b"), "0.4", before).eval_id
    others = {
        TaskScores(View("0" * 12), "d" * 12, ("a", "b"), "0.5", before).eval_id,
        TaskScores(View("0" * 12), "d" * 12, ("a", "b"), "0.4", folder_sha256(folder)).eval_id,
        TaskScores(View("0" * 12), "d" * 12, ("a", "b"), "0.4", before, limit=3).eval_id,
        TaskScores(View("0" * 12), "d" * 12, ("a", "b"), "0.4", before, num_fewshot=0).eval_id,
    }
    assert len(others | {scores.eval_id}) == 5
    assert evaluation_from_plain(json.loads(json.dumps(to_plain(scores)))) == scores


def task_of(dataset_path: str, documents: list[dict], **options) -> SimpleNamespace:
    """What the harness builds of a task file, as far as it is looked at."""
    config = SimpleNamespace(dataset_path=dataset_path, dataset_kwargs=options, custom_dataset=None)
    return SimpleNamespace(config=config, dataset={"test": documents})


def test_what_python_and_editors_leave_in_a_folder_is_no_part_of_its_tasks(tmp_path):
    folder = tmp_path / "tasks"
    (folder / "more").mkdir(parents=True)
    (folder / "a.yaml").write_text("task: a")
    (folder / "more" / "utils.py").write_text("x = 1")
    before = folder_sha256(folder)
    lines = [f"{name} {hash_file(folder / name)}\n" for name in ("a.yaml", "more/utils.py")]
    # The ids of scores contain this hash.
    assert before == hashlib.sha256("".join(lines).encode()).hexdigest()
    for name in (
        "__pycache__/utils.pyc",
        "more/__pycache__/x",
        "more/y.pyc",
        ".git/HEAD",
        ".DS_Store",
        "a.yaml~",
        "#a#",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("of today")
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to(folder / "loop")
    assert folder_sha256(folder) == before
    (folder / "linked.yaml").symlink_to(tmp_path / "other.yaml")
    (tmp_path / "other.yaml").write_text("task: b")
    linked = folder_sha256(folder)
    (tmp_path / "other.yaml").write_text("task: c")
    assert len({before, linked, folder_sha256(folder)}) == 3


def test_documents_and_included_files_elsewhere_count_with_the_folder(tmp_path):
    folder, documents = tmp_path / "tasks", [{"q": "A", "gold": 0}]
    folder.mkdir()
    (folder / "a.yaml").write_text("task: a")
    inside = task_of("json", documents, data_files={"test": [f"{folder}/a.jsonl"]})
    of_the_hub = task_of("owner/name", documents, name="x")
    before = folder_sha256(folder)
    assert contents_sha256(folder, [inside, of_the_hub]) == before
    made = task_of("json", documents)
    made.config.custom_dataset = dict
    outside = [
        task_of("json", documents, data_files=place)
        for place in (f"{tmp_path}/a.jsonl", {"test": ["a.jsonl"]})
    ]
    outside += [
        task_of(str(tmp_path), documents),
        task_of("json", documents, data_dir="../x"),
        made,
    ]
    for task in outside:
        first = contents_sha256(folder, [task])
        task.dataset = {"test": [{"q": "A", "gold": 1}]}
        assert len({before, first, contents_sha256(folder, [task])}) == 3
    for text in (
        "include: ../base.yaml",
        "include:\n  - a.yaml\n  - '../base.yaml'\n",
        "include: [ ../base.yaml ]",
    ):
        (folder / "a.yaml").write_text(text)
        (tmp_path / "base.yaml").write_text("include: deeper.yaml")
        found = set()
        for deeper in ("task: b", "task: c"):
            (tmp_path / "deeper.yaml").write_text(deeper)
            found.add(contents_sha256(folder, []))
        assert len({folder_sha256(folder), *found}) == 3


def test_a_circle_of_links_is_no_file_that_counts(tmp_path):
    (tmp_path / "circle").symlink_to("circle")
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "a.yaml").write_text("include: ../circle")
    elsewhere = task_of("json", [], data_files=f"{tmp_path}/circle")
    assert contents_sha256(folder, []) == folder_sha256(folder)
    assert contents_sha256(folder, [elsewhere]) != folder_sha256(folder)


def test_without_the_harness_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(task_scores.importlib.util, "find_spec", lambda name: None)
    with refused("tasks", "mmlu"):
        task_scores.Benchmark(("mmlu",)).validate()


@pytest.fixture
def harness():
    reason = "lm-eval is not installed: pip install -c constraints.txt -e '.[eval]'"
    return pytest.importorskip("lm_eval", reason=reason)


@pytest.fixture
def scored(harness, run, execution):
    """A run with drawn weights: its view with all modules, the model for the harness, and the
    tokenizer."""
    from gram_platform.release.harness_model import HarnessModel

    store = execution.store()
    complete(store, run)
    view = View.of(run.run_id, dict.fromkeys(run.model.module_domains, 1.0))
    tokenizer = load_tokenizer(open_corpus(store, run.data.data_id).tokenizer_path)
    _, model = load_view(store, view)
    return store, view, model, tokenizer, HarnessModel(model, dict(view.weights), tokenizer)


def request(harness, *arguments):
    from lm_eval.api.instance import Instance

    return Instance("loglikelihood", {}, arguments, 0)


def losses(model, view, tokens: list[int]) -> np.ndarray:
    rows = torch.tensor([tokens])
    return (
        token_cross_entropy(model(rows[:, :-1], dict(view.weights)), rows[:, 1:])[0]
        .double()
        .numpy()
    )


def test_log_likelihoods_are_those_of_the_model(harness, scored):
    """Alone and in a batch of other lengths; a context that is too long loses its beginning."""
    _, view, model, tokenizer, asked = scored
    texts = [("Once upon a time", " there was a keeper"), ("A", " keeper")]
    texts.append((" ".join(["word"] * model.config.seq_len), " end of it"))
    found = asked.loglikelihood([request(harness, *text) for text in texts], disable_tqdm=True)
    for (context, continuation), (value, _) in zip(texts, found, strict=True):
        encoded, prompt = (
            tokenizer.encode(t, add_special_tokens=False).ids
            for t in (context + continuation, context)
        )
        num_scored = len(encoded) - len(prompt)
        expected = -losses(model, view, encoded[-(model.config.seq_len + 1) :])[-num_scored:].sum()
        assert value == pytest.approx(expected, abs=1e-4)


def test_each_token_of_a_whole_text_is_scored_once(harness, scored):
    """In windows as long as the model's context; the last one begins earlier, among tokens that are
    scored already."""
    _, view, model, tokenizer, asked = scored
    text = "Once upon a time there was a keeper. " * model.config.seq_len
    (found,) = asked.loglikelihood_rolling([request(harness, text)], disable_tqdm=True)
    tokens, length = tokenizer.encode(text, add_special_tokens=False).ids, model.config.seq_len
    expected = losses(model, view, [asked.eot_token_id, *tokens[:length]]).sum()
    assert len(tokens) > length
    for first in range(length, len(tokens), length):
        stop = min(first + length, len(tokens))
        expected += losses(model, view, tokens[stop - length - 1 : stop])[-(stop - first) :].sum()
    assert -found == pytest.approx(expected, rel=1e-5)


def write_task(
    folder, name: str, num_documents: int, right: int = 0, kind: str = "multiple_choice"
) -> None:
    """A task file with a function, beside the file of its documents."""
    folder.mkdir(exist_ok=True)
    documents = [
        {"q": f"Keeper {i} of", "c": ["the mill", "a bridge"], "a": (i + right) % 2}
        for i in range(num_documents)
    ]
    (folder.parent / f"{name}.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "questions.py").write_text("def text(document):\n    return document['q']\n")
    (folder / f"{name}.yaml").write_text(
        f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test:"
        f" {folder.parent}/{name}.jsonl\ntest_split: test\noutput_type: {kind}\ndoc_to_text:"
        " !function questions.text\ndoc_to_choice: '{{c}}'\ndoc_to_target: a\nmetric_list:\n "
        " - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
    )


@pytest.fixture
def own_tasks(harness, monkeypatch):
    """Without the harness's own tasks, whose thousands of files take half a minute to read."""
    from lm_eval import tasks

    monkeypatch.setattr(
        "lm_eval.tasks.TaskManager", partial(tasks.TaskManager, include_defaults=False)
    )


@pytest.mark.timeout(600)
def test_a_task_of_ones_own_is_scored_once_and_is_in_the_frames(
    own_tasks, scored, tmp_path, capsys, monkeypatch
):
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    store, view, *_ = scored
    write_task(tmp_path / "tasks", "keepers", 12)
    flags = [
        "--tasks",
        "keepers",
        "--include-path",
        str(tmp_path / "tasks"),
        "--storage",
        store.root,
    ]
    command = [
        "eval",
        view.run_id,
        *flags,
        "--profiles",
        "core",
        "all",
        "--out",
        str(tmp_path / "table.csv"),
    ]
    main(command)
    assert "keepers" in capsys.readouterr().out
    first = (tmp_path / "table.csv").read_bytes()
    frame = load_store(store, measure="tasks")
    assert sorted(frame["profile"]) == ["all", "core"]
    assert set(frame["task/keepers/documents"]) == {12.0}
    assert set(frame["task/keepers/chance"]) == {0.5}
    main(command)
    assert capsys.readouterr().out.count("scored before") == 2
    assert (tmp_path / "table.csv").read_bytes() == first
    write_task(tmp_path / "tasks", "keepers", 12, right=1)
    main([*command[:-2], "--limit", "4"])
    assert "scored in" in capsys.readouterr().out
    write_task(tmp_path / "tasks", "writers", 2, kind="generate_until")
    write_task(tmp_path / "tasks", "broken", 2)
    (tmp_path / "broken.jsonl").write_text("no JSON")
    for task, reason in (
        ("writers", "a task that generates no text"),
        ("broken", "a task that can be built"),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["eval", view.run_id, *flags, "--profiles", "core", "--tasks", task])
        assert ended.value.code == 2
        assert f"tasks='{task}': expected {reason}" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main(["eval", view.run_id, *flags, "--profiles", "all", "--tasks", "no_such_task"])
    assert ended.value.code == 2
    assert "tasks='no_such_task': " in capsys.readouterr().err


def test_without_a_network_a_task_of_the_hub_is_refused_before_a_model_is_loaded(
    own_tasks, scored, tmp_path, capsys, monkeypatch
):
    store, view, *_ = scored

    def unreachable(*_, **__):
        raise ConnectionError("Couldn't reach 'owner/questions' on the Hub")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    monkeypatch.setattr(task_scores, "load_view", lambda *_: pytest.fail("a model was loaded"))
    write_task(tmp_path / "tasks", "keepers", 2)
    flags = ["--include-path", str(tmp_path / "tasks"), "--storage", store.root]
    with pytest.raises(SystemExit) as ended:
        main(["eval", view.run_id, "--tasks", "keepers", *flags])
    assert ended.value.code == 2
    assert "tasks='keepers': " in capsys.readouterr().err
    assert load_store(store, measure="tasks").empty
