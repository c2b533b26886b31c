"""The files of `cluster/` against one another, the pins and the guide; and no secret, no way in,
anywhere.
"""

import re
import subprocess
import tomllib

import pytest

from gram_platform.engine.part_workers import STARTS_PACK_MACHINES
from tests.cluster import rules
from tests.cluster.files import (
    CLUSTER,
    JOB_FILE,
    KUBERNETES_FILES,
    LAUNCHER_FILES,
    ONPREM_FILE,
    ROOT,
    all_objects,
    compose,
    constraint,
    every_file,
    launcher,
    objects,
    ray_cluster_spec,
    text,
    the,
    walk,
)

GUIDE = text("README.md")
BUILD_SCRIPT = CLUSTER / "build_images.sh"
IMAGE = re.compile(r"[\w.${}:/-]*gram-(?:platform|mlflow):[\w.]+")
MLFLOW = "http://mlflow:5000"
MOUNT = "/mnt/gram"


def project() -> dict:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_one_name_and_tag_for_each_image():
    """Everywhere, the guide included; the tags are the package's version and that of the pinned
    MLflow.
    """
    found = {image for content in every_file().values() for image in IMAGE.findall(content)}
    assert found == {
        f"YOUR_REGISTRY/gram-platform:{project()['version']}",
        f"YOUR_REGISTRY/gram-mlflow:{constraint('mlflow')}",
    }
    images = [config["docker"]["image"] for config in map(launcher, LAUNCHER_FILES)]
    images += [
        c["image"] for o in all_objects() for pod in rules.pods(o) for c in pod["containers"]
    ]
    images += [service["image"] for service in compose()["services"].values()]
    assert not [image for image in images if ":" not in image or image.endswith(":latest")]


def test_one_ray_and_one_python():
    assert ray_cluster_spec()["rayVersion"] == constraint("ray")
    (python,) = re.findall(r"^ARG PYTHON_VERSION=(\S+)$", text("Containerfile"), re.MULTILINE)
    tried = (ROOT / "constraints.txt").read_text().splitlines()[0]
    assert f"Python {python}" in tried
    assert f"Python {python}" in GUIDE
    assert f"Programming Language :: Python :: {python}" in project()["classifiers"]


def test_images_are_made_of_what_is_here_and_pinned():
    content = text("Containerfile")
    sources = [
        word
        for line in re.findall(r"^COPY (.+)$", content, re.MULTILINE)
        for word in line.split()[:-1]
    ]
    kept = [
        line[1:] for line in text("Containerfile.dockerignore").splitlines() if line.startswith("!")
    ]
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in kept, f"{source} is ignored by the build"
    assert set(kept) == set(sources), "the build's context holds more than the image"
    pins = [line for line in text("requirements.txt").splitlines() if not line.startswith("#")]
    assert all(re.match(r"^[\w.-]+==[\w.]+(\s+#.*)?$", line) for line in pins), (
        "a requirement is not pinned"
    )
    own = {line.split("==")[0].lower() for line in pins}
    constrained = {
        line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()
    }
    assert not own & constrained, "a version is pinned twice"
    assert content.count("USER gram") == 2, "an image runs as root"


def test_the_autoscaler_beside_the_head_logs_where_the_head_looks():
    """KubeRay mounts a volume `ray-logs` there in both, unless the pod has one of this name."""
    containers = [c for o in all_objects() for pod in rules.pods(o) for c in pod["containers"]]
    mounts = [mount for c in containers for mount in c.get("volumeMounts", ())]
    assert {mount["name"] for mount in mounts if mount["mountPath"] == "/tmp/ray"} == {"ray-logs"}


def test_the_folder_of_artifacts_is_the_servers():
    """A new volume takes over the owner of the folder that it is mounted on."""
    (destination,) = [
        v for v in compose()["services"]["mlflow"]["volumes"] if v.startswith("artifacts:")
    ]
    assert f"install -d -o gram -g gram {destination.split(':')[1]}" in text("Containerfile")


def test_machines_are_called_the_same_everywhere():
    groups = {group["groupName"] for group in ray_cluster_spec()["workerGroupSpecs"]}
    for name in LAUNCHER_FILES:
        config = launcher(name)
        assert set(config["available_node_types"]) - {config["head_node_type"]} == groups, name
    limits = {
        group["groupName"]: group["maxReplicas"] for group in ray_cluster_spec()["workerGroupSpecs"]
    }
    for config in map(launcher, LAUNCHER_FILES):
        types = config["available_node_types"]
        assert {name: types[name]["max_workers"] for name in groups - {"driver"}} == {
            name: limits[name] for name in groups - {"driver"}
        }
    asked_for = set(re.findall(r"--entrypoint-resources '(.*?)'", GUIDE))
    assert asked_for == {the("RayJob", "gram-scaling")["spec"]["entrypointResources"]}
    pools = {
        pod["nodeSelector"]["gram-pool"] for found in all_objects() for pod in rules.pods(found)
    }
    assert pools == {"system"} | groups
    assert all(f"`{pool}`" in GUIDE for pool in pools)


