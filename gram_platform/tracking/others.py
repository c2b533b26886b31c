"""Exports runs and evaluations to other trackers, with the same names and values as in MLflow.

These trackers get the curves and final metrics of nodes. Only MLflow and the storage have compute
ratios, tables, figures and reports. A tracker is a function `write(place, entry, points)`. It
writes one node into the new folder `place`. `points` are the node's metrics, sorted by step.
Installed packages add trackers with the entry point group `gram.trackers`.
"""

import os
import re
import shutil
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from mlflow.entities import Metric
from tensorboardX import SummaryWriter

from gram_platform.config.crash_safe import A_FILE, kind_of
from gram_platform.config.identity import invalid, require_choice, short_hash
from gram_platform.config.plugins import Table
from gram_platform.store import RunDirectory, Store
from gram_platform.tracking import entry as content
from gram_platform.tracking.entry import NodeEntry
from gram_platform.tracking.values import study_of, unescape

# A file next to a node's events. Once these are complete, it has a hash of what they show.
WRITTEN = "written"
# Bytes of a folder's name without the node's id.
MOST_BYTES_OF_NAME = 200


def write_nodes(store: Store, tracker: str, folder: Path) -> dict[str, int]:
    """Writes new and changed nodes for a tracker, each into a subfolder of `folder`.

    Returns {"written": n, "unchanged": n}. Raises ValueError for an unknown tracker, or if the
    tracker's library is missing.
    """
    require_choice("to", tracker, tuple(TRACKERS))
    write = TRACKERS[tracker]
    counts = {"written": 0, "unchanged": 0}
    for node in store.nodes():
        if (entry := content.node_entry(node)) is None:
            continue
        name = re.sub(r"[/\\\s\x00-\x1f\x7f]", "_", entry.name).lstrip(".")
        name = name.encode()[:MOST_BYTES_OF_NAME].decode(errors="ignore")
        place = folder / f"{name}_{entry.node_id}"
        digest = short_hash({"tags": dict(entry.tags), "last_step": entry.last_step})
        mark = place / WRITTEN
        is_written = kind_of(mark) == A_FILE and mark.read_bytes() == digest.encode()
        counts["unchanged" if is_written else "written"] += 1
        if not is_written:
            # If tags have changed, the node's folder has another name.
            for former in folder.glob(f"*_{entry.node_id}"):
                if (former / WRITTEN).exists() and not former.is_symlink():
                    shutil.rmtree(former)
            place.mkdir(parents=True, exist_ok=True)
            mark.touch()
            records = node.records() if isinstance(node, RunDirectory) else []
            points = content.curve_metrics(records, entry, -1)
            points += content.result_metrics(entry, records)
            write(place, entry, sorted(points, key=lambda point: point.step))
            mark.write_text(digest)
    return counts


def _tensorboard(place: Path, entry: NodeEntry, points: Sequence[Metric]) -> None:
    with SummaryWriter(str(place)) as writer:
        for point in points:
            writer.add_scalar(unescape(point.key), point.value, point.step, point.timestamp / 1000)
        writer.add_text("description", entry.tags[content.NOTE])


def _wandb(place: Path, entry: NodeEntry, points: Sequence[Metric]) -> None:
    """Writes a Weights & Biases run with the node's id to the project $WANDB_PROJECT.

    By default the run is written only to `place`, and `wandb sync` uploads it later.
    `WANDB_MODE=online` uploads it immediately.
    """
    try:
        import wandb
    except ImportError as error:
        raise invalid(
            "to", "wandb", "an installed wandb: pip install 'gram-platform[wandb]'"
        ) from error
    quiet = wandb.Settings(
        silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True
    )
    with wandb.init(
        dir=place,
        settings=quiet,
        id=entry.node_id,
        resume="allow",
        project=os.environ.get("WANDB_PROJECT", "gram"),
        mode=os.environ.get("WANDB_MODE", "offline"),
        name=entry.name,
        notes=entry.tags[content.NOTE],
        job_type=entry.kind,
        group=entry.parent or entry.node_id,
        config=dict(entry.params),
        tags=[f"{name}: {value}"[:64] for name, value in study_of(entry.tags).items()],
    ) as run:
        for step, group in groupby(points, key=lambda point: point.step):
            run.log({unescape(point.key): point.value for point in group}, step=step)


TRACKERS = Table(
    "gram.trackers", {"tensorboard": _tensorboard, "wandb": _wandb}, reserved=("mlflow",)
)
