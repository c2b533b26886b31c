"""What it costs that the rows of a decoding step have different profiles."""

import statistics
import time

import torch

from gram_platform.benchmarks.measurement import Measurement
from gram_platform.ladder import DEMO_SIZES, Size
from gram_platform.model.row_modules import Activation, activation
from gram_platform.model.rows import RowReader
from gram_platform.model.transformer import build, initial_weights

DOMAINS = ("core", "cyber", "lisp", "nuclear", "virology")
NUM_ROWS, NUM_SEEN = 64, 32
NUM_STEPS, NUM_TIMES = 20, 15


def measure(size: Size = DEMO_SIZES["0.6M"], num_rows: int = NUM_ROWS) -> Measurement:
    """Milliseconds of a decoding step of rows with four profiles in turn, against one profile of all rows.

    A profile is core and one module, so both batches have as many pairs of row and module. The two are timed in turns
    and the median is taken of each, since a shared machine drifts.
    """
    torch.set_num_threads(1)
    config = size.modular(DOMAINS)
    reader = RowReader(build(config, initial_weights(config, seed=0)).eval().requires_grad_(False), num_rows)
    one = activation(reader.domains, [{DOMAINS[1]: 1.0}] * num_rows)
    mixed = activation(reader.domains, [{DOMAINS[1 + row % 4]: 1.0} for row in range(num_rows)])
    times: dict[str, list[float]] = {"one": [], "mixed": []}
    for _ in range(NUM_TIMES):
        times["one"].append(step_ms(reader, one))
        times["mixed"].append(step_ms(reader, mixed))
    return Measurement(
        name=f"mixed_profiles_{size.name}",
        value=statistics.median(times["mixed"][1:]),
        unit="ms",
        reference=statistics.median(times["one"][1:]),
        against=f"a step of {num_rows} rows that all have one profile, core and a module",
        aim="at most 1.15 times",
    )


def step_ms(reader: RowReader, active: Activation) -> float:
    """Mean milliseconds of a decoding step; every row has read `NUM_SEEN` tokens."""
    tokens = torch.arange(active.num_rows)[:, None]
    seen, one = torch.full((active.num_rows,), NUM_SEEN), torch.ones(active.num_rows, dtype=torch.int64)
    started = time.perf_counter()
    for _ in range(NUM_STEPS):
        reader.read(tokens, seen, one, active)
    return 1000 * (time.perf_counter() - started) / NUM_STEPS
