"""The bytes of modules that nobody is granted are nowhere in the memory of the process that
serves."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from gram_platform.config import ModuleSpec
from gram_platform.store import Store
from tests.release.serving.planted import MODULES, planted, write_run
from tests.release.serving.running import environment
from tests.tiny import weights_of

SAMPLE_BYTES, NUM_SAMPLES = 64, 4  # of a tensor
SERVE = """
import json, sys
from gram_platform.release.serving.model_server import ModelServer, ModelSource
from gram_platform.release.serving.policy import parse_policy
from tests.release.serving.planted import planted
servers = [
    ModelServer(ModelSource(storage, run_id, planted().policy, 250, 0))
    for storage, run_id in json.loads(sys.argv[1])
]
print("ready", flush=True)
sys.stdin.read()
"""


def samples(weights: dict[str, torch.Tensor], part: str) -> list[bytes]:
    """Pieces of the matrices whose name has this part."""
    found = []
    for name, weight in weights.items():
        if part in name and weight.dim() == 2:
            data = weight.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            step = max(SAMPLE_BYTES, len(data) // NUM_SAMPLES)
            found += [
                data[i : i + SAMPLE_BYTES] for i in range(0, len(data) - SAMPLE_BYTES + 1, step)
            ]
    return found


def memory(pid: int) -> Iterator[tuple[str, bytes]]:
    """(name, content) of all that a process has mapped, but for programs and libraries."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            places, rights, _, _, _, *name = line.split(maxsplit=5)
            if rights.startswith("r") and not (
                name and (".so" in name[0] or name[0].startswith("[v"))
            ):
                first, stop = (int(place, 16) for place in places.split("-"))
                file.seek(first)
                yield "".join(name), file.read(stop - first)


def test_ungranted_modules_are_nowhere_in_the_serving_process(tmp_path):
    """Nor in blocks that it has freed, at widths at which the heap keeps them and at which it does
    not."""
    places = []
    for number, (width, num_ranks) in enumerate([(16, 1), (128, 1), (64, 2)]):
        root, modules = (
            tmp_path / str(number),
            tuple(ModuleSpec(domain, "mlp", width) for domain in MODULES),
        )
        config = dataclasses.replace(
            planted().config, d_model=width, d_mlp=2 * width, modules=modules
        )
        places.append((str(root), write_run(root, config, "d" * 12, num_ranks)))
    command = [sys.executable, "-c", SERVE, json.dumps(places)]
    with subprocess.Popen(
        command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        mapped = list(memory(process.pid))
        process.stdin.close()
    assert not [name for name, _ in mapped if str(tmp_path) in name]
    content = b"\n".join(content for _, content in mapped)
    for place, run_id in places:
        weights = weights_of(Store(place).run(run_id))
        secret, shared = samples(weights, ".aux.secret."), samples(weights, "wte")
        assert len(secret) >= 16
        assert [needle in content for needle in secret] == [False] * len(secret), place
        assert all(needle in content for needle in shared)  # what is there is found
