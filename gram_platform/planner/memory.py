"""Estimates the peak memory of a rank that trains with `train/learner.py` or `sharding.py`."""

import math
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from gram_platform.config import ModelConfig, RunConfig
from gram_platform.config.flops import BYTES
from gram_platform.config.layout import (
    EFFICIENT,
    LOGITS_AT_ONCE,
    ON_CPU,
    evaluation_batch,
    model_kernel,
    sharing_of,
)
from gram_platform.config.routing import (
    CORE_MLP,
    EMBEDDINGS,
    SHARED,
    Route,
    module_set,
    route_counts,
)
from gram_platform.config.training import DISTILLATION, RESERVED_UNITS

INDEX_BYTES = 8
FLOAT_BYTES = 4
NORM_STATISTICS = 2 * FLOAT_BYTES

# The number of float32 tensors of the logits' size at the peak of the backward pass. They are the
# log-softmax, its gradient and its input's. -H(p) also keeps the probabilities and a product,
# distillation the teacher's log-softmax and probabilities.
FLOAT_LOGITS = {"maxent_kl": 3, "maxent_entropy": 5, DISTILLATION: 5}
EMBEDDING, HEAD = "wte", "head"
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Weight:
    """A parameter. All parameters of a `group` are sharded, gathered and reduced together."""

    name: str
    set: str
    group: str
    shape: tuple[int, ...]

    @property
    def num_values(self) -> int:
        return math.prod(self.shape)

    def shard(self, rank: int, num_ranks: int) -> int:
        """Counts the values in the rows that torch.chunk assigns to a rank.

        Rank 0 has the most rows. FSDP2 pads the other ranks to this number.
        """
        rows, chunk = self.shape[0], -(-self.shape[0] // num_ranks)
        return (min(rows, (rank + 1) * chunk) - min(rows, rank * chunk)) * (self.num_values // rows)


@lru_cache(maxsize=256)
def model_weights(
    config: ModelConfig, own_groups: frozenset[str] = frozenset()
) -> tuple[Weight, ...]:
    """Lists the parameters of `model.transformer.Transformer`, grouped as in `train.sharding`.

    If a domain is in `own_groups`, its module's MLP is a group of its own (see `Sharing`).
    """
    d_model, vocab = config.d_model, config.vocab_size
    weights = [
        Weight("wte.weight", SHARED, EMBEDDING, (vocab, d_model)),
        *_norm(config, "ln_f", HEAD),
        Weight("lm_head.weight", SHARED, HEAD, (vocab, d_model)),
    ]
    for layer in range(config.num_layers):
        weights += _block(config, f"blocks.{layer}", own_groups)
    return tuple(weights)


def _norm(config: ModelConfig, name: str, group: str) -> list[Weight]:
    parts = ("weight",) if config.is_llama else ("weight", "bias")
    return [Weight(f"{name}.{part}", SHARED, group, (config.d_model,)) for part in parts]


def _block(config: ModelConfig, block: str, own_groups: Collection[str]) -> list[Weight]:
    weights = [*_norm(config, f"{block}.ln_1", block), *_norm(config, f"{block}.ln_2", block)]
    heads = _heads(config, config.num_heads, config.num_kv_heads)
    parts = [(f"{block}.attn", SHARED, block, heads)]
    if config.d_mlp:
        parts.append((f"{block}.mlp", CORE_MLP, block, _mlp(config, config.d_mlp)))
    for module in config.modules:
        name = f"{block}.aux.{module.domain}"
        shapes = (_lora if module.kind == "lora" else _mlp)(config, module.width)
        if module.kind == RESERVED_UNITS:
            shapes.pop("c_proj.bias", None)
        group = name if module.domain in own_groups else block
        parts.append((name, module_set(module.domain), group, shapes))
        if module.num_heads:
            heads = _heads(config, module.num_heads, 1)
            parts.append(
                (f"{block}.heads.{module.domain}", module_set(module.domain), block, heads)
            )
    return weights + [
        Weight(f"{n}.{part}", s, g, shape)
        for n, s, g, shapes in parts
        for part, shape in shapes.items()
    ]


def _heads(config: ModelConfig, num_heads: int, num_kv_heads: int) -> Shapes:
    d_model, width = config.d_model, num_heads * config.head_dim
    qkv_width = width + 2 * num_kv_heads * config.head_dim
    return {"qkv_proj.weight": (qkv_width, d_model), "o_proj.weight": (d_model, width)}


def _mlp(config: ModelConfig, width: int) -> Shapes:
    shapes: Shapes = {
        "c_fc.weight": (width, config.d_model),
        "c_proj.weight": (config.d_model, width),
    }
    if config.is_llama:
        return shapes | {"c_gate.weight": (width, config.d_model)}
    return shapes | {"c_fc.bias": (width,), "c_proj.bias": (config.d_model,)}


def _lora(config: ModelConfig, rank: int) -> Shapes:
    changed = {"fc": (config.d_model, config.d_mlp), "proj": (config.d_mlp, config.d_model)}
    changed |= {"gate": changed["fc"]} if config.is_llama else {}
    low: Shapes = {f"{name}_a.weight": (rank, before) for name, (before, _) in changed.items()}
    return low | {f"{name}_b.weight": (after, rank) for name, (_, after) in changed.items()}


def count_saved_bytes(
    config: ModelConfig,
    width: int,
    active: Collection[str],
    trained: Collection[str],
    kernel: str,
    is_mixed: bool = False,
) -> tuple[list[int], int]:
    """Counts the bytes per token that are kept for the backward pass.

    Returns (bytes in each layer, bytes outside the layers). `width` is the bytes per value in the
    forward pass. `active` contains the domains of a route's active modules, and `trained` the
    trained parameter sets. If `is_mixed`, a pass contains several routes, and modules copy
    the sequences that they read.
    """
    shared, core = SHARED in trained, CORE_MLP in trained and config.d_mlp > 0
    modules_trained = any(module_set(d) in trained for d in active)
    # Whether the layer's input needs a gradient.
    flowing = shared or EMBEDDINGS in trained
    layers = []
    for _ in range(config.num_layers):
        attention = _attention(config, width, flowing, active, trained, kernel)
        # Attention keeps nothing if its output needs no gradient.
        mlps = _mlps(config, width, attention > 0, active, trained, is_mixed)
        layers.append(attention + mlps)
        flowing = flowing or shared or core or modules_trained
    head = _norm_bytes(config, width, shared) * flowing + width * config.d_model * shared
    # All layers share one mask.
    mask = width * config.seq_len * (config.document_end >= 0 and flowing)
    return layers, head + mask + INDEX_BYTES


def _norm_bytes(config: ModelConfig, width: int, is_trained: bool) -> int:
    """Counts the bytes per token that a norm keeps: its input and statistics.

    For RMSNorm, torch keeps the input in float32, and the normalised input if the gain is trained.
    GPUs with a fused kernel keep less.
    """
    if config.is_llama:
        return FLOAT_BYTES * config.d_model * (1 + is_trained) + NORM_STATISTICS
    return width * config.d_model + NORM_STATISTICS


def _attention(
    config: ModelConfig,
    width: int,
    flowing: bool,
    active: Collection[str],
    trained: Collection[str],
    kernel: str,
) -> int:
    """Counts the bytes per token that the first norm, attention and active modules' heads keep.

    Rotated queries and keys are one tensor. Values are a slice of the projection's output, which is
    kept whole. The memory-efficient GPU kernel, and the CPU kernel in float32, repeat keys and
    values for each head. All kernels keep the output and one log-sum-exp per head.
    """
    shared = SHARED in trained
    heads = [(config.num_heads, config.num_kv_heads, shared)]
    heads += [
        (m.num_heads, 1, module_set(m.domain) in trained)
        for m in config.modules
        if m.num_heads and m.domain in active
    ]
    total = _norm_bytes(config, width, shared) * (flowing or shared)
    # The normalised input, which all heads share.
    total += width * config.d_model * any(is_trained for *_, is_trained in heads)
    for num_heads, num_kv_heads, is_trained in heads:
        if not (flowing or is_trained):
            continue
        queries, keys = num_heads * config.head_dim, num_kv_heads * config.head_dim
        is_repeated = kernel in (EFFICIENT, ON_CPU) and num_kv_heads < num_heads
        keys_and_values = 2 * queries if is_repeated else queries + 2 * keys
        total += width * (queries + keys + keys_and_values + queries) + FLOAT_BYTES * num_heads
    return total


def _mlps(
    config: ModelConfig,
    width: int,
    flowing: bool,
    active: Collection[str],
    trained: Collection[str],
    is_mixed: bool,
) -> int:
    """Counts the bytes per token that the second norm, core MLP and active modules keep.

    SwiGLU keeps the gate before and after its activation, and the value that the gate multiplies.
    """
    core = CORE_MLP in trained and config.d_mlp > 0
    specs = [(m, module_set(m.domain) in trained) for m in config.modules if m.domain in active]
    loras = [(m.width, is_trained) for m, is_trained in specs if m.kind == "lora"]
    is_input_needed = flowing or SHARED in trained
    norm = _norm_bytes(config, width, SHARED in trained) if is_input_needed else 0
    values, num_before, num_low = 0, *((3, 3) if config.is_llama else (1, 2))
    if core or (any(is_trained for _, is_trained in specs) and not is_mixed):
        # The normalised input, which all MLPs share.
        values += config.d_model
    lora_trained = any(is_trained for _, is_trained in loras)
    if is_input_needed or core or lora_trained:
        # The values before the activation.
        values += num_before * config.d_mlp
    if is_mixed:
        # The copies that modules read, and their outputs.
        lora_values = num_low * (config.d_model + config.d_mlp)
        values += len(loras) * lora_values + (len(specs) - len(loras)) * 2 * config.d_model
    if core or (lora_trained and not is_mixed):
        # The values after the activation.
        values += config.d_mlp
    values += sum(num_low * rank for rank, is_trained in loras if is_trained)
    for module, is_trained in specs:
        if module.kind != "lora":
            values += module.width * (num_before * (is_input_needed or is_trained) + is_trained)
    return width * values + norm


def logits_bytes(config: ModelConfig, width: int, objective: str, num_tokens: int) -> int:
    """Counts a pass's peak bytes for the loss: logits, their gradient and float32 tensors.

    Objectives in FLOAT_LOGITS keep float32 tensors for all tokens. Cross-entropy keeps them for
    only some of the tokens at a time.
    """
    values = num_tokens * config.vocab_size
    part = _float_values(values, width) if width != FLOAT_BYTES else 0
    floats = values * FLOAT_LOGITS[objective] if objective in FLOAT_LOGITS else part
    return 2 * width * values + FLOAT_BYTES * floats


def _float_values(num_values: int, width: int) -> int:
    return min(num_values, LOGITS_AT_ONCE["cuda"]) * (1 + (width != FLOAT_BYTES))


@dataclass(frozen=True)
class Memory:
    """Bytes on the rank that needs the most memory, from the second step on.

    The parts do not all exist at once, and `total` is the peak. A backward pass starts with all
    `activations` and all tensors of the loss (`logits`). Of the loss tensors, it then keeps only
    those in the run's precision (`kept_logits`). It gathers the layers one by one, and recomputes
    them if activations are checkpointed. The new gradients at the end (`reduction`) are added to
    `gradients`, which remain until the optimizer step.
    """

    # Float32 weights, including the initial weights that RMU and UNDO compare with.
    weights: int
    # Copies of the weights in a lower precision, on a single process.
    copies: int
    optimizer: int
    # Gradients that are accumulated over a window of several passes.
    gradients: int
    activations: int
    logits: int
    kept_logits: int
    recomputed: int
    # 0 on a single process.
    gathered: int
    reduction: int
    evaluation: int

    @property
    def total(self) -> int:
        before_end = self.activations + max(self.logits, self.kept_logits + self.recomputed)
        backward = self.gathered + max(before_end, self.reduction)
        always = self.weights + self.copies + self.optimizer
        return always + max(self.gradients + backward, self.evaluation)


@lru_cache(maxsize=1024)
def list_routes(run: RunConfig) -> list[Route]:
    return list(dict.fromkeys(route for _, route in route_counts(run)))


def rank_memory(
    run: RunConfig,
    num_ranks: int,
    checkpointing: bool = False,
    device: str = "cpu",
    num_passes: int = 1,
    num_merged: int = 1,
) -> Memory:
    """Estimates the memory of rank 0, which has the most rows of every parameter.

    The arguments are as in `Learner`. Assumes that the run is not compiled, because compilation may
    fail. A compiled run does not need more memory: it stores no float32 logits.
    """
    width, sharing = BYTES[run.precision], sharing_of(run.model, run.precision, num_ranks, device)
    kernel, batch = model_kernel(device, width, run.model), evaluation_batch(run.model, device)
    weights, routes = model_weights(run.model, sharing.own_groups), list_routes(run)
    # RMU also keeps these layers of the initial model, and UNDO all. Only these have a graph.
    steered = run.objective.steered_layers
    below = replace(run.model, num_layers=steered) if steered else run.model
    distils = run.objective.kind == DISTILLATION
    held = (*weights, *(model_weights(below) if steered or distils else ()))
    trained = frozenset().union(*(route.trained for route in routes))
    most = _most_trained(run, weights, routes)
    window = [w for w in weights if w.set in most]
    shards = sharing.num_shards
    tokens = run.micro_batch // num_ranks // num_passes * num_merged * run.model.seq_len
    is_accumulated = run.micro_batches_per_step * num_passes > num_merged
    is_mixed = num_merged > 1 and len(routes) > 1 and run.routing.accumulation != "uniform"
    gathered = routes
    if is_mixed:
        active = dict(pair for route in routes for pair in route.active)
        gathered = [Route(tuple(active.items()), trained)]
        routes = [Route(route.active, trained) for route in routes]
    # These kinds join the gradients of a pass's micro-batches in a copy. UNDO keeps the teacher's.
    num_logits = 2 + distils + (num_merged > 1 and run.objective.kind in FLOAT_LOGITS)
    gradients, reduction = _gradients(
        window, shards, width, is_accumulated, sharing.reduces_every_pass, device
    )
    # The bytes that the largest route keeps of a micro-batch, and of a recomputed layer.
    saved = [
        count_saved_bytes(below, width, dict(route.active), route.trained, kernel, is_mixed)
        for route in routes
    ]
    activations, recomputed = max(tokens * (sum(layers) + outside) for layers, outside in saved), 0
    if checkpointing:
        inputs = below.num_layers * width * below.d_model
        activations = tokens * (inputs + max(outside for _, outside in saved))
        recomputed = tokens * max(max(layers) for layers, _ in saved)
    evaluation, points = 0, run.eval_points
    if points.num_points:
        whole = sum(shards * w.shard(0, shards) for w in weights) if shards > 1 else 0
        values = min(points.num_sequences, batch) * run.model.seq_len * run.model.vocab_size
        evaluation = width * (whole + values) + FLOAT_BYTES * _float_values(values, width)
    return Memory(
        weights=FLOAT_BYTES * sum(w.shard(0, shards) for w in held),
        copies=width * _num_values(held) if num_ranks == 1 and run.precision != "float32" else 0,
        optimizer=sum(
            2 * FLOAT_BYTES * w.shard(0, shards) + FLOAT_BYTES for w in weights if w.set in trained
        ),
        gradients=gradients,
        activations=activations,
        logits=logits_bytes(run.model, width, run.objective.kind, tokens),
        kept_logits=num_logits * tokens * width * run.model.vocab_size,
        recomputed=recomputed,
        gathered=(
            width * _num_gathered(weights, gathered, shards, sharing.keeps_gathered)
            if num_ranks > 1
            else 0
        ),
        reduction=reduction,
        evaluation=evaluation,
    )


def _num_values(weights: Iterable[Weight]) -> int:
    return sum(w.num_values for w in weights)


def _most_trained(
    run: RunConfig, weights: Collection[Weight], routes: list[Route]
) -> frozenset[str]:
    num_routes = 1 if run.routing.accumulation == "uniform" else run.micro_batches_per_step
    sizes = _set_sizes(weights)
    chosen: frozenset[str] = frozenset()
    for _ in range(min(num_routes, len(routes))):
        best = max(routes, key=lambda route: sum(sizes[s] for s in route.trained - chosen))
        chosen |= best.trained
    return chosen


def _set_sizes(weights: Iterable[Weight]) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for weight in weights:
        sizes[weight.set] += weight.num_values
    return sizes


def _num_gathered(
    weights: Iterable[Weight], routes: list[Route], num_ranks: int, keeps: bool
) -> int:
    """Counts the weight values that a rank has gathered at the peak.

    A rank gathers the embedding or head, a block and the next block. If `keeps` is true, the
    embedding, head and all blocks stay gathered.
    """
    groups: Counter[str] = Counter()
    for weight in weights:
        groups[weight.group] += num_ranks * weight.shard(0, num_ranks)
    num_layers = sum(group.count(".") == 1 for group in groups)
    modules = max(sum(groups[f"blocks.0.aux.{d}"] for d, _ in route.active) for route in routes)
    layer = groups["blocks.0"] + modules
    if keeps:
        return groups[EMBEDDING] + groups[HEAD] + num_layers * layer + groups["blocks.0"]
    return max(groups[EMBEDDING], groups[HEAD]) + layer + groups["blocks.0"]


def _gradients(
    trained: list[Weight],
    num_ranks: int,
    width: int,
    is_accumulated: bool,
    is_each_reduced: bool,
    device: str,
) -> tuple[int, int]:
    """Returns (bytes of accumulated gradients, bytes added at the end of a backward pass).

    On one process, a backward pass computes gradients in the run's precision and adds them to
    float32 gradients. A GPU first converts them to float32, one parameter set at a time. With
    several ranks, each rank keeps whole float32 gradients until the window's last pass, which
    reduces them group by group. The last group is the embedding, which also needs its new gradient
    and a float32 copy. If gradients are reduced in every pass, a rank keeps only those of its rows.
    """
    whole = FLOAT_BYTES * _num_values(trained)
    last = _num_values(w for w in trained if w.group == EMBEDDING)
    # A float32 gradient is added in place.
    fresh = 0 if width == FLOAT_BYTES and is_accumulated else width
    if num_ranks == 1:
        largest = max(_set_sizes(trained).values()) if device == "cuda" and fresh else 0
        new = fresh * _num_values(trained) + FLOAT_BYTES * largest
        return (whole, new) if is_accumulated else (0, whole)
    shards = FLOAT_BYTES * sum(w.shard(0, num_ranks) for w in trained)
    end = shards + (fresh + FLOAT_BYTES) * last
    if is_accumulated and is_each_reduced:
        new_shards = FLOAT_BYTES * sum(
            w.shard(0, num_ranks) for w in trained if w.group != EMBEDDING
        )
        return shards, end - shards + new_shards
    return (whole, max(0, end + FLOAT_BYTES * last - whole)) if is_accumulated else (0, end)
