"""Estimates one rank's peak memory by part, as `train/learner.py` and `train/sharding.py` use it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from gram_platform.config import ModelConfig, RunConfig
from gram_platform.config.gathering import BYTES, keeps_gathered
from gram_platform.config.routing import Route, route_counts
from gram_platform.planner.activations import evaluation_logits_bytes, logits_bytes, saved_bytes
from gram_platform.planner.weights import Weight, model_weights

FLOAT_BYTES = 4
EVALUATION_LOGITS_BYTES = 64 * 2**20  # equals `train.evaluate.LOGITS_BYTES`: float32 logits of one evaluation batch


@dataclass(frozen=True)
class Memory:
    """Bytes on the fullest rank, from the second step on. Not all parts are alive at once: `total` is the peak.

    A backward pass begins at the loss, with all `activations` and `logits`. It gathers (and, with activation
    checkpointing, recomputes) the layers one by one while `kept_logits` stay. It ends with `reduction`: gradients that
    are being added to the accumulated ones, which stay until the window's step. With `keeps_gathered`
    (`config/gathering.py`) all layers are gathered from the first forward pass on.
    """

    weights: int  # float32 masters
    copies: int  # of the weights in a lower precision, on a single process
    optimizer: int
    gradients: int  # accumulated over a window of several micro-batches
    activations: int
    logits: int
    kept_logits: int
    recomputed: int
    gathered: int  # 0 on a single process
    keeps_gathered: bool
    reduction: int
    evaluation: int

    @property
    def total(self) -> int:
        loss = self.logits + (self.gathered if self.keeps_gathered else 0)
        layers = self.kept_logits + self.recomputed + self.gathered
        backward = max(self.activations + max(loss, layers), self.gathered + self.reduction)
        return self.weights + self.copies + self.optimizer + max(self.gradients + backward, self.evaluation)


def drawn_routes(run: RunConfig) -> list[Route]:
    """Returns every route of the run's plan once."""
    return list(dict.fromkeys(route for _, route in route_counts(run)))


def rank_memory(run: RunConfig, num_ranks: int, checkpointing: bool = False) -> Memory:
    """Estimates the memory of the first of `num_ranks` ranks, which has the most rows of every parameter.

    `checkpointing`: every block saves only its input and is recomputed in the backward pass.
    """
    weights, routes = model_weights(run.model), drawn_routes(run)
    stepped = _of_sets(weights, frozenset().union(*(route.trained for route in routes)))
    window = _of_sets(weights, _most_trained(run, weights, routes))
    width, tokens = BYTES[run.precision], run.micro_batch // num_ranks * run.model.seq_len
    # LoRAs share their block's group, whose gradients must have one dtype (`train/sharding.py`)
    has_loras = any(module.kind == "lora" for module in run.model.modules)
    is_each_reduced = num_ranks > 1 and has_loras and run.precision != "float32"
    gradients, reduction = _gradients(window, num_ranks, width, run.micro_batches_per_step > 1, is_each_reduced)
    activations, recomputed = _activations(run.model, routes, width, tokens, checkpointing)
    keeps = num_ranks > 1 and keeps_gathered(run.model, run.precision)
    return Memory(
        weights=FLOAT_BYTES * sum(w.padded_shard(num_ranks) for w in weights),
        copies=width * _num_values(weights) if num_ranks == 1 and run.precision != "float32" else 0,
        optimizer=sum(2 * FLOAT_BYTES * w.shard(0, num_ranks) + FLOAT_BYTES for w in stepped),
        gradients=gradients,
        activations=activations,
        logits=logits_bytes(run.model, width, run.objective.kind, tokens),
        kept_logits=2 * tokens * width * run.model.vocab_size,
        recomputed=recomputed,
        gathered=width * _num_gathered(weights, routes, num_ranks, keeps) if num_ranks > 1 else 0,
        keeps_gathered=keeps,
        reduction=reduction,
        evaluation=evaluation_logits_bytes(run.model, width, _evaluation_tokens(run)),
    )


