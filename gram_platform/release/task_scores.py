"""Scores views on tasks of the LM Evaluation Harness, and stores the scores as evaluations.

On multiple-choice questions, small models are often no better than guessing, whatever they know. So
scores also contain the accuracy of guessing and the bits per byte of the right answers.
"""

import hashlib
import importlib.util
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from gram_platform.config import TaskScores, View, run_from_plain
from gram_platform.config.identity import hash_file, invalid, local_path, suggest, sum_in_order
from gram_platform.corpora.tokenizer import load_tokenizer
from gram_platform.release.selection import AvailableModules
from gram_platform.store import Store
from gram_platform.store.data import open_corpus
from gram_platform.store.directories import SOURCE_HASHES
from gram_platform.store.views import load_view

if TYPE_CHECKING:
    from lm_eval.api.task import Task
    from lm_eval.tasks import TaskManager

NOT_OF_TASKS = re.compile(r"\..*|__pycache__|.*\.pyc|.*~|#.*#")
# A YAML file's field `include`, on one or more lines.
INCLUDES = re.compile(r"^include:(.*(?:\n[ \t-].*)*)", re.MULTILINE)
INCLUDED_NAMES = re.compile(r"[^\s\[\],\"']+")
# The half-width of a 90% interval in standard errors.
LEVEL = 1.645
# The harness's accuracies, in order of preference.
ACCURACIES = ("acc_norm", "acc")
AT_CHANCE, ABOVE, BELOW = "cannot tell from guessing", "above chance", "below chance"
SCORE_COLUMNS = ["profile", "task", "documents", "accuracy", "low", "high", "chance", "verdict"]
SCORE_COLUMNS += ["bits_per_byte"]


@dataclass(frozen=True)
class Benchmark:
    """The tasks to run, and how their questions are asked."""

    tasks: tuple[str, ...]
    # A folder with the user's task files, or "".
    folder: str = ""
    num_fewshot: int = -1
    limit: int = 0

    def validate(self) -> "Benchmark":
        """Returns the benchmark with an absolute folder path.

        Raises ValueError if lm-eval is not installed, a task is unknown or the folder is missing.
        """
        if importlib.util.find_spec("lm_eval") is None:
            raise invalid(
                "tasks",
                ", ".join(self.tasks),
                "an installed lm-eval: pip install 'gram-platform[eval]'",
            )
        from lm_eval.tasks import TaskManager

        folder = self.folder and os.path.realpath(local_path("include_path", self.folder))
        if folder and not Path(folder).is_dir():
            raise invalid("include_path", self.folder, "a folder with task files (.yaml)")
        names = TaskManager(include_path=folder or None).all_tasks
        for task in self.tasks:
            if task not in names:
                expected = f"one of the {len(names):,} tasks of lm-eval, or of --include-path"
                raise invalid("tasks", task, expected + suggest(task, names))
        return replace(self, folder=folder)


def contents_sha256(folder: Path, tasks: Iterable["Task"]) -> str:
    """Hashes a folder of task files. Raises ValueError if a file is unreadable.

    The hash covers the folder's files. Outside the folder, it covers files that a YAML file
    includes, and documents that tasks generate or read from local files. It covers no Python
    modules there.
    """
    try:
        own, outside = folder_sha256(folder), [hash_file(path) for path in _find_included(folder)]
    except OSError as error:
        raise invalid("include_path", str(folder), f"files that can be read ({error})") from None
    outside += [_documents_sha256(task) for task in tasks if _reads_elsewhere(task, folder)]
    return hashlib.sha256("\n".join([own, *outside]).encode()).hexdigest() if outside else own


def folder_sha256(folder: Path) -> str:
    """Hashes the names and contents of a folder's files. Skips hidden and generated files."""
    digest = hashlib.sha256()
    for path in _files(folder):
        digest.update(f"{path.relative_to(folder).as_posix()} {hash_file(path)}\n".encode())
    return digest.hexdigest()


def _files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(map(NOT_OF_TASKS.fullmatch, path.relative_to(folder).parts))
    ]


