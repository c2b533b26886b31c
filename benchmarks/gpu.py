"""The GPU form: training against the GPU's measured matrix products, a compiled peer, and small runs that share a GPU.

Needs torch and numpy alone; the peer needs transformers, and is left out with a word where that is absent.
"""

import functools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from benchmarks.contestants import DENSE, Scene, parts, runs
from benchmarks.elsewhere import Elsewhere, together
from benchmarks.matmuls import MatmulRate
from benchmarks.measurement import Aim, Measurement
from benchmarks.peers import AUTOCAST, COPY, peer_steps, why_absent
from benchmarks.timing import clock_of, interleaved
from gram_platform.config.flops import hardware_flops
from gram_platform.config.ladder import PAPER_SIZES, SMOKE_SIZES, STORIES_SIZES, Size
from gram_platform.train.loop import StepRecord, training_steps

SIZES: dict[str, Size] = {**STORIES_SIZES, "100M": PAPER_SIZES["100M"], "800M": PAPER_SIZES["800M"], **SMOKE_SIZES}
DEFAULT_SIZES = ("26M", "100M", "800M")
SEQUENCES = {"26M": 16, "100M": 32, "800M": 8}  # of a micro-batch on one GPU: what one rank has of the size's own
NUM_MICRO_BATCHES = 2
AIMS = {"800M": 0.45}  # of the rate of matrix products
NUM_SHARING, STEPS_SHARING = 4, 20  # small runs on one GPU, and the steps of each


def measure(device: str, names: Sequence[str], num_rounds: int, compiled: bool = True) -> Iterator[Measurement]:
    """Every size eager and (`compiled`) by torch.compile, with the peers, then the small runs."""
    if reason := why_absent():
        print(reason, file=sys.stderr)
    for name in names:
        yield from _size(_scene(name, device, num_rounds, compiled), with_peer=not reason)
    yield sharing(Scene(SMOKE_SIZES["small"], 1, num_rounds, device))


def _scene(name: str, device: str, num_rounds: int, compiled: bool) -> Scene:
    size = SIZES[name]
    sequences = min(SEQUENCES.get(name, size.micro_batch), size.micro_batch)
    return Scene(
        replace(size, batch_size=sequences, micro_batch=sequences), NUM_MICRO_BATCHES, num_rounds, device, compiled
    )


def _size(scene: Scene, with_peer: bool) -> list[Measurement]:
    run = runs(scene)[DENSE]
    matmuls = MatmulRate(run.model, scene.size.micro_batch, scene.device)
    steps: dict[str, Iterator] = {"ours": training_steps(*parts(run, scene))}
    for precision in (AUTOCAST, COPY) if with_peer else ():
        _, plan, reader = parts(run, scene)
        steps[precision] = peer_steps(run, plan, reader, precision, scene.device, scene.compiled)
    actions = {name: functools.partial(next, each) for name, each in steps.items()} | {"matmuls": matmuls}
    seconds = interleaved(actions, scene.num_rounds, clock_of(scene.device))
    rates = {name: tuple(scene.tokens_per_step / s for s in spent) for name, spent in seconds.items()}
    flops = hardware_flops(run.model, scene.num_micro_batches * scene.size.micro_batch)
    bound = AIMS.get(scene.size.name)
    utilisation = Measurement(
        name=f"FLOPs {scene.size.name} on {scene.device}",
        unit="GFLOP/s",
        values=tuple(flops / spent / 1e9 for spent in seconds["ours"]),
        references=tuple(rate / 1e9 for rate in matmuls.rates[1:]),
        against="the model's own matrix products in bfloat16",
        aim=None if bound is None else Aim("at least", bound),
        details={"tokens/s": rates["ours"], "compiled": scene.compiled},
    )
    return [utilisation, *(_peer(scene, rates) for _ in range(with_peer))]


def _peer(scene: Scene, rates: dict[str, tuple[float, ...]]) -> Measurement:
    fastest = max((AUTOCAST, COPY), key=lambda precision: sorted(rates[precision])[len(rates[precision]) // 2])
    form = "compiled" if scene.compiled else "eager"
    return Measurement(
        name=f"training {scene.size.name} on {scene.device}",
        unit="tokens/s",
        values=rates["ours"],
        references=rates[fastest],
        against=f"Hugging Face StarCoder2, {form}, {fastest}",
        aim=Aim("at least", 1.2),
    )


def sharing(scene: Scene) -> Measurement:
    """Steps a second of small runs in processes of their own that share a device, against one after another."""
    workers = [Elsewhere(_batches_of_steps, scene) for _ in range(NUM_SHARING)]
    try:
        seconds = interleaved(
            {"together": functools.partial(together, workers), "in turn": functools.partial(_in_turn, workers)},
            scene.num_rounds,
        )
    finally:
        for worker in workers:
            worker.end()
    num_steps = NUM_SHARING * STEPS_SHARING
    return Measurement(
        name=f"{NUM_SHARING} small runs on one {scene.device}",
        unit="steps/s",
        values=tuple(num_steps / spent for spent in seconds["together"]),
        references=tuple(num_steps / spent for spent in seconds["in turn"]),
        against="one after another",
        aim=Aim("at least", 1.5),
    )


def _in_turn(workers: Sequence[Elsewhere]) -> None:
    for worker in workers:
        next(worker)


def _batches_of_steps(scene: Scene) -> Iterator[float]:
    """Trains a run, `STEPS_SHARING` steps at a time."""
    torch.set_num_threads(1)
    steps, clock = training_steps(*parts(runs(scene)[DENSE], scene)), clock_of(scene.device)
    while True:
        records: list[StepRecord] = [next(steps) for _ in range(STEPS_SHARING)]
        clock()  # all the work on the device is done
        yield records[-1].losses[0]
