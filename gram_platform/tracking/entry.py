"""Describes a node for MLflow by a name, tags, parameters and metrics from the storage.

A study's tags keep their names, but each character that MLflow rejects becomes `:<hex>:`. The
platform's own tags begin with `gram.`. Losses are named `loss/<domain>`, so that MLflow's run page
draws them before `train/...`. A curve of a training metric has about a hundred points, because more
points slow down MLflow's pages. Curves of validation losses have all points.
"""

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from mlflow.entities import Metric

from gram_platform.config import RunConfig, State, node_from_plain
from gram_platform.config.identity import canonical_json, metric_name, to_plain
from gram_platform.config.plain import parse_json
from gram_platform.config.terminal import warn
from gram_platform.methods.budgets import plan_compute_units
from gram_platform.methods.nodes import node_name
from gram_platform.store import EvaluationDirectory, RunDirectory
from gram_platform.store.checkpoints import BEST, NORM, PROGRESS, VALIDATION
from gram_platform.store.runs import SIZES, TIMES
from gram_platform.tracking.values import (
    LONGEST_NAME,
    is_short_name,
    milliseconds,
    text_for_people,
    unescape,
    whole_tags,
)

KIND, STATUS, RESULT = "gram.kind", "gram.status", "gram.result"
RUN_ID, EVAL_ID = "gram.run_id", "gram.eval_id"
VIEW_ID, VIEW_RUN = "gram.view_id", "gram.view_run_id"
MIRRORED_STEP, SENDING_STEP, FAILURE = "gram.mirrored_step", "gram.sending_step", "gram.failure"
# The code that trained or measured. MLflow's pages link the commit.
CODE, COMMIT = "gram.code", "mlflow.source.git.commit"
# MLflow shows these as a run's description, name and colour.
NOTE, NAME, RUN_COLOUR = "mlflow.note.content", "mlflow.runName", "mlflow.runColor"
ID_TAGS = {"run": RUN_ID, "evaluation": EVAL_ID}
MLFLOW_STATUS = {State.COMPLETE: "FINISHED", State.FAILED: "FAILED", State.RUNNING: "RUNNING"}
MLFLOW_STATUS |= {State.INTERRUPTED: "KILLED"}

# A domain follows. Surprisals are of the drawn tokens.
LOSS, BEST_LOSS, SURPRISAL = "loss/", "loss_at_best/", "surprisal/"
# Prefixes of the storage in MLflow and in frames.
SHOWN = {VALIDATION: LOSS, PROGRESS: LOSS, BEST: BEST_LOSS}
# A parameter of a run. If it is 0, `loss/` is of progress evaluations, and no frame has it.
NUM_EVAL_POINTS = "num_eval_points"
TASK = "task/"
EVALUATION_PARAMS = ("data_id", "num_sequences", "split", "precision")
EVALUATION_PARAMS += ("num_prompt_tokens", "num_tokens", "temperature", "seed")
# What a run has used up to a step.
TOKENS, COMPUTE = "train/tokens", "train/compute_units"
# Names in frames of a run's last values.
AT_END = {TOKENS: "num_tokens", COMPUTE: "compute_units"}
STUDY, STUDY_ID = "gram.study", "gram.study_id"
# A dot and a search follow. The value lists the trials of the search that use a run.
SEARCH = "gram.search"
PARENT = "mlflow.parentRunId"
NUM_CURVE_POINTS = 100


@dataclass(frozen=True)
class NodeEntry:
    """A node as MLflow shows it. `result_metrics` is empty while the node has no result."""

    kind: str
    node_id: str
    name: str
    status: State
    tags: Mapping[str, str]
    params: Mapping[str, str]
    result_metrics: Mapping[str, float] = field(default_factory=dict)
    # The id of the run that an evaluation measures or an attack starts from.
    parent: str = ""
    config: RunConfig | None = None
    last_step: int = -1
    ended_ms: int = 0

    @property
    def num_steps(self) -> int:
        return self.config.num_steps if self.config else 0


def rename_metric(name: str) -> str:
    """Translates a metric's name in the storage to its name in MLflow and in data frames."""
    prefix = next(filter(name.startswith, SHOWN), "")
    return SHOWN.get(prefix, "") + name.removeprefix(prefix)


