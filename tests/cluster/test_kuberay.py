"""The Kubernetes files against the structure written down in `structure.py`, Ray's own reader, and
our rules.
"""

import importlib.util
import math
import shutil
import subprocess

import pytest
import yaml
from ray.autoscaler._private.kuberay.autoscaling_config import (
    _derive_autoscaling_config_from_ray_cr,
)

from gram_platform.config.flops import hardware_flops, total_parameters
from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.planner import MACHINES
from gram_platform.planner.ranks import BY_DEVICE
from gram_platform.studies.library.lr_bs_grid import SEARCH
from gram_platform.studies.workplace import execution_of
from tests.cluster import rules
from tests.cluster.files import (
    CLUSTER,
    CLUSTER_FILE,
    GRID_FILE,
    JOB_FILE,
    KUBERNETES_FILES,
    ROOT,
    all_objects,
    objects,
    ray_cluster_spec,
    the,
    walk,
)
from tests.submitted import plan_of

KUSTOMIZATION_FIELDS = {"apiVersion", "kind", "resources", "patches", "replacements"}
PUBLISHED_SCHEMAS = (
    "https://raw.githubusercontent.com/datreeio/CRDs-catalog/main/"
    "{{.Group}}/{{.ResourceKind}}_{{.ResourceAPIVersion}}.json"
)
NAMED = [(name, found) for name in KUBERNETES_FILES for found in objects(name)]


@pytest.mark.parametrize(
    ("file", "found"), NAMED, ids=[f"{f['kind']}-{f['metadata']['name']}" for _, f in NAMED]
)
def test_form(file, found):
    assert rules.form(found) == [], file
    assert rules.pod_rules(found) == [], file
    assert found["kind"] == "Namespace" or found["metadata"]["namespace"] == "gram"


def test_service_accounts_exist():
    named = {
        pod["serviceAccountName"]
        for o in all_objects()
        for pod in rules.pods(o)
        if "serviceAccountName" in pod
    }
    assert named == {o["metadata"]["name"] for o in all_objects() if o["kind"] == "ServiceAccount"}


def test_names_are_unique():
    names = [(found["kind"], found["metadata"]["name"]) for found in all_objects()]
    assert len(set(names)) == len(names)


def test_ray_reads_the_cluster():
    """By the function with which Ray's autoscaler reads a RayCluster: what each group offers, from
    zero machines.
    """
    config = _derive_autoscaling_config_from_ray_cr(the("RayCluster", "gram"))
    offers = {
        name: {key: value for key, value in kind["resources"].items() if key != "memory"}
        for name, kind in config["available_node_types"].items()
    }
    assert offers == {
        "headgroup": {"CPU": 0},
        "driver": {"CPU": 0, "driver": 1},
        "gpu-1": {"CPU": 8, "GPU": 1},
        "gpu-8": {"CPU": 64, "GPU": 8},
        "pack": {"CPU": 0, "pack": 15},
    }
    assert all(kind["min_workers"] == 0 for kind in config["available_node_types"].values())
    assert config["idle_timeout_minutes"] == 5


def test_rules_of_autoscaling():
    assert rules.autoscaling(ray_cluster_spec()) == []


@pytest.mark.parametrize("name", ["gram-scaling", "gram-grid"])
def test_job_is_submitted_again(name):
    assert rules.job(the("RayJob", name)["spec"]) == []


@pytest.mark.parametrize(
    ("folder", "file"), [("cluster", CLUSTER_FILE), ("job", JOB_FILE), ("grid", GRID_FILE)]
)
def test_kustomize_makes_one_object_of_a_folder(folder, file):
    """By kubectl itself: the standing cluster, or a job with the cluster's spec and nothing beside
    it.
    """
    path = CLUSTER / "kuberay" / folder
    assert set(yaml.safe_load((path / "kustomization.yaml").read_text())) <= KUSTOMIZATION_FIELDS
    if not shutil.which("kubectl"):
        pytest.skip("kubectl is not installed: the kustomizations were read, not applied")
    made = subprocess.run(
        ["kubectl", "kustomize", path], capture_output=True, text=True, check=True
    )
    assert list(yaml.safe_load_all(made.stdout)) == objects(file)


def test_kubeconform_finds_nothing(tmp_path):
    """Against the published schemas of Kubernetes and KubeRay, which it fetches."""
    if not shutil.which("kubeconform"):
        pytest.skip("kubeconform is not installed: only our own table of fields was compared")
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(all_objects()))
    schemas = ["-schema-location", "default", "-schema-location", PUBLISHED_SCHEMAS]
    subprocess.run(
        ["kubeconform", "-strict", "-summary", *schemas, tmp_path / "all.yaml"], check=True
    )