def _of_sets(weights: Iterable[Weight], sets: Collection[str]) -> list[Weight]:
    return [w for w in weights if w.set in sets]


def _num_values(weights: Iterable[Weight]) -> int:
    return sum(w.num_values for w in weights)


def _most_trained(run: RunConfig, weights: Collection[Weight], routes: list[Route]) -> frozenset[str]:
    """Returns the sets of a window with the most gradients, which stay until its step; chooses routes greedily."""
    num_routes = 1 if run.routing.accumulation == "uniform" else run.micro_batches_per_step
    sizes: dict[str, int] = {}
    for weight in weights:
        sizes[weight.set] = sizes.get(weight.set, 0) + weight.num_values
    chosen: frozenset[str] = frozenset()
    for _ in range(min(num_routes, len(routes))):
        best = max(routes, key=lambda route: sum(sizes.get(s, 0) for s in route.trained - chosen))
        chosen |= best.trained
    return chosen


def _num_gathered(weights: Iterable[Weight], routes: list[Route], num_ranks: int, keeps: bool) -> int:
    """Counts values of the root's group, of one block (`keeps`: all) with active modules, and of the next block."""
    groups: dict[str, int] = {}
    for weight in weights:
        groups[weight.group] = groups.get(weight.group, 0) + num_ranks * weight.padded_shard(num_ranks)
    num_layers = sum(group.count(".") == 1 for group in groups)
    modules = max(sum(groups.get(f"blocks.0.aux.{d}", 0) for d, _ in route.active) for route in routes)
    layers = num_layers * (groups["blocks.0"] + modules) if keeps else groups["blocks.0"] + modules
    return groups[""] + layers + groups["blocks.0"]


def _gradients(
    trained: list[Weight], num_ranks: int, width: int, is_accumulated: bool, is_each_reduced: bool
) -> tuple[int, int]:
    """Returns bytes of gradients: (accumulated over a window, added to these at the end of a backward pass).

    One process: a backward pass makes gradients in the computing precision, then adds them to float32 ones. Ranks: each
    holds whole float32 gradients until the window's last micro-batch, whose backward pass reduces group by group, the
    root last (its new gradient, and a float32 copy to scatter). If every micro-batch is reduced, a rank holds its rows.
    """
    whole, root = FLOAT_BYTES * _num_values(trained), _num_values(w for w in trained if not w.group)
    fresh = 0 if width == FLOAT_BYTES and is_accumulated else width  # a float32 gradient is added in place
    if num_ranks == 1:
        return (whole, fresh * _num_values(trained)) if is_accumulated else (0, whole)
    shards = FLOAT_BYTES * sum(w.shard(0, num_ranks) for w in trained)
    end = shards + (fresh + FLOAT_BYTES) * root
    if is_accumulated and is_each_reduced:
        new_shards = FLOAT_BYTES * sum(w.shard(0, num_ranks) for w in trained if not w.group)
        return shards, end - shards + new_shards
    return (whole, max(0, end + FLOAT_BYTES * root - whole)) if is_accumulated else (0, end)


def _activations(
    model: ModelConfig, routes: list[Route], width: int, tokens: int, checkpointing: bool
) -> tuple[int, int]:
    """Returns (bytes saved of a micro-batch, bytes of the layer that is recomputed), each of the largest route."""
    saved = [saved_bytes(model, width, dict(route.active), route.trained) for route in routes]
    if checkpointing:
        return max(tokens * (sum(s.layer_inputs) + s.outside) for s in saved), max(
            tokens * max(s.layers) for s in saved
        )
    return max(tokens * (sum(s.layers) + s.outside) for s in saved), 0


def _evaluation_tokens(run: RunConfig) -> int:
    """Counts the tokens of an evaluation batch while training (`train.evaluate.evaluation_batch`)."""
    if not run.eval_points.num_points:
        return 0
    per_sequence = FLOAT_BYTES * run.model.seq_len * run.model.vocab_size
    return min(run.eval_points.num_sequences, max(1, EVALUATION_LOGITS_BYTES // per_sequence)) * run.model.seq_len
