"""Measures the cost of different profiles in the rows of one decoding step."""

import dataclasses

import torch

from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from benchmarks.timing import interleaved
from gram_platform.config.ladder import DEMO_SIZES, STORIES_SIZES, Size
from gram_platform.model.row_modules import Activation, activation
from gram_platform.model.rows import RowReader
from gram_platform.model.transformer import build, initial_weights

DOMAINS = ("core", "cyber", "lisp", "nuclear", "virology")
NUM_ROWS, NUM_SEEN = 64, 32
NUM_STEPS, NUM_ROUNDS, QUICK_ROUNDS = 10, 15, 7


def measure(settings: BenchmarkSettings) -> list[BenchmarkResult]:
    """Decodes with a 0.6M model with modules of an eighth and the 26M stories model, each with MLP and LoRA modules."""
    sizes = dataclasses.replace(DEMO_SIZES["0.6M"], d_aux=48), STORIES_SIZES["26M"]
    num_rounds = NUM_ROUNDS if settings.full else QUICK_ROUNDS
    return [compare(size, num_rounds, kind=kind) for kind in ("mlp", "lora") for size in sizes]


def compare(size: Size, num_rounds: int, num_rows: int = NUM_ROWS, kind: str = "mlp") -> BenchmarkResult:
    """Measures milliseconds of a decoding step of rows with four profiles in turn, against one profile for all rows.

    A profile is core and one module, so both batches have as many pairs of row and module. One thread.
    """
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config = size.modular(DOMAINS, kind)
    reader = RowReader(build(config, initial_weights(config, seed=0)).eval().requires_grad_(False), num_rows)
    one = activation(reader.domains, [{DOMAINS[1]: 1.0}] * num_rows)
    mixed = activation(reader.domains, [{DOMAINS[1 + row % 4]: 1.0} for row in range(num_rows)])
    actions = {"one": lambda: steps(reader, one), "mixed": lambda: steps(reader, mixed)}
    seconds = interleaved(actions, num_rounds)
    torch.set_num_threads(num_threads)
    return BenchmarkResult(
        name=f"mixed {'profiles' if kind == 'mlp' else 'LoRAs'} {size.name}",
        unit="ms",
        values=tuple(1000 * spent / NUM_STEPS for spent in seconds["mixed"]),
        references=tuple(1000 * spent / NUM_STEPS for spent in seconds["one"]),
        against=f"a step of {num_rows} rows that all have one profile, core and a module",
        aim=Aim("at most", 1.15),
    )


def steps(reader: RowReader, active: Activation) -> None:
    """Runs decoding steps of rows that have each read `NUM_SEEN` tokens."""
    tokens = torch.arange(active.pairs.num_rows)[:, None]
    seen, one = torch.full((active.pairs.num_rows,), NUM_SEEN), torch.ones(active.pairs.num_rows, dtype=torch.int64)
    for _ in range(NUM_STEPS):
        reader.read(tokens, seen, one, active)
