"""Plans the domain, route and sequences of every micro-batch of a run.

The schedule depends only on the config. Hashes of the seed and a counter replace a random
generator, so the schedule is the same on all ranks and after interruptions. A keyed permutation
maps a micro-batch's position in its domain to its sequences, so no shuffled indices are stored.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from gram_platform.config import CORE, DomainBudget, RunConfig, is_unlabelled
from gram_platform.config.identity import canonical_json

SHARED = "shared"
CORE_MLP = "core_mlp"
# Of `SHARED`: the embedding and the norms.
EMBEDDINGS = "embeddings"
NUM_ROUNDS = 6
_U64 = np.uint64


def module_set(domain: str) -> str:
    return f"module:{domain}"


@dataclass(frozen=True)
class Route:
    active: tuple[tuple[str, float], ...]
    trained: frozenset[str]


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch of a schedule.

    `cursor` is the number of sequences of `domain` that earlier micro-batches take.
    """

    index: int
    domain: str
    route: Route
    cursor: int


def passes_of_window(window: Sequence[MicroBatch], most: int) -> list[list[MicroBatch]]:
    """Divides a window into as few passes as possible, each of at most `most` micro-batches.

    Micro-batches that train the core come first, unless each pass is one micro-batch.
    """
    number = -(-len(window) // most)
    size = -(-len(window) // number)
    ordered = list(window)
    if size > 1:
        ordered.sort(key=lambda micro_batch: SHARED not in micro_batch.route.trained)
    return [ordered[first : first + size] for first in range(0, len(ordered), size)]


def hash_key(*parts: object) -> int:
    """Hashes the canonical JSON of values to a 64-bit integer."""
    return int.from_bytes(
        hashlib.sha256(canonical_json(list(parts)).encode()).digest()[:8], "little"
    )


def hash_counters(key: int | np.ndarray, counters: np.ndarray) -> np.ndarray:
    """Returns a pseudo-random uint64 for each counter.

    Counter n gets output n of the generator SplitMix64 (Steele et al., 2014), whose seed is `key`.
    If `key` is an array of uint64, each counter has its own seed.
    """
    z = np.asarray(key, _U64) + (counters.astype(_U64) + _U64(1)) * _U64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> _U64(27))) * _U64(0x94D049BB133111EB)
    return z ^ (z >> _U64(31))


def uniforms(key: int, counters: np.ndarray) -> np.ndarray:
    """Returns a pseudo-random float64 in [0, 1) for each counter."""
    return (hash_counters(key, counters) >> _U64(11)) * 2.0**-53


def permute(size: int, keys: np.ndarray, indices: np.ndarray, inverse: bool = False) -> np.ndarray:
    """Permutes int64 indices in [0, size). Each index's key selects the index's permutation.

    `keys` are uint64. If `inverse`, inverts the permutations. Applies a balanced Feistel network of
    six rounds over the next power of four until the result is below `size` (Black and Rogaway 2002,
    "Ciphers with arbitrary finite domains").
    """
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    values = _feistel(indices.astype(_U64), keys, half_bits, inverse)
    outside = values >= size
    while outside.any():
        values[outside] = _feistel(values[outside], keys[outside], half_bits, inverse)
        outside = values >= size
    return values.astype(np.int64)


def _feistel(values: np.ndarray, keys: np.ndarray, half_bits: int, inverse: bool) -> np.ndarray:
    mask, shift = _U64((1 << half_bits) - 1), _U64(half_bits)
    halves, rounds = (values >> shift, values & mask), range(NUM_ROUNDS)
    left, right = halves[::-1] if inverse else halves
    for number in reversed(rounds) if inverse else rounds:
        round_keys = keys + _U64(number * 0x632BE59BD9B4E019 & (2**64 - 1))
        left, right = right, left ^ (hash_counters(round_keys, right) & mask)
    return (right << shift) | left if inverse else (left << shift) | right


