"""The nodes of a search as the frames that tables are made of: from one trial's results, or from all that is stored."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import pandas as pd

from gram_platform.analysis.ratios import ATTACK_COLUMNS, ELICITED, PREFIX, VIEW
from gram_platform.analysis.trials import COMPLETE, DIVERGED, FAILED, RUNNING, WAITING
from gram_platform.engine.life import is_divergence
from gram_platform.methods.nodes import Node
from gram_platform.pages.results.results import load_frames
from gram_platform.store import Store
from gram_platform.studies.searches.definition import Scene
from gram_platform.tracking.frame import load_store_curves

BEST_LOSS = "final/best/loss/"  # + domain, of attacks


def frames(
    scene: Scene, store: Store, ids: Collection[str], baseline_runs: Sequence[str]
) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """(frame of these nodes, the curves of these runs, where they were read): MLflow, or the run directories and why.

    The frame is `analysis.frame.load_runs`'s: every run that was begun, every evaluation that is complete.
    """
    return load_frames(ids, baseline_runs, store, scene.flags.tracking_uri)


def result_frame(nodes: Iterable[Node], results: Mapping[str, Mapping]) -> pd.DataFrame:
    """Results by node id in the columns of the stored frame that `view_frame` and `attack_frame` read."""
    rows = []
    for node in nodes:
        result, is_run = results[node.id], node.is_run
        losses = {f"final/{name}": value for name, value in result["final"].items()} if is_run else {}
        losses |= {} if is_run else {PREFIX + domain: value for domain, value in result["losses"].items()}
        run_id = node.id if is_run else node.config.view.run_id
        rows.append({"id": node.id, "run_id": run_id, "status": COMPLETE, **losses})
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=["id", "run_id", "status"])


def declared_frame(nodes: Iterable[Node]) -> pd.DataFrame:
    """Every view that the nodes evaluate: `id, method, size, seed, profile, retained`."""
    rows = [{"id": node.id, **node.names} for node in nodes if not node.is_run]
    return pd.DataFrame(rows, columns=["id", *VIEW, "retained"])


def view_frame(nodes: Iterable[Node], frame: pd.DataFrame) -> pd.DataFrame:
    """The evaluations that are complete in a stored frame, under the nodes' names: as `tables.analyse` takes them."""
    complete = frame[frame["status"] == COMPLETE]
    losses = [name for name in frame.columns if name.startswith(PREFIX)]
    return declared_frame(nodes).merge(complete[["id", "run_id", *losses]], on="id")


def attack_frame(nodes: Iterable[Node], frame: pd.DataFrame) -> pd.DataFrame:
    """Every attack among the nodes as `tables.analyse` takes it; the loss is NaN where there is no result."""
    rows = [{"run_id": node.id, **node.names} for node in nodes if node.is_attack]
    complete = frame[frame["status"] == COMPLETE].set_index("id")
    best = {name.removeprefix(BEST_LOSS): complete[name] for name in complete if name.startswith(BEST_LOSS)}
    for row in rows:
        row["loss"] = best.get(row[ELICITED], {}).get(row["run_id"], float("nan"))
    return pd.DataFrame(rows, columns=[*ATTACK_COLUMNS, "run_id"]).astype({"loss": float})


def curve_frame(nodes: Iterable[Node], curves: pd.DataFrame) -> pd.DataFrame:
    """The points of these runs' validation curves with `method, size, seed`: as `tables.analyse` takes them."""
    columns = ["run_id", "method", "size", "seed"]
    runs = pd.DataFrame([{"run_id": n.id, **n.names} for n in nodes if n.is_run], columns=columns)
    return curves.merge(runs, on="run_id")


def baseline_frames(store: Store, nodes: Sequence[Node]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(evaluations, curves) of the baselines that are complete in the storage: what compute ratios stand on."""
    results = {n.id: store.evaluation(n.id).result() for n in nodes if not n.is_run}
    done = [node for node in nodes if results.get(node.id) is not None]
    evaluations = view_frame(done, result_frame(done, results))
    return evaluations, curve_frame(nodes, load_store_curves(store, [n.id for n in nodes if n.is_run]))


def trial_state(nodes: Iterable[Node], frame: pd.DataFrame, store: Store) -> tuple[str, str]:
    """(state, message) of a trial: complete, diverged or failed and why, running, or waiting."""
    complete = set(frame.loc[frame["status"] == COMPLETE, "id"])
    left = [node for node in nodes if node.id not in complete]
    if not left:
        return COMPLETE, ""
    begun = [store.run(node.id) for node in left if node.is_run]
    for run in begun:
        if run.status() == "failed":
            failure = run.failure() or {}
            return DIVERGED if is_divergence(failure) else FAILED, str(failure.get("message", ""))
    return (RUNNING if any(run.status() == "running" for run in begun) else WAITING), ""
