"""What we ask of the files beyond their form. Every rule returns complaints."""

import json
import re
from collections.abc import Iterator

import jsonschema

from gram_platform.engine.part_workers import PACK
from tests.cluster.files import strings, walk
from tests.cluster.structure import schema_of

SPOT_GROUPS = ("gpu-1", "gpu-8")
SECRET_FIELD = re.compile(r"(?i)(password|secret|token|credential|api_?key|flask_key|access_key)")
# ${NAME:?}, a path, the name of a mode.
REFERENCE = re.compile(r"\$\{\w+:\?[^}]*\}|~?/[\w./-]+|token|\{.*")
SECRET_VALUE = re.compile(
    r"AKIA[0-9A-Z]{16}|ASIA[0-9A-Z]{16}|AIza[\w-]{35}|ghp_\w{36}|hf_\w{30,}|glpat-[\w-]{20}|xox[bap]-[\w-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY|://[^/\s:@]+:[^/\s@$]+@|\b[0-9a-f]{40,}\b|eyJ[\w-]{20,}\."
)
ASSIGNED = re.compile(r"\b\w*(?:PASSWORD|SECRET|TOKEN|_KEY)=[^\s$/'\"][^\s]*")
WORLD = re.compile(
    r"0\.0\.0\.0/0|::/0|\bLoadBalancer\b|\bNodePort\b|kind: Ingress\b|\bhostNetwork\b|\bhostPort\b"
)


def form(found: dict) -> list[str]:
    """A Kubernetes object against the structure that we wrote down."""
    try:
        schema = schema_of(found["apiVersion"], found["kind"])
    except ValueError as error:
        return [str(error)]
    return [
        f"{error.json_path}: {error.message[:200]}"
        for error in jsonschema.Draft7Validator(schema).iter_errors(found)
    ]


def pods(value: object) -> Iterator[dict]:
    """Every pod's spec inside an object."""
    yield from (found for found in walk(value) if "containers" in found)


def pod_rules(found: dict) -> list[str]:
    """Requests equal limits (a GPU allows nothing else), and every mount has its volume."""
    complaints = []
    claims = {
        inner["metadata"]["name"] for inner in found.get("spec", {}).get("volumeClaimTemplates", [])
    }
    for pod in pods(found):
        volumes = {volume["name"] for volume in pod.get("volumes", [])} | claims
        for container in pod["containers"]:
            resources = container["resources"]
            if resources["requests"] != resources["limits"]:
                complaints.append(f"{container['name']}: requests are not its limits")
            missing = {mount["name"] for mount in container.get("volumeMounts", [])} - volumes
            complaints += [f"{container['name']}: no volume {name}" for name in sorted(missing)]
    return complaints