def test_a_driver_knows_that_the_cluster_starts_machines_for_packing():
    """On the driver's machine, and on the head, where a job without `--entrypoint-resources`
    starts.
    """
    for config in map(launcher, LAUNCHER_FILES):
        assert f"--env {STARTS_PACK_MACHINES}=1" in config["docker"]["run_options"]
    groups = {group["groupName"]: group for group in ray_cluster_spec()["workerGroupSpecs"]}
    for group in (ray_cluster_spec()["headGroupSpec"], groups["driver"]):
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": STARTS_PACK_MACHINES, "value": "1"} in container["env"]


def drivers() -> dict[str, str]:
    """NVIDIA's oldest driver for each major version of CUDA, by the guide's table."""
    return dict(re.findall(r"^\| `cu(\d+)x`.*\| (\d+) or newer \|$", GUIDE, re.MULTILINE))


def test_the_image_and_every_file_name_the_driver_of_the_pinned_cuda():
    """NVIDIA's release notes of CUDA, minor version compatibility: 12.x needs 525.60.13, 13.x needs
    580.65.06.
    """
    assert drivers() == {"12": "525", "13": "580"}
    (tag,) = re.findall(
        r"^ARG TORCH_INDEX_URL=\S+/cu(\d{2})\d$", text("Containerfile"), re.MULTILINE
    )
    for name in ("Containerfile", "README.md", *LAUNCHER_FILES):
        named = re.findall(r"driver (\d+) or newer", re.sub(r"\n#? *", " ", text(name)))
        assert set(named) == {drivers()[tag]}, name


def test_machines_with_gpus_get_a_driver():
    """GKE installs none, or an older one, unless asked; a machine of `ray up` comes with one, or
    installs it.
    """
    commands = re.findall(
        r"^    (gcloud container node-pools create .*(?:\n        .*)+)$", GUIDE, re.MULTILINE
    )
    with_gpus = [command for command in commands if "create gpu-" in command]
    assert with_gpus
    assert all(
        re.search(r"--accelerator type=\S+,count=\d+,gpu-driver-version=latest\b", c)
        for c in with_gpus
    )
    assert "base-oss-nvidia-driver-gpu-ubuntu-22.04/latest" in text("aws.yaml")
    items = [
        found for found in walk(launcher("gcp.yaml")) if found.get("key") == "install-nvidia-driver"
    ]
    assert {item["value"] for item in items} == {"True"}


