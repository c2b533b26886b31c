"""What a storage holds after a study on the cluster, as the laptop reads it."""

import json
from collections.abc import Iterator

from tests.cluster.box.cluster import Cluster

SCALING = ("python", "experiments/scaling.py", "--preset", "smoke")
# 5 runs and 7 evaluations.
SMALL = (*SCALING, "--sizes", "tiny", "--seeds", "1", "--methods", "baseline", "gram")
RESULTS = """
import json, sys
from gram_platform.store import Store
store = Store(sys.argv[1])
nodes = [store.run(name) for name in store.list_runs()]
nodes += [store.evaluation(name) for name in store.list_evaluations()]
study = store.study_dir("scaling")
print("SEEN", json.dumps({
    "results": {node.folder.path.rsplit("/", 1)[1]: node.result() for node in nodes},
    "attempts": {name: len(store.run(name).attempts.list()) for name in store.list_runs()},
    "hosts": sorted({store.run(name).timing().get("host", "nobody") for name in store.list_runs()}),
    "winners": {name: store.run(name).timing().get("attempt", "") for name in store.list_runs()},
    "table": study.read("table.csv").decode() if study.exists("table.csv") else "",
}))
"""
MIRRORED = (
    "import sys; from tests.studies.mirrored import assert_mirrored_once as check;"
    " check(*sys.argv[1:])"
)
TOLERANCE = 1e-5  # of losses of two ranks and one: docs/architecture.md


def seen(cluster: Cluster, storage: str) -> dict:
    """Every result of a storage, its runs' attempts and which of them won, their hosts, and the
    table of scaling.
    """
    return json.loads(cluster.on_laptop("python", "-c", RESULTS, storage).split("SEEN ", 1)[1])


def leaves(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """(path, number or text) of everything in nested fields but hashes."""
    if not isinstance(value, dict):
        yield path, value
        return
    for name, part in value.items():
        if not name.endswith("sha256"):
            yield from leaves(part, f"{path}/{name}")