def test_spot_machines_have_time_for_a_step_and_a_checkpoint(study_of_entrypoint):
    """Each size of the job, all modules in every pass, the planner's rate, and a storage of 1
    GB/s."""
    study, arguments = study_of_entrypoint
    sizes = plan_of(study, arguments).studies[0].choice.sizes
    domains = ("core", "virology", "cybersecurity", "nuclear", "lisp")
    groups = [
        group
        for group in ray_cluster_spec()["workerGroupSpecs"]
        if group["groupName"] in rules.SPOT_GROUPS
    ]
    grace_s = min(group["template"]["spec"]["terminationGracePeriodSeconds"] for group in groups)
    rate = 4 * 0.4 * MACHINES["h100"].flops_per_second  # four ranks
    assert "2B" in sizes
    for size in (PAPER_SIZES[name] for name in sizes):
        model = size.modular(domains)
        active = model.module_domains
        step_s = hardware_flops(model, size.batch_size, active, modules_trained=active) / rate
        write_s = 12 * total_parameters(model) / 1e9  # weights and two moments
        assert step_s + write_s < 0.75 * grace_s, size.name


def test_entrypoint_is_a_command_of_the_study(study_of_entrypoint):
    """Nobody is there to be asked when it is submitted again, and the cluster has no GPU when it
    starts.
    """
    study, arguments = study_of_entrypoint
    plan = plan_of(study, arguments)
    (part,) = plan.studies
    assert (part.preset_name, plan.storage, plan.tracking_uri) == (
        "paper",
        "/mnt/gram",
        "http://mlflow:5000",
    )
    assert (plan.device, plan.confirm_above) == ("cuda", math.inf)
    execution, resources = execution_of(plan)
    assert (execution.device, part.ranks.number, resources.gpus_per_rank) == (
        "cuda",
        BY_DEVICE,
        1.0,
    )


def test_the_grids_entrypoint_is_a_command_of_the_search():
    python, script, *arguments = the("RayJob", "gram-grid")["spec"]["entrypoint"].split()
    assert (python, script) == ("python", "/opt/gram/experiments/lr_bs_grid.py")
    plan = plan_of(SEARCH, arguments)
    assert (plan.device, plan.confirm_above) == ("cuda", math.inf)
    assert (plan.studies[0].preset_name, plan.storage, plan.tracking_uri) == (
        "paper",
        "/mnt/gram",
        "http://mlflow:5000",
    )


@pytest.fixture
def study_of_entrypoint():
    """The study that the job's entrypoint starts, and its flags."""
    python, script, *arguments = the("RayJob", "gram-scaling")["spec"]["entrypoint"].split()
    assert (python, script) == ("python", "/opt/gram/experiments/scaling.py")
    spec = importlib.util.spec_from_file_location(
        "scaling_of_the_job", ROOT / "experiments/scaling.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.STUDY, arguments


def test_network_lets_in_only_who_must():
    """Ingress is denied to all, then allowed to selected pods; no rule is open to everybody."""
    policies = [found["spec"] for found in objects("kuberay/network.yaml")]
    assert {"podSelector": {}, "policyTypes": ["Ingress"]} in policies
    for policy in policies:
        assert all(
            rule["from"] and all(peer for peer in rule["from"])
            for rule in policy.get("ingress", [])
        )
    apps = {pod["metadata"]["labels"]["app"] for pod in templates()}
    selectors = [
        inner["matchLabels"]
        for policy in policies
        for inner in walk(policy)
        if "matchLabels" in inner
    ]
    assert {labels["app"] for labels in selectors if "app" in labels} <= apps, (
        "a policy names pods that nothing makes"
    )


def test_databases_call_nobody():
    (policy,) = [
        s for o in objects("kuberay/network.yaml") if (s := o["spec"])["policyTypes"] == ["Egress"]
    ]
    assert "egress" not in policy
    (rule,) = policy["podSelector"]["matchExpressions"]
    images = {}
    for pod in templates():
        images[pod["metadata"]["labels"].get("app")] = pod["spec"]["containers"][0]["image"]
    databases = {
        app for app, image in images.items() if "/redis:" in image or "/postgres:" in image
    }
    assert databases == set(rule["values"]) != set()


def test_secrets_reach_only_who_needs_them():
    """MLflow's password the driver, the hub's token whoever fetches text.

    Ray's nodes run what others submit.
    """
    groups = the("RayCluster", "gram")["spec"]["workerGroupSpecs"]
    head = {"groupName": "head", **the("RayCluster", "gram")["spec"]["headGroupSpec"]}
    has = {
        group["groupName"]: {e["name"] for e in walk(group) if isinstance(e.get("valueFrom"), dict)}
        for group in (head, *groups)
    }
    assert has.pop("driver") == {"HF_TOKEN", "MLFLOW_TRACKING_PASSWORD"}
    assert has.pop("pack") == {"HF_TOKEN"}
    assert set().union(*has.values()) == set()
    assert len(has) == 3
    tokens = [found for found in walk(groups) if found.get("name") == "gram-hub"]
    assert [token["optional"] for token in tokens] == [True] * 2, (
        "a cluster without the secret does not start"
    )


def templates() -> list[dict]:
    """Of every pod."""
    return [
        inner
        for found in all_objects()
        for inner in walk(found)
        if "containers" in inner.get("spec", {})
    ]