def autoscaling(spec: dict) -> list[str]:
    """Of a RayCluster's spec: nothing runs on the head, every group starts from zero, GPUs are on
    tolerated spot pools.
    """
    complaints = []
    groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
    if spec["headGroupSpec"].get("resources", {}).get("CPU") != "0":
        complaints.append("the head takes work")
    if groups.get("driver", {}).get("resources") != {"CPU": "0", "driver": "1"}:
        complaints.append("no group offers the driver and nothing else")
    if not only_packs(groups.get("pack", {}).get("resources", {})):
        complaints.append("no group offers packing and nothing else")
    for name, group in groups.items():
        pod = group["template"]["spec"]
        if group["minReplicas"] or group.get("replicas"):
            complaints.append(f"{name}: does not start from zero")
        if group["maxReplicas"] < 1:
            complaints.append(f"{name}: can never start")
        is_tolerant = any(
            t.get("value") == pod["nodeSelector"].get("gram-pool")
            for t in pod.get("tolerations", [])
        )
        if is_tolerant != (name in SPOT_GROUPS):
            complaints.append(f"{name}: tolerates spot machines: {is_tolerant}")
        if name in SPOT_GROUPS and "terminationGracePeriodSeconds" not in pod:
            complaints.append(f"{name}: is killed at once")
        if not pod.get("serviceAccountName"):
            complaints.append(f"{name}: reaches no object store")
        cores = pod["containers"][0]["resources"]["limits"]["cpu"]
        if group["resources"].get("pack", cores) != cores:
            complaints.append(
                f"{name}: packs {group['resources']['pack']} parts at once on {cores} cores"
            )
        num_gpus = pod["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
        if num_gpus != group["resources"].get("GPU"):
            complaints.append(
                f"{name}: tells Ray {group['resources'].get('GPU')} GPUs and has {num_gpus}"
            )
    for name, group in {"head": spec["headGroupSpec"], **groups}.items():
        if group["template"]["spec"].get("restartPolicy") != "Never":
            complaints.append(f"{name}: restarts in place")
    return complaints


def only_packs(resources: dict) -> bool:
    """Whether a machine takes parts of a corpus, and neither runs nor evaluations."""
    return set(resources) == {"CPU", PACK} and float(resources["CPU"]) == 0 < float(resources[PACK])


def job(spec: dict) -> list[str]:
    """Of a RayJob's spec: it is submitted again, by a cluster of its own, and its driver has its
    machine.
    """
    complaints = []
    if not spec.get("backoffLimit"):
        complaints.append("a failed job is not submitted again")
    if spec.get("ttlSecondsAfterFinished") and not spec.get("shutdownAfterJobFinishes"):
        complaints.append("ttlSecondsAfterFinished needs shutdownAfterJobFinishes")
    needed = json.loads(spec.get("entrypointResources", "{}"))
    offered = [set(group["resources"]) for group in spec["rayClusterSpec"]["workerGroupSpecs"]]
    if not needed or not any(set(needed) <= names for names in offered):
        complaints.append(f"no group offers what the driver needs: {needed}")
    return complaints


def machines(config: dict) -> list[str]:
    """Of a file of `ray up`: as `autoscaling`, in the clouds' words; firewalls are ours, never
    Ray's default.
    """
    complaints = []
    types, head = config["available_node_types"], config["head_node_type"]
    if types[head]["resources"] != {"CPU": 0} or "--num-cpus=0" not in " ".join(
        config["head_start_ray_commands"]
    ):
        complaints.append("the head takes work")
    if types.get("driver", {}).get("resources") != {"CPU": 0, "driver": 1}:
        complaints.append("no type offers the driver and nothing else")
    if not only_packs(types.get("pack", {}).get("resources", {})):
        complaints.append("no type offers packing and nothing else")
    for name, kind in types.items():
        node = kind["node_config"]
        is_spot = (
            "SPOT"
            in json.dumps(node.get("InstanceMarketOptions", node.get("scheduling", {}))).upper()
        )
        if is_spot != (name in SPOT_GROUPS):
            complaints.append(f"{name}: on spot: {is_spot}")
        if kind.get("min_workers"):
            complaints.append(f"{name}: does not start from zero")
        if name != head and kind.get("max_workers", 0) < 1:
            complaints.append(f"{name}: can never start")
        own = node.get("networkInterfaces") or node.get("NetworkInterfaces")
        if not node.get("SecurityGroupIds") and not own:
            complaints.append(f"{name}: Ray would choose a network open to the world")
        if not node.get("IamInstanceProfile") and not node.get("serviceAccounts"):
            complaints.append(f"{name}: no identity to read its secrets with")
    if sum(kind.get("max_workers", 0) for kind in types.values()) != config["max_workers"]:
        complaints.append("max_workers is not the sum of the types'")
    if config["file_mounts"]:
        complaints.append("files are copied to the nodes")
    if "--env RAY_AUTH_MODE=token" not in config["docker"]["run_options"]:
        complaints.append("no token authentication")
    if "dashboard-host" in " ".join(config["head_start_ray_commands"]):
        complaints.append("the dashboard listens beyond the head")
    return complaints


def exposure(content: str) -> list[str]:
    return [f"reachable from outside: {match}" for match in WORLD.findall(content)]


def literal_secrets(value: object) -> list[str]:
    """Values that look like a secret, and values of fields whose names promise one and that refer
    to nothing.
    """
    texts = list(strings(value))
    complaints = [
        f"looks like a secret: {found[:40]}" for found in texts if SECRET_VALUE.search(found)
    ]
    complaints += [
        f"a literal value: {found}" for inner in texts for found in ASSIGNED.findall(inner)
    ]
    for mapping in walk(value):
        named = mapping | (
            {mapping["name"]: mapping["value"]} if {"name", "value"} <= set(mapping) else {}
        )
        for key, inner in named.items():
            is_secret = isinstance(key, str) and SECRET_FIELD.search(key) and isinstance(inner, str)
            if (
                is_secret
                and not key.endswith(("Name", "_PATH", "HttpTokens"))
                and not REFERENCE.fullmatch(inner)
            ):
                complaints.append(f"{key} has a literal value")
    return complaints