def node_entry(node: RunDirectory | EvaluationDirectory) -> NodeEntry | None:
    """Describes a node. Returns None with a warning if the node's config is damaged.

    Also returns None for a run that was never started, and for an evaluation without a result.
    """
    is_run, kind, node_id = isinstance(node, RunDirectory), node.kind, node.node_id
    status = node.status() if is_run else State.COMPLETE
    result = None if status == State.ABSENT else node.result()
    if status == State.ABSENT or (result is None and not is_run):
        return None
    try:
        config = node.config_as(lambda plain: node_from_plain(kind, plain))
    except ValueError as error:
        left_out = f"{kind} {node_id} is left out until it is submitted again"
        warn(f"{left_out}: {error}", stacklevel=2)
        return None
    result, timing, tags, plain = result or {}, node.timing(), node.tags(), to_plain(config)
    name, about = run_name(kind, node_id, tags), {KIND: kind, ID_TAGS[kind]: node_id}
    if is_run:
        message = (node.failure() or {}).get("message", "") if status == State.FAILED else ""
        about[FAILURE] = text_for_people(message, 500)
        note, params = run_note(config, node), run_params(config, plain)
        parent = config.start.run_id if config.start and "elicited" in tags else ""
        if status == State.COMPLETE and node.has_weights():
            storage = shlex.quote(node.folder.path.rsplit("/", 2)[0])
            modules = shlex.quote(",".join(config.model.module_domains))
            command = f"gram export {node_id} --modules {modules} --out DIR --storage {storage}"
            note += f"\n\nAs a model: `{command}`."
    else:
        about |= {VIEW_ID: config.view.view_id, VIEW_RUN: config.view.run_id}
        note, parent = evaluation_note(plain), config.view.run_id
        params = {key: plain[key] for key in EVALUATION_PARAMS if key in plain}
        params["view"] = canonical_json(plain["view"])
    about |= {NOTE: text_for_people(note), NAME: name, STATUS: status.value}
    about |= code_tags(timing.get("code", ""))
    return NodeEntry(
        kind,
        node_id,
        name,
        status,
        tags=study_tags(tags, result.get("sha256", "")) | about,
        params={key: text_for_people(str(value)) for key, value in params.items()},
        result_metrics=(run_metrics if is_run else evaluation_metrics)(result, timing),
        parent=parent,
        config=config if is_run else None,
        last_step=node.last_step() if is_run else -1,
        ended_ms=milliseconds(timing.get("ended", 0.0)),
    )


def code_tags(code: object) -> dict[str, str]:
    """Returns the tags for the code version `code`. If `code` is "" or not a string, returns {}."""
    if not isinstance(code, str) or not code:
        return {}
    kind, _, name = code.partition(" ")
    commit = {COMMIT: text_for_people(name)} if kind == "commit" else {}
    return {CODE: text_for_people(code), **commit}


def run_name(kind: str, node_id: str, tags: Mapping[str, str]) -> str:
    return text_for_people(node_name(kind, node_id, tags), LONGEST_NAME)


def run_note(config: RunConfig, run: RunDirectory) -> str:
    tokens = config.batch_size * config.model.seq_len
    drawn = ", ".join(f"{d.name} ({d.num_draws:,})" for d in config.data.domains)
    modules = ", ".join(f"{m.domain} ({m.kind}, {m.width} wide)" for m in config.model.modules)
    start = f"the weights of run `{config.start.run_id}`" if config.start else f"seed {config.seed}"
    parts = [
        f"{config.num_steps:,} steps of {tokens:,} tokens from {start}. Sequences drawn: {drawn}.",
        f"Modules: {modules}." if modules else "No modules: a dense model.",
        f"The whole config and every record: `{run.folder.path}`.",
    ]
    return "\n\n".join(parts)


def evaluation_note(config: Mapping) -> str:
    view = config["view"]
    num_sequences = config.get("num_sequences", len(config.get("documents", ())))
    active = ", ".join(f"{domain} x {weight:g}" for domain, weight in view["weights"]) or "none"
    where = f"{num_sequences:,} {config.get('split', 'validation')} sequences of each domain"
    where = "given prompts" if "documents" in config and config.get("texts") else where
    measured = (
        f"Continuations of {where}" if "documents" in config else f"Losses on {where}, nats a token"
    )
    if "tasks" in config:
        measured = f"Tasks of lm-eval {config['harness']}: {', '.join(config['tasks'])}"
    return f"{measured}. View of run `{view['run_id']}`; modules switched on: {active}."


def run_params(run: RunConfig, config: Mapping) -> dict[str, object]:
    """Returns the config fields that distinguish runs. `config` is the JSON form of `run`."""
    model, routing, optimizer = config["model"], config["routing"], config["optimizer"]
    of_run = ("batch_size", "micro_batch", "seed", "precision", "objective")
    of_model = ("num_layers", "d_model", "d_mlp", "vocab_size", "seq_len")
    of_optimizer = ("peak_lr", "warmup_fraction", "decay_fraction", "weight_decay")
    params = {key: config[key] for key in of_run} | {key: model[key] for key in of_model}
    params |= routing | {key: optimizer[key] for key in of_optimizer}
    modules = (f"{m['domain']}:{m['kind']}:{m['width']}" for m in model["modules"])
    sequences = (f"{d['name']}:{d['num_draws']}" for d in config["data"]["domains"])
    params |= {"modules": " ".join(modules), "sequences": " ".join(sequences)}
    params |= {"data_id": config["data"]["data_id"], "num_steps": run.num_steps}
    params[NUM_EVAL_POINTS] = config["eval_points"]["num_points"]
    return params | {"start": canonical_json(config["start"]) if run.start else ""}


