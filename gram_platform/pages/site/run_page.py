"""Builds the sections of a run's page: state, curves, routes, uses and config."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gram_platform.config import State, core_first
from gram_platform.config.identity import flatten
from gram_platform.pages.report.page import Section, clock, whole
from gram_platform.pages.site.facts import NodeFacts
from gram_platform.pages.site.histories import history_sections, route_sections
from gram_platform.pages.site.words import GIB, columns_of, dollars, fact_table, hours, moment
from gram_platform.tracking.entry import config_steps, node_name


@dataclass(frozen=True)
class RunContext:
    """The studies, evaluations and runs of the storage that use a run."""

    studies: tuple[tuple[str, str, str], ...]  # (title, address from the page, the run's name in it)
    evaluations: tuple[NodeFacts, ...]
    branches: tuple[tuple[str, str], ...]  # (run id, name) of runs that start from it
    mlflow_url: str = ""


def run_title(node: NodeFacts) -> str:
    return f"{node_name('run', node.node_id, node.tags)} ({node.node_id})"


def run_intro(node: NodeFacts) -> str:
    """Writes the run's state as a sentence."""
    total = config_steps(node.config) if node.config else 0
    done = steps_done(node)
    if node.status == State.COMPLETE:
        early = f", stopped early after {done:,} of {total:,} steps" if done < total else f" after {done:,} steps"
        return f"Complete{early}, on {moment(node.timing.get('ended', 0.0))} UTC."
    return f"{node.status.capitalize()}: {done:,} of {total:,} steps, last sign of life {moment(node.changed)} UTC."


def steps_done(node: NodeFacts) -> int:
    """Counts the steps of the result, else up to the last heartbeat or record."""
    if node.result:
        return node.result["num_steps"]
    return max((node.progress or {}).get("step", 0), node.last_step, 0)


def run_sections(node: NodeFacts, context: RunContext, records: Sequence[Mapping]) -> list[Section]:
    """Builds all sections, without unknown facts; few remain if the config is corrupted."""
    sections = [*_failure(node), Section("Summary", table=_summary(node, context), table_is_open=True)]
    sections += history_sections(records)
    if node.config:
        sections += route_sections(node.config, steps_done(node))
    sections += [*_evaluations(context.evaluations), *_branches(context), _resources(node)]
    fields = sorted(flatten(node.config).items())
    config = {"field": [name for name, _ in fields], "value": [str(value) for _, value in fields]}
    return [*sections, Section("Config", table=config, table_is_open=True)]


def _failure(node: NodeFacts) -> list[Section]:
    if node.status != State.FAILED:
        return []
    return [Section("Failed", str((node.failure or {}).get("message", "no reason is recorded")), is_warning=True)]


def _summary(node: NodeFacts, context: RunContext) -> dict[str, list]:
    result, timing, tags = node.result or {}, node.timing, node.tags
    start = (node.config.get("start") or {}).get("run_id", "")
    rate = timing.get("tokens_per_second") or (node.progress or {}).get("tokens_per_second")
    rows = [(key, tags.get(key, ""), "") for key in ("method", "size", "profile", "seed", "variant")]
    rows += [("attacked for", tags.get("elicited", ""), "")]
    rows += [("study", f"{title}: {name}", address) for title, address, name in context.studies]
    rows += [
        ("starts from", start, f"{start}.html"),
        ("steps", whole(steps_done(node)), ""),
        ("tokens", whole(result.get("num_tokens")), ""),
        ("parameters", whole(result.get("parameters")), ""),
        ("compute units", _power(result.get("compute_units")), ""),
        ("hardware FLOPs", _power(result.get("hardware_flops")), ""),
        ("trained for (h:mm:ss)", clock(timing.get("elapsed_s")), ""),
        ("tokens a second", whole(rate), ""),
        ("in MLflow", "its page" if context.mlflow_url else "", context.mlflow_url),
    ]
    return fact_table(rows)


def _power(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"


def _evaluations(evaluations: Sequence[NodeFacts]) -> list[Section]:
    """Lists the run's views with their loss on every domain; other measurements are on their studies' pages."""
    evaluations = [node for node in evaluations if "losses" in (node.result or {})]
    if not evaluations:
        return []
    domains = core_first(tuple({domain for node in evaluations for domain in node.result["losses"]}))
    rows = []
    for node in evaluations:
        losses, weights = node.result["losses"], node.config.get("view", {}).get("weights", ())
        active = ", ".join(f"{domain} x {weight:g}" for domain, weight in weights)
        row = {"eval_id": node.node_id, "profile": node.tags.get("profile", ""), "active modules": active or "none"}
        rows.append({**row, **{f"loss {domain}": losses.get(domain, float("nan")) for domain in domains}})
    text = "Losses of this run's views on validation data, nats a token."
    return [Section("Evaluations", text, table=columns_of(rows), table_is_open=True)]


def _branches(context: RunContext) -> list[Section]:
    if not context.branches:
        return []
    rows = [{"run_id": run_id, "run_id_url": f"{run_id}.html", "run": name} for run_id, name in context.branches]
    return [Section("Runs that start from it", table=columns_of(rows), table_is_open=len(rows) < 10)]


def _resources(node: NodeFacts) -> Section:
    timing, attempts = node.timing, node.attempts
    interrupted = sum(attempt.outcome == State.INTERRUPTED for attempt in attempts)
    peak = timing.get("peak_memory_bytes")
    price = node.dollars_per_hour
    known = [
        f"{len(attempts)} attempt{'s' * (len(attempts) != 1)}, {interrupted} of them interrupted",
        f"device {timing['device']}" if "device" in timing else "",
        f"{timing['num_ranks']} rank(s) of {timing['num_threads']} thread(s)" if "num_ranks" in timing else "",
        f"at most {peak / GIB:.2f} GiB of memory on rank 0" if peak else "",
        f"{hours(node.rank_hours)} rank hours" if hours(node.rank_hours) else "",
        f"{dollars(node.seconds / 3600 * price)} at the planner's price" if price is not None else "",
        f"{clock(timing['evaluation_s'])} of it evaluating" if "evaluation_s" in timing else "",
    ]
    table = columns_of([vars(attempt) for attempt in attempts])
    text = "; ".join(part for part in known if part) + "."
    return Section("Attempts and resources", text[:1].upper() + text[1:], table=table, table_is_open=True)