def _find_included(folder: Path) -> list[Path]:
    pending, outside = [path for path in _files(folder) if path.suffix == ".yaml"], set[Path]()
    while pending:
        path = pending.pop()
        names = " ".join(INCLUDES.findall(path.read_text(encoding="utf-8", errors="replace")))
        for name in INCLUDED_NAMES.findall(names):
            new = Path(os.path.realpath(path.parent / name))
            if new.is_file() and not new.is_relative_to(folder) and new not in outside:
                outside.add(new)
                pending.append(new)
    return sorted(outside)


def _reads_elsewhere(task: "Task", folder: Path) -> bool:
    config = task.config
    options = getattr(config, "dataset_kwargs", None) or {}
    values = [options[key] for key in ("data_files", "data_dir") if options.get(key)]
    paths = [Path(text) for text in _strings(values) if "://" not in text]
    source = Path(str(getattr(config, "dataset_path", None)))
    paths += [source] if source.exists() else []
    is_inside = all(Path(os.path.realpath(path)).is_relative_to(folder) for path in paths)
    return callable(getattr(config, "custom_dataset", None)) or not is_inside


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)


def _documents_sha256(task: "Task") -> str:
    digest = hashlib.sha256()
    for split, documents in sorted(task.dataset.items()):
        digest.update(f"{split}\n".encode())
        for document in documents:
            digest.update(json.dumps(document, sort_keys=True, default=str).encode() + b"\n")
    return digest.hexdigest()


def parse_profile(available: AvailableModules, name: str) -> View:
    """Returns the view of a profile such as `core`, `core+virology` or `all`."""
    core, *modules = ("core", *available.modules) if name == "all" else name.split("+")
    if core != "core":
        raise invalid(
            "profiles",
            name,
            "all, core, or core+MODULE+..., with modules " + ", ".join(available.modules),
        )
    if not available.has_core:
        raise invalid(
            "run_id",
            available.run_id,
            "a run with a core: this one has an expert for each domain; export one",
        )
    return available.view(dict.fromkeys(modules, 1.0), {})


def score_profiles(
    store: Store,
    profiles: Mapping[str, View],
    benchmark: Benchmark,
    device: str,
    precision: str,
    say: Callable[[str], None],
) -> pd.DataFrame:
    """Scores each view that has no stored scores. Returns one row per profile and task.

    `low` and `high` bound the accuracy's 90% interval over documents. Raises ValueError if a task
    cannot be built or scored, or if the run's data is missing.
    """
    rows, manager, files_sha256 = [], None, ""
    if benchmark.folder:
        manager, tasks = _loadable(benchmark)
        files_sha256 = contents_sha256(Path(benchmark.folder), tasks)
    for name, view in profiles.items():
        started = time.monotonic()
        run = store.run(view.run_id).config_as(run_from_plain)
        scores = TaskScores(
            view,
            run.data.data_id,
            benchmark.tasks,
            version("lm_eval"),
            files_sha256,
            benchmark.num_fewshot,
            benchmark.limit,
            precision,
        )
        directory = store.evaluation(scores.eval_id)
        when = "before"
        if (result := store.current_result(directory)) is None:
            manager = manager or _loadable(benchmark)[0]
            directory.ensure_config(scores)
            tags = {"profile": name, "measure": TaskScores.measure, "kind": "evaluation"}
            directory.add_tags({**store.run(view.run_id).tags(), **tags})
            fields = _score(store, scores, manager, device)
            store.set_outdated_aside(directory)
            elapsed_s = time.monotonic() - started
            result = directory.complete(fields, {"elapsed_s": elapsed_s})
            when = f"in {elapsed_s:.0f} s"
        say(f"{name}: scored {when} (evaluation {scores.eval_id})")
        for task, fields in result["tasks"].items():
            rows.append({"profile": name, "task": task, **_judge(fields)})
    return pd.DataFrame(rows, columns=SCORE_COLUMNS)


