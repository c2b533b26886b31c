"""Training tokens a second of the product's own loop, against Hugging Face, the machine, and itself without modules."""

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from benchmarks.contestants import DENSE, GRAM, GRAM_FROZEN, Scene, parts, runs
from benchmarks.elsewhere import Elsewhere
from benchmarks.matmuls import MatmulRate
from benchmarks.measurement import Aim, Measurement, Settings
from benchmarks.peers import PEERS, peer_steps, why_absent
from benchmarks.precision import stories_26m
from benchmarks.step_shares import OVERHEADS, Stopwatch, watched_steps
from benchmarks.timing import clock_of, interleaved
from gram_platform.config.flops import hardware_flops
from gram_platform.engine.process import freed_memory_kept
from gram_platform.train.learner import DTYPES
from gram_platform.train.loop import StepRecord, training_steps

MATMULS = "matmuls"


def measure(settings: Settings) -> list[Measurement]:
    """The 26M stories model on all cores; the quick form has one of a step's eight micro-batches."""
    size = stories_26m()
    num_micro_batches, num_rounds = (size.batch_size // size.micro_batch, 5) if settings.full else (1, 3)
    scene = Scene(size, num_micro_batches, num_rounds)
    reason = why_absent()
    if reason:
        print(reason, file=sys.stderr)
    with logging(scene, settings.storage) as log, freed_memory_kept():
        return compare(scene, log, with_peer=not reason)


@contextlib.contextmanager
def logging(scene: Scene, storage: str) -> Iterator[Callable[[StepRecord], object]]:
    """What a run does with a step's record: it is summed up, and a heartbeat says where the run is."""
    from gram_platform.engine.node import MetricsSummary  # a machine with torch and numpy alone compares without it
    from gram_platform.store import Store

    run = runs(scene)[DENSE]
    summary, directory = MetricsSummary(run), Store(storage).open_for_writing().run(run.run_id)
    directory.ensure_config(run)
    with directory.start_attempt("benchmark") as attempt:

        def log(record: StepRecord) -> None:
            summary.add(record)
            attempt.heartbeat(record.step, run.num_steps, summary.tokens_per_second)

        yield log


def compare(scene: Scene, log: Callable[[StepRecord], object], with_peer: bool) -> list[Measurement]:
    """Steps of every contestant, interleaved; `log` gets the records of the dense model's.

    Peers are in processes of their own, which have nothing of ours, such as where freed memory goes.
    """
    stopwatch, configs = Stopwatch(), runs(scene)
    matmuls = MatmulRate(scene.size.dense(), scene.size.micro_batch, scene.device, DTYPES[scene.size.precision])
    steps: dict[str, Iterator] = {DENSE: watched_steps(*parts(configs[DENSE], scene), log, stopwatch)}
    steps |= {name: training_steps(*parts(configs[name], scene)) for name in (GRAM, GRAM_FROZEN)}
    peers = {
        precision: Elsewhere(_peer_steps, scene, precision) for precision in PEERS[scene.size.precision] if with_peer
    }
    actions = {name: functools.partial(next, each) for name, each in (steps | peers).items()} | {MATMULS: matmuls}
    try:
        seconds = interleaved(actions, scene.num_rounds, clock_of(scene.device))
    finally:
        for peer in peers.values():
            peer.end()
    measured = [_against_matmuls(scene, seconds[DENSE], matmuls)]
    if with_peer:
        measured = [*_against_peers(scene, seconds), *measured]
    measured += [_against_dense(scene, seconds, GRAM, 0.97), _against_dense(scene, seconds, GRAM_FROZEN, 1.0)]
    return [*measured, _step_overheads(scene, seconds[DENSE], stopwatch)]


def _peer_steps(scene: Scene, precision: str) -> Iterator[float]:
    run = runs(scene)[DENSE]
    _, plan, reader = parts(run, replace(scene, compiled=False))
    return peer_steps(run, plan, reader, precision, scene.device, scene.compiled)


def _rates(scene: Scene, seconds: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(scene.tokens_per_step / spent for spent in seconds)


def _against_peers(scene: Scene, seconds: Mapping[str, tuple[float, ...]]) -> list[Measurement]:
    """The aim is against the peer of the same precision: with bfloat16, float32 masters that it computes with.

    Weights of 16 bits alone, which lose small updates, are beside it.
    """
    same, *_ = peers = PEERS[scene.size.precision]
    return [
        Measurement(
            name=f"training {scene.size.name}" + ("" if precision == same else f", against {precision}"),
            unit="tokens/s",
            values=_rates(scene, seconds[DENSE]),
            references=_rates(scene, seconds[precision]),
            against=f"Hugging Face StarCoder2, {precision}",
            aim=Aim("at least", 1.25) if precision == same else None,
        )
        for precision in peers
    ]


def _against_matmuls(scene: Scene, seconds: tuple[float, ...], matmuls: MatmulRate) -> Measurement:
    flops = hardware_flops(scene.size.dense(), scene.num_micro_batches * scene.size.micro_batch)
    by_product = {f"{name}, GFLOP/s": rate / 1e9 for name, rate in matmuls.by_product.items()}
    return Measurement(
        name=f"FLOPs {scene.size.name}",
        unit="GFLOP/s",
        values=tuple(flops / spent / 1e9 for spent in seconds),
        references=tuple(rate / 1e9 for rate in matmuls.rates[1:]),  # the first is the warm-up's
        against=f"the model's own matrix products in {scene.size.precision}",
        aim=Aim("at least", 0.6),
        details={**by_product, **matmuls.attention()},
    )


def _against_dense(scene: Scene, seconds: Mapping[str, tuple[float, ...]], name: str, bound: float) -> Measurement:
    return Measurement(
        name=f"{name} {scene.size.name}",
        unit="tokens/s",
        values=_rates(scene, seconds[name]),
        references=_rates(scene, seconds[DENSE]),
        against="the dense model in the same loop",
        aim=Aim("at least", bound),
    )


def _step_overheads(scene: Scene, seconds: tuple[float, ...], stopwatch: Stopwatch) -> Measurement:
    shares = stopwatch.shares(sum(seconds), scene.factor)
    return Measurement(
        name=f"step overheads {scene.size.name}",
        unit="of a step",
        values=(sum(shares[part] for part in OVERHEADS),),
        references=(),
        against=f"{scene.size.batch_size * scene.size.seq_len} tokens a step",
        aim=Aim("at most", 0.08, "value"),
        details={**shares, "measured at tokens a step": scene.tokens_per_step},
    )