def run_metrics(result: Mapping, timing: Mapping) -> dict[str, float]:
    """Returns the sizes, costs, times and losses of a complete run, or {} if `result` is empty."""
    if not result:
        return {}
    values = {key: result[key] for key in SIZES if key in result}
    values |= {key: timing[key] for key in TIMES if key in timing}
    final = result.get("final", {}).items()
    values |= {name: loss for name, loss in final if name.startswith(tuple(SHOWN))}
    metrics = {rename_metric(name): float(value) for name, value in values.items()}
    return last_as_best(metrics) | metrics


def last_as_best(metrics: Mapping[str, float]) -> dict[str, float]:
    """Returns `loss/...` as `loss_at_best/...`. Used if a result has no best losses."""
    return {
        BEST_LOSS + name.removeprefix(LOSS): loss
        for name, loss in metrics.items()
        if name.startswith(LOSS)
    }


def evaluation_metrics(result: Mapping, timing: Mapping) -> dict[str, float]:
    """Returns the losses, surprisals or scores of an evaluation, and its times."""
    values = {LOSS + domain: loss for domain, loss in result.get("losses", {}).items()}
    values |= {SURPRISAL + domain: mean for domain, mean in result.get("surprisals", {}).items()}
    for task, scores in result.get("tasks", {}).items():
        values |= {f"{TASK}{task}/{name}": score for name, score in scores.items()}
    values |= {key: timing[key] for key in TIMES if key in timing}
    return {name: float(value) for name, value in values.items()}


def curve_metrics(records: Iterable[Mapping], entry: NodeEntry, after_step: int) -> list[Metric]:
    """Converts the records after step `after_step` to MLflow's metrics.

    Keeps all losses, but training metrics only at the last step and at about a hundred other steps.
    Skips metrics named `norm/...` and names that are too long for MLflow.
    """
    run, metrics, stride = entry.config, [], max(1, entry.num_steps // NUM_CURVE_POINTS)
    for record in (record for record in records if record["step"] > after_step):
        step, measured, time_ms = record["step"], record["metrics"], milliseconds(record["time"])
        kept = step % stride == 0 or step == entry.num_steps
        losses = (VALIDATION, PROGRESS)
        names = [n for n in measured if n.startswith(losses) or (kept and not n.startswith(NORM))]
        values = {metric_name(rename_metric(name)): measured[name] for name in names}
        if names:
            tokens = step * run.batch_size * run.model.seq_len
            values |= {TOKENS: tokens, COMPUTE: plan_compute_units(run, step)}
        metrics += [
            Metric(key, float(value), time_ms, step)
            for key, value in values.items()
            if is_short_name(key)
        ]
    return metrics


def result_metrics(entry: NodeEntry, records: Iterable[Mapping]) -> list[Metric]:
    """Returns the result's metrics whose values differ from the last values of the curves.

    Each metric gets the run's last step and end time.
    """
    curves = {name: key for key, name in AT_END.items()}
    values = {curves.get(name, name): value for name, value in entry.result_metrics.items()}
    values.pop("num_steps", None)
    known = {unescape(metric.key): metric.value for metric in curve_metrics(records, entry, -1)}
    known |= last_as_best(values)
    new = {metric_name(name): value for name, value in values.items() if known.get(name) != value}
    return [
        Metric(key, value, entry.ended_ms, entry.num_steps)
        for key, value in new.items()
        if is_short_name(key)
    ]


def start_ms(records: Sequence[Mapping], entry: NodeEntry, now_s: float) -> int:
    """Returns the first record's time in Unix milliseconds.

    If there are no records, returns the node's end (or `now_s`) minus `elapsed_s`.
    """
    if records:
        return milliseconds(records[0]["time"])
    elapsed_s = entry.result_metrics.get("elapsed_s", 0.0)
    return (entry.ended_ms or milliseconds(now_s)) - milliseconds(elapsed_s)


class Start(TypedDict):
    run_id: str


def read_parent(tags: Mapping[str, str], params: Mapping[str, str]) -> str | None:
    """Reads the id of a node's parent (`NodeEntry.parent`) from the node's MLflow run.

    Returns "" if the node has no parent, and None if the id cannot be read.
    """
    start = params.get("start", "") if "elicited" in tags else ""
    if (run_id := tags.get(VIEW_RUN)) or not start:
        return run_id or ""
    try:
        return parse_json(start, Start)["run_id"]
    except ValueError:
        return None


def study_tags(tags: Mapping[str, str], sha256: str) -> dict[str, str]:
    return {**whole_tags(tags), RESULT: sha256}
