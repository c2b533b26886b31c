"""A storage with two studies that share runs, a search, and nodes in every state, through the
store's real code."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go

from gram_platform.analysis.trials import best_lines
from gram_platform.config import Evaluation, RunConfig, View
from gram_platform.config.provenance import submissions_text
from gram_platform.config.space import TrialColumns
from gram_platform.pages.figures.style import with_table
from gram_platform.pages.index import draw_trials
from gram_platform.pages.report.measurements import LOSSES_PRESENTATION
from gram_platform.pages.report.page import Page, Section
from gram_platform.pages.results.record import Card, StudyRecord
from gram_platform.pages.results.results import read_results
from gram_platform.store import Store
from gram_platform.store.checkpoints import NORM
from tests import study_frames as frames
from tests.tiny import DOMAINS, run_config

# Whose planted curve each domain has.
PLANTED_DOMAIN = dict(zip(DOMAINS, frames.DOMAINS, strict=True))
PROFILES = {
    "core": (),
    "core+lisp": ("lisp",),
    "core+virology": ("virology",),
    "all": ("lisp", "virology"),
}
VIEWS = {"baseline": ("all",), "gram": tuple(PROFILES), "filtering": ("core+lisp",)}
SETS = ("shared", "core_mlp", "module:lisp", "module:virology")
HOSTILE = 'loss is <b>nan</b> </script><script>alert("x")</script>'
FIRST_TIME = 1.7e9
# An error of the unit.
SMALL = {"ratio": 0.01, "difference": 0.01}
SUBMITTED = {
    "started": "2026-11-26T10:00:00+00:00",
    "command": "python experiments/scaling.py --preset demo",
    "commit": "0123456789ab",
    "sources": "ba9876543210",
    "upload": "",
    "versions": {"Python": "3.11.7"},
    "machine": "1 machine",
    "node_hours": 1.5,
}
MISSING_ID = "0" * 12


class PlantedStorage:
    """Writes nodes with planted losses, and keeps their entries in a study's order."""

    def __init__(self, root: Path, num_steps: int = 12):
        self.store = Store(root).open_for_writing(min_free_bytes=0)
        self.num_steps = num_steps
        self.entries: list[dict] = []
        self.num_runs = 0

    def plant(
        self, sizes: Sequence[str], seeds: Sequence[str], methods: Sequence[str] = tuple(VIEWS)
    ) -> None:
        """Every method at every size and seed, complete and evaluated."""
        for method in methods:
            for size in sizes:
                for seed in seeds:
                    run_id = self.complete_run(method, size, seed)
                    for profile in VIEWS[method]:
                        self.evaluation(run_id, method, size, seed, profile)

    def config(self) -> RunConfig:
        """One that no run has yet."""
        self.num_runs += 1
        draws = tuple(8 * self.num_steps * part // 6 // 8 * 8 for part in (4, 1, 1))
        rest = 8 * self.num_steps - sum(draws)
        return run_config(draws=(draws[0] + rest, *draws[1:]), seed=self.num_runs)

    def tags(
        self, kind: str, node_id: str, method: str, size: str, seed: str, profile: str
    ) -> dict[str, str]:
        retained = ",".join(PROFILES[profile]) if kind == "evaluation" else ""
        tags = {
            "method": method,
            "size": size,
            "seed": seed,
            "profile": profile,
            "retained": retained,
            "kind": kind,
        }
        self.entries.append({"id": node_id, "kind": kind, "tags": tags})
        return tags

    def begun(self, method: str, size: str, seed: str):
        """(the config, the directory) of a new run."""
        run = self.config()
        directory = self.store.run(run.run_id)
        directory.ensure_config(run)
        directory.add_tags(self.tags("run", run.run_id, method, size, seed, "all"))
        return run, directory

    def complete_run(self, method: str, size: str, seed: str) -> str:
        run, directory = self.begun(method, size, seed)
        fields = {
            "num_steps": run.num_steps,
            "num_tokens": run.num_tokens,
            "parameters": 1234,
            "compute_units": 10**9,
        }
        fields |= {
            "hardware_flops": 2 * 10**9,
            "data_fingerprint": "f" * 64,
            "plan_sha256": "a" * 64,
            "final": {},
        }
        records = [record(size, step, run.num_steps) for step in range(1, run.num_steps + 1)]
        machine = {
            "device": "cpu",
            "num_ranks": 1,
            "num_threads": 1,
            "peak_memory_bytes": 2**28,
            "evaluation_s": 0.0,
        }
        with directory.start_attempt("test") as attempt:
            attempt.complete(fields, {}, records, machine)
        return run.run_id

    def failed_run(self, method: str, size: str, seed: str) -> str:
        run, directory = self.begun(method, size, seed)
        with directory.start_attempt("test") as attempt:
            attempt.fail(HOSTILE)
        return run.run_id

    def interrupted_run(self, method: str, size: str, seed: str) -> str:
        """One attempt that committed half of its steps and is gone, and another one that is gone at
        once."""
        run, directory = self.begun(method, size, seed)
        half = run.num_steps // 2
        with directory.start_attempt("test") as attempt:
            attempt.heartbeat(half, run.num_steps, 100.0)
            records = [record(size, step, run.num_steps) for step in range(1, half + 1)]
            attempt.commit(half, {}, {}, records)
        directory.start_attempt("test").release()
        return run.run_id

    def evaluation(self, run_id: str, method: str, size: str, seed: str, profile: str) -> None:
        view = View.of(run_id, dict.fromkeys(PROFILES[profile], 1.0) if method == "gram" else {})
        config = Evaluation(view, "d" * 12, DOMAINS, 4)
        directory = self.store.evaluation(config.eval_id)
        directory.ensure_config(config)
        directory.add_tags(self.tags("evaluation", config.eval_id, method, size, seed, profile))
        losses = {
            domain: loss(size, domain, 1.0, ratio(method, size, seed, profile, domain))
            for domain in DOMAINS
        }
        directory.complete({"losses": losses}, {"elapsed_s": 0.5})

    def study(self, name: str, title: str, entries: Sequence[dict] | None = None) -> StudyRecord:
        """A record of what was planted so far (or of `entries`), in its folder."""
        entries = tuple(self.entries if entries is None else entries)
        sizes = tuple(dict.fromkeys(entry["tags"]["size"] for entry in entries))
        record = StudyRecord(
            name=name,
            title=title,
            question="Does it hold?",
            facts=("Preset tiny.",),
            params={"preset": "tiny"},
            sizes=sizes,
            parameters={size: int(frames.SIZES[size]) for size in sizes},
            profile="core+lisp",
            entries=entries,
            submissions=() if name == "empty" else (SUBMITTED,),
            unit_errors=tuple(
                {"size": size, "class": of_class, "measured_on": "x", **SMALL}
                for size in sizes
                for of_class in ("core", "auxiliary")
            ),
        )
        self.store.study_dir(name).write("study.json", record.to_json())
        return record

    def search(self, name: str) -> None:
        """A search over the runs planted so far, with its own report."""
        trials = pd.DataFrame(
            {"state": "complete", "size": "x", "rate": [1.0, 2.0, 3.0], "loss": [1.5, 1.2, 1.8]}
        )
        columns = TrialColumns(("rate",), ("loss",), ("size",))
        picture = draw_trials(trials, columns)
        card = Card("\n\n".join(best_lines(trials, columns)), "3 trials: 3 complete.", {"agree": 1})
        about = {
            "name": name,
            "title": name,
            "question": "What it asks.",
            "submissions": [SUBMITTED],
        }
        figure = go.Figure(go.Scatter(x=[1, 2], y=[1, 2]), {"title": {"text": "Trials in order"}})
        table = Section(
            "Trials", "All of them.", {"trials": with_table(figure, trials)}, table=trials
        )
        page = Page("A search", "What it asks.", [table], source=submissions_text([SUBMITTED]))
        files = {
            "claims.csv": "claim,verdict\np_cr helps,agree\n",
            "card.svg": picture,
            "report.html": page.html(),
        }
        files["search.json"] = json.dumps({**about, "card": vars(card)})
        for file, text in files.items():
            self.store.study_dir(name).write(file, text.encode())

    def report(self, record: StudyRecord) -> None:
        """The study's files as it writes them itself."""
        LOSSES_PRESENTATION.write(record, self.store, read_results(record, self.store), {}, None)


def ratio(method: str, size: str, seed: str, profile: str, domain: str) -> float:
    """The planted compute ratio of a view on a domain."""
    if method == "baseline":
        return 1.0
    own = domain == "core" or domain in PROFILES[profile]
    return (0.94 if own else 0.7) + 0.01 * (int(seed) % 3) + 0.01 * list(frames.SIZES).index(size)


def loss(size: str, domain: str, share: float, part: float = 1.0) -> float:
    """At a share of a run, of a model that is where the baseline was at `part` of it."""
    return float(frames.loss_at(size, PLANTED_DOMAIN[domain], frames.NUM_STEPS * share * part))


def record(size: str, step: int, num_steps: int) -> dict:
    """As the engine writes it."""
    losses = {domain: loss(size, domain, step / num_steps) for domain in DOMAINS}
    metrics = {
        "train/loss": losses["core"],
        "train/grad_norm": 1.5,
        "train/lr": 1e-3,
        "train/tokens_per_second": 5e4,
    }
    metrics |= {
        f"{kind}/loss/{d}": value for kind in ("train", "validation") for d, value in losses.items()
    }
    metrics |= {
        f"{NORM}{kind}/{name}": 1.0 + step for kind in ("gradient", "weights") for name in SETS
    }
    return {"step": step, "time": FIRST_TIME + step, "metrics": metrics}


def every_state(root: Path) -> PlantedStorage:
    """Two studies of which one has failed, interrupted and missing nodes and shares the other's
    runs, and a search."""
    planted = PlantedStorage(root)
    planted.plant(("tiny", "small"), ("0", "1"))
    scaling = planted.study("scaling", "Scaling <of> sizes")
    planted.search("maxent_search")
    planted.failed_run("gram", "tiny", "2")
    planted.interrupted_run("filtering", "small", "2")
    tags = {"method": "gram", "size": "small", "seed": "2", "profile": "all", "kind": "run"}
    planted.entries.append({"id": MISSING_ID, "kind": "run", "tags": tags})
    stories = planted.study("stories", "Stories with holes")
    nothing = [{"id": "1" * 12, "kind": "run", "tags": {**tags, "method": "baseline"}}]
    planted.study("empty", "A study that has not begun", nothing)
    for record in (scaling, stories):
        planted.report(record)
    return planted