class Schedule:
    """A run's micro-batches. `schedule[t]` is micro-batch t, and `len(schedule)` their number.

    All micro-batches of a unit have the same route. A unit is a micro-batch if accumulation is
    heterogeneous, and a window if it is uniform.
    """

    def __init__(self, config: RunConfig):
        self.config = config
        self.domains = tuple(d.name for d in config.data.domains)
        self._modules = config.model.module_domains
        self._per_unit = config.route_unit // config.micro_batch
        self._domain_of_unit = self._shuffle_domains()
        self._units = np.arange(len(self._domain_of_unit))
        spread = np.array([config.routing.spread(domain) for domain in self.domains])
        self._spreads = self._draw("aux spread", spread[self._domain_of_unit])
        self._beside = self._draw_companions()

    def _hash_units(self, name: str) -> np.ndarray:
        return hash_counters(hash_key(self.config.seed, name), self._units)

    def _draw(self, name: str, probability: float | np.ndarray) -> np.ndarray:
        return uniforms(hash_key(self.config.seed, name), self._units) < probability

    def _draw_companions(self) -> np.ndarray:
        """Returns each unit's companions as int64 [num_units], in which bit i is module i.

        Companions are active modules other than the unit's own. A core batch has no companion,
        one (as in the paper), a random subset [ours] or all modules.
        """
        routing, num_subsets = self.config.routing, 1 << len(self._modules)
        beside = np.zeros(len(self._units), dtype=np.int64)
        if not self._modules:
            return beside
        is_aux = np.array([d in self._modules for d in self.domains])[self._domain_of_unit]
        is_core = np.array([d == CORE for d in self.domains])[self._domain_of_unit] & ~is_aux
        one = np.int64(1) << self._draw_companion()
        subset = (self._hash_units("subset") >> _U64(1)).astype(np.int64) % num_subsets
        if routing.companions == "all":
            subset[:] = num_subsets - 1
        has_companion = is_core & self._draw("core robust", routing.p_core_robust)
        chosen = one if routing.companions == "one" else np.where(subset > 0, subset, one)
        beside[has_companion] = chosen[has_companion]
        if routing.p_aux_companion:
            has_companion = is_aux & self._draw("aux companion", routing.p_aux_companion)
            # The subset may have the domain's own module, which is active anyway.
            beside[has_companion] = subset[has_companion]
        return beside

    def _draw_companion(self) -> np.ndarray:
        draws = self._hash_units("robust module")
        weights = dict(self.config.routing.companion_weights)
        if not weights:
            return (draws % _U64(len(self._modules))).astype(np.int64)
        edges = np.cumsum([weights[domain] for domain in self._modules])
        return np.searchsorted(edges / edges[-1], (draws >> _U64(11)) * 2.0**-53, side="right")

    def _shuffle_domains(self) -> np.ndarray:
        """Returns the domain index of each unit, int16 [num_units], in an order fixed by the seed.

        Each domain gets exactly its number of units in the mixture. In unlearning runs, forget and
        retain units alternate.
        """
        counts = [d.num_draws // self.config.route_unit for d in self.config.data.domains]
        in_order = np.repeat(np.arange(len(counts), dtype=np.int16), counts)
        priority = hash_counters(hash_key(self.config.seed, "order"), np.arange(len(in_order)))
        shuffled = in_order[np.argsort(priority, kind="stable")]
        if not self.config.objective.forget:
            return shuffled
        forget = np.isin(shuffled, [self.domains.index(d) for d in self.config.objective.forget])
        return np.stack([shuffled[forget], shuffled[~forget]], axis=1).ravel()

    def __len__(self) -> int:
        return len(self._domain_of_unit) * self._per_unit

    def __getitem__(self, index: int) -> MicroBatch:
        if not 0 <= index < len(self):
            raise IndexError(f"micro-batch {index}: the schedule has {len(self)}")
        unit, within = divmod(index, self._per_unit)
        domain = self.domains[self._domain_of_unit[unit]]
        cursor = (int(self._unit_rank[unit]) * self._per_unit + within) * self.config.micro_batch
        return MicroBatch(index, domain, self._route(unit, domain), cursor)

    def window(self, step: int) -> list[MicroBatch]:
        size = self.config.micro_batches_per_step
        return [self[t] for t in range(step * size, (step + 1) * size)]

    def route_counts(self, num_micro_batches: int | None = None) -> dict[tuple[str, Route], int]:
        """Counts each (domain, route) in the first `num_micro_batches` (default: all)."""
        count = len(self) if num_micro_batches is None else min(num_micro_batches, len(self))
        domains = self._domain_of_unit[: -(-count // self._per_unit)]
        sizes = np.full(len(domains), self._per_unit)
        sizes[-1:] -= len(domains) * self._per_unit - count
        sets, beside = np.unique(self._beside[: len(domains)], return_inverse=True)
        draws = (domains * np.int64(2) + self._spreads[: len(domains)]) * len(sets) + beside
        _, units, kinds = np.unique(draws, return_index=True, return_inverse=True)
        counts: dict[tuple[str, Route], int] = {}
        for unit, number in zip(units.tolist(), np.bincount(kinds, sizes).tolist(), strict=True):
            domain = self.domains[domains[unit]]
            key = domain, self._route(unit, domain)
            counts[key] = counts.get(key, 0) + round(number)
        return counts

    @cached_property
    def _unit_rank(self) -> np.ndarray:
        rank = np.empty(len(self._domain_of_unit), dtype=np.int64)
        for index in range(len(self.domains)):
            mine = self._domain_of_unit == index
            rank[mine] = np.arange(mine.sum())
        return rank

    def _route(self, unit: int, domain: str) -> Route:
        """Returns a unit's route, as in the paper (`sec:method`).

        - A batch of a domain without a module trains the core and the batch's companions.
        - An auxiliary batch trains its module. With probability `p_aux_spread`, it also trains the
          core. Otherwise, if `spreads_embeddings` is set, it also trains the embeddings. Companions
          are active but not trained [ours].
        - An unlabelled batch activates and trains everything (`app:partial`).
        - With `freeze_core`, no batch trains the core.
        """
        routing = self.config.routing
        core_sets = set() if routing.freeze_core else {SHARED, CORE_MLP}
        beside = -1 if is_unlabelled(domain) else int(self._beside[unit])
        active = [d for i, d in enumerate(self._modules) if beside >> i & 1 or d == domain]
        if domain in self._modules and not is_unlabelled(domain):
            others = {EMBEDDINGS} if routing.spreads_embeddings else set()
            trained = {module_set(domain)} | (core_sets if self._spreads[unit] else others)
        else:
            trained = core_sets | {module_set(d) for d in active}
        return Route(tuple((d, 1.0) for d in active), frozenset(trained))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of every unit's domain and route, stored in results as `plan_sha256`."""
        digest = hashlib.sha256(self._domain_of_unit.astype("<i2").tobytes())
        for unit, domain_index in enumerate(self._domain_of_unit):
            route = self._route(unit, self.domains[domain_index])
            digest.update(repr((route.active, sorted(route.trained))).encode())
        return digest.hexdigest()[:16]


_schedule = lru_cache(maxsize=4)(Schedule)


@lru_cache(maxsize=4096)
def route_counts(
    config: RunConfig, num_steps: int | None = None
) -> Mapping[tuple[str, Route], int]:
    """Counts the micro-batches of each (domain, route) in the first `num_steps` (default: all)."""
    num_micro_batches = None if num_steps is None else num_steps * config.micro_batches_per_step
    return _schedule(config).route_counts(num_micro_batches)


def draw_positions(seed: int, budget: DomainBudget, cursor: int, count: int) -> np.ndarray:
    """Returns the pool positions of `count` draws of a domain, starting with draw `cursor`.

    They are int64 [count]. Each pass over the pool has a different order, determined by seed,
    domain and pass number.
    """
    passes, within = np.divmod(np.arange(cursor, cursor + count), budget.num_sequences)
    numbers = range(int(passes[0]), int(passes[-1]) + 1)
    keys = np.array([hash_key(seed, "draw", budget.name, p) for p in numbers], dtype=_U64)
    return permute(budget.num_sequences, keys[passes - passes[0]], within)


def domain_permutation(
    data_id: str, domain: str, num_available: int, inverse: bool = False
) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that computes the fixed permutation of a domain's training sequences.

    The function maps int64 indices in [0, num_available) to int64 images or, if `inverse`, images
    to indices. Pools are prefixes or slices of the permutation.
    """
    key = _U64(hash_key(data_id, "domain", domain))
    return lambda indices: permute(num_available, np.full(indices.shape, key), indices, inverse)