def test_the_image_finds_the_gpus_of_its_machine():
    """NVIDIA's runtime gives GPUs to images with the first two; GKE mounts its driver at the
    third."""
    stage = text("Containerfile").split(" AS platform")[1]
    variables = dict(
        pair.split("=", 1)
        for line in re.findall(r"^ENV (.+)$", stage, re.MULTILINE)
        for pair in line.split()
    )
    assert variables["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert set(variables["NVIDIA_DRIVER_CAPABILITIES"].split(",")) == {"compute", "utility"}
    for before, after in (
        ("", "/usr/local/nvidia/lib64"),
        ("/opt/lib", "/usr/local/nvidia/lib64:/opt/lib"),
    ):
        echo = f"echo {variables['LD_LIBRARY_PATH']}"
        environment = {"LD_LIBRARY_PATH": before} if before else {}
        found = subprocess.run(
            ["sh", "-c", echo], env=environment, capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == after


def test_storage_is_one_place():
    for config in map(launcher, LAUNCHER_FILES):
        options = config["docker"]["run_options"]
        assert {f"--volume {MOUNT}:{MOUNT}", f"--env GRAM_STORAGE={MOUNT}"} <= set(options)
        assert any(
            MOUNT in command and "mount -t nfs" in command
            for command in config["initialization_commands"]
        )
    for group in [ray_cluster_spec()["headGroupSpec"], *ray_cluster_spec()["workerGroupSpecs"]]:
        (container,) = group["template"]["spec"]["containers"]
        assert {"name": "GRAM_STORAGE", "value": MOUNT} in container["env"]
        assert {"name": "storage", "mountPath": MOUNT} in container["volumeMounts"]
        claims = [
            v["persistentVolumeClaim"]["claimName"]
            for v in group["template"]["spec"]["volumes"][:1]
        ]
        assert [the("PersistentVolumeClaim", name)["spec"]["accessModes"] for name in claims] == [
            ["ReadWriteMany"]
        ]
    assert set(re.findall(r"--storage (/\S+)", GUIDE + text(JOB_FILE))) == {MOUNT}


def test_mlflow_is_one_address():
    (port,) = the("Service", "mlflow")["spec"]["ports"]
    assert f"http://{the('Service', 'mlflow')['metadata']['name']}:{port['port']}" == MLFLOW
    assert set(re.findall(r"--tracking-uri (\S+?)[`\s]", GUIDE + text(JOB_FILE))) == {MLFLOW}
    for config in map(launcher, LAUNCHER_FILES):
        assert "--add-host mlflow:YOUR_MLFLOW_ADDRESS" in config["docker"]["run_options"]


def test_redis_is_where_the_head_looks():
    (port,) = the("Service", "gram-redis")["spec"]["ports"]
    options = ray_cluster_spec()["gcsFaultToleranceOptions"]
    assert options["redisAddress"] == f"redis://gram-redis:{port['port']}"
    (redis,) = the("StatefulSet", "gram-redis")["spec"]["template"]["spec"]["containers"]
    assert redis["env"][0]["valueFrom"] == options["redisPassword"]["valueFrom"]


def test_services_find_their_pods():
    templates = [
        inner for o in all_objects() for inner in walk(o) if "containers" in inner.get("spec", {})
    ]
    labels = [template["metadata"]["labels"] for template in templates]
    for service in (found["spec"] for found in all_objects() if found["kind"] == "Service"):
        assert any(service["selector"].items() <= label.items() for label in labels), service


def test_every_secret_is_made_in_the_guide():
    """Every secret that a file refers to, with its keys; and the secrets of the clouds'
    managers."""
    used = {("gram-ray-token", "auth_token")}  # the key that KubeRay reads
    for name in KUBERNETES_FILES:
        for found in walk(objects(name)):
            if "secretKeyRef" in found:
                used.add((found["secretKeyRef"]["name"], found["secretKeyRef"]["key"]))
    assert ray_cluster_spec()["authOptions"]["secretName"] == "gram-ray-token"
    for secret, key in used:
        (made,) = (line for line in GUIDE.splitlines() if f"make_secret {secret} " in line)
        assert re.search(rf"--from-(literal|file)={key}=", made), f"{secret} has no key {key}"
    for name in LAUNCHER_FILES:
        for secret in re.findall(r"--secret(?:-id |=)([\w-]+)", text(name)):
            assert re.search(
                rf"secrets? create(?:-secret --name)? {secret}|create-secret --name {secret}", GUIDE
            ), secret


def test_every_placeholder_is_explained():
    table = GUIDE.split("## What you fill in")[1].split("##")[0]
    used = {
        found
        for content in every_file().values()
        for found in re.findall(r"YOUR_[A-Z_]+[A-Z]", content)
    }
    explained = set(re.findall(r"`(YOUR_[A-Z_]+)`", table))
    assert used == explained


@pytest.mark.parametrize("name", every_file())
def test_no_secret_and_no_way_in(name):
    content = every_file()[name]
    # the guide says how a secret is made: with $(openssl ...), which is no value
    values = [
        line for line in content.splitlines() if not re.search(r"\$\(|=\.\.\.|PATH_TO_TOKEN", line)
    ]
    assert rules.literal_secrets(values) == []
    assert rules.exposure(content) == []


@pytest.mark.parametrize(
    "name", [*KUBERNETES_FILES, *LAUNCHER_FILES, ONPREM_FILE, "mlflow/compose.yaml"]
)
def test_no_field_holds_a_secret(name):
    found = compose() if name.endswith("compose.yaml") else objects(name)
    assert rules.literal_secrets(found) == []


def test_the_build_script_makes_the_images_of_the_files():
    """It builds what every file names, then pushes it; and nothing without a registry."""
    printed = subprocess.run(
        [BUILD_SCRIPT, "--print", "YOUR_REGISTRY"], capture_output=True, text=True, check=True
    )
    targets = re.findall(
        r"^docker build -f (\S+) --target (\S+) -t (\S+) \.$", printed.stdout, re.MULTILINE
    )
    pushed = re.findall(r"^docker push (\S+)$", printed.stdout, re.MULTILINE)
    assert [image for *_, image in targets] == pushed
    assert set(pushed) == {
        image for content in every_file().values() for image in IMAGE.findall(content)
    }
    stages = re.findall(r"^FROM base AS (\S+)$", text("Containerfile"), re.MULTILINE)
    assert {(file, stage) for file, stage, _ in targets} == {
        ("cluster/Containerfile", stage) for stage in stages
    }
    assert all(f"gram-{stage}:" in image for _, stage, image in targets)
    assert (
        subprocess.run([BUILD_SCRIPT, "--print"], capture_output=True, check=False).returncode == 2
    )
