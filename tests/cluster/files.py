"""The files of `cluster/`, read."""

import re
from collections.abc import Iterator
from pathlib import Path

import yaml
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster"
LAUNCHER_FILES = ("aws.yaml", "gcp.yaml")  # of `ray up` on clouds
ONPREM_FILE = "onprem.yaml"  # of `ray up` on machines that one has
CLUSTER_FILE, JOB_FILE = "kuberay/cluster/cluster.yaml", "kuberay/job/job.yaml"
GRID_FILE = "kuberay/grid/kustomization.yaml"
KUBERNETES_FILES = (
    "kuberay/base.yaml",
    "kuberay/network.yaml",
    CLUSTER_FILE,
    JOB_FILE,
    "mlflow/kubernetes.yaml",
)
KUBERNETES_FILES += (GRID_FILE,)


def text(name: str) -> str:
    return (CLUSTER / name).read_text()


def launcher(name: str) -> dict:
    """A file of `ray up`."""
    return yaml.safe_load(text(name))


def onprem(head: str, *workers: str) -> str:
    """The text of onprem.yaml with addresses, and a core for each worker, for its placeholders."""
    values = {
        "YOUR_HEAD_ADDRESS": head,
        "- YOUR_WORKER_ADDRESS": "\n    ".join(f"- {worker}" for worker in workers),
        "YOUR_USER": "root",
        "YOUR_CPUS_OF_A_WORKER": "1",
        "YOUR_GPUS_OF_A_WORKER": "0",
        "max_workers: 1": f"max_workers: {len(workers)}",
    }
    content = text(ONPREM_FILE)
    for name, value in values.items():
        assert name in content, name
        content = content.replace(name, value)
    return content


def objects(name: str) -> list[dict]:
    """The Kubernetes objects of a file, the jobs as kustomize completes them (`test_kuberay.py`
    compares the two).
    """
    if name == GRID_FILE:
        return [_grid_job()]
    found = list(yaml.safe_load_all(text(name)))
    if name == JOB_FILE:
        found[0]["spec"]["rayClusterSpec"] = ray_cluster_spec()
    return found


def _grid_job() -> dict:
    """The job for `scaling` with the values that the grid's kustomization replaces."""
    (job,) = objects(JOB_FILE)
    ((patch,),) = (
        [yaml.safe_load(one["patch"])] for one in yaml.safe_load(text(GRID_FILE))["patches"]
    )
    for change in patch:
        *folders, name = change["path"].strip("/").split("/")
        inside = job
        for folder in folders:
            inside = inside[folder]
        assert (change["op"], name in inside) == ("replace", True), change
        inside[name] = change["value"]
    return job


def all_objects() -> list[dict]:
    return [found for name in KUBERNETES_FILES for found in objects(name)]


def the(kind: str, name: str) -> dict:
    """The one object of a kind and name."""
    (found,) = (o for o in all_objects() if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return found


def ray_cluster_spec() -> dict:
    (cluster,) = objects(CLUSTER_FILE)
    return cluster["spec"]


def compose() -> dict:
    return yaml.safe_load(text("mlflow/compose.yaml"))


def every_file() -> dict[str, str]:
    """Name relative to `cluster/` -> text."""
    return {
        str(path.relative_to(CLUSTER)): path.read_text()
        for path in sorted(CLUSTER.rglob("*"))
        if path.is_file()
    }


def walk(value: object) -> Iterator[dict]:
    """Every mapping inside a value, itself included."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from walk(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner)


def strings(value: object) -> Iterator[str]:
    """Every string inside a value; keys are not values."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def constraint(package: str) -> str:
    """The version that constraints.txt pins."""
    pins = dict(re.findall(r"^(\S+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    return {canonicalize_name(name): version for name, version in pins.items()}[
        canonicalize_name(package)
    ]