def _loadable(benchmark: Benchmark) -> tuple["TaskManager", list["Task"]]:
    from lm_eval.tasks import TaskManager, get_task_dict

    manager, built = TaskManager(include_path=benchmark.folder or None), []
    for name in benchmark.tasks:
        try:
            tasks = list(_leaves(get_task_dict([name], manager)))
        except OSError as error:
            # Connection errors are OSErrors.
            allowed = "a network for the hub's documents, or --include-path with local documents"
            raise invalid("tasks", name, f"{allowed} ({type(error).__name__}: {error})") from error
        except Exception as error:
            raise invalid(
                "tasks", name, f"a task that can be built ({type(error).__name__}: {error})"
            ) from error
        if any(task.OUTPUT_TYPE == "generate_until" for task in tasks):
            raise invalid(
                "tasks",
                name,
                "a task that generates no text: export the profile for `lm_eval --model hf`",
            )
        built += tasks
    return manager, built


def _leaves(tasks: Mapping) -> Iterator["Task"]:
    for task in tasks.values():
        yield from _leaves(task) if isinstance(task, Mapping) else [task]


def _score(store: Store, scores: TaskScores, manager: "TaskManager", device: str) -> dict:
    import lm_eval

    from gram_platform.release.harness_model import HarnessModel

    corpus, sources = open_corpus(store, scores.data_id), store.source_weights(scores.view)
    _, model = load_view(store, scores.view, scores.precision)
    tokenizer = load_tokenizer(corpus.tokenizer_path)
    evaluated = lm_eval.simple_evaluate(
        HarnessModel(model.to(device), dict(scores.view.weights), tokenizer),
        tasks=list(scores.tasks),
        num_fewshot=None if scores.num_fewshot < 0 else scores.num_fewshot,
        limit=scores.limit or None,
        task_manager=manager,
    )
    ids = {"eval_id": scores.eval_id, "run_id": scores.view.run_id, "view_id": scores.view.view_id}
    tasks = {
        task: task_fields(evaluated["results"][task], samples)
        for task, samples in evaluated["samples"].items()
    }
    return {"tasks": tasks, **ids, "data_fingerprint": corpus.fingerprint, SOURCE_HASHES: sources}


def task_fields(metrics: Mapping[str, object], samples: Sequence[Mapping]) -> dict[str, float]:
    """Returns a task's metrics, standard errors, number of documents and `answers(samples)`.

    `metrics` (such as `{"acc,none": 0.5}`) and `samples` (one or more records per document) are
    outputs of the harness.
    """
    numbers = ((key, value) for key, value in metrics.items() if isinstance(value, float))
    fields = {key.removesuffix(",none"): float(value) for key, value in numbers}
    fields["documents"] = float(len({sample["doc_id"] for sample in samples}))
    return fields | answers(samples)


def answers(samples: Sequence[Mapping]) -> dict[str, float]:
    """Returns `chance`, the accuracy of guessing, and `bits_per_byte` of the right answers.

    Returns {} if the task is not multiple choice.
    """
    bits, num_bytes, chances = 0.0, 0, []
    for sample in samples:
        choices, right = sample["arguments"], sample["target"]
        is_choice = isinstance(right, int) and 0 <= right < len(choices)
        if not is_choice or len(choices[right]) != 2 or len(choices) < 2:
            return {}
        log_likelihood = sample["filtered_resps"][right][0]
        bits -= log_likelihood / math.log(2.0)
        num_bytes += len(choices[right][1].encode())
        chances.append(1.0 / len(choices))
    if not num_bytes:
        return {}
    return {"chance": sum_in_order(chances) / len(chances), "bits_per_byte": bits / num_bytes}


def _judge(fields: Mapping[str, float]) -> dict[str, object]:
    row = {
        "documents": int(fields["documents"]),
        "bits_per_byte": fields.get("bits_per_byte", math.nan),
    }
    name = next((name for name in ACCURACIES if name in fields), "")
    if not name:
        return row
    accuracy, error = fields[name], fields.get(f"{name}_stderr", math.nan)
    low, high = accuracy - LEVEL * error, accuracy + LEVEL * error
    chance = fields.get("chance", math.nan)
    row |= {"accuracy": accuracy, "low": low, "high": high, "chance": chance}
    if "chance" in fields:
        row["verdict"] = ABOVE if low > chance else BELOW if high < chance else AT_CHANCE
    return row
