"""Verifies an export by comparing the logits of the written checkpoint with the view's.

Loads one layer of each model at a time. Both models compute in float64, so that differences come
from the files, not from the order of summation. (Only rotary embeddings may round to float32.)
Rounding weights to bfloat16 changes logits by a few thousandths of the largest logit, which could
hide an error. So the stored tensors are also compared bit by bit with the view's merged weights.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import Module

from gram_platform.config import ModelConfig, View
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import invalid
from gram_platform.config.training import merge_config
from gram_platform.corpora.packed import PackedCorpus
from gram_platform.corpora.tokenizer import encode, end_of_text_id, load_tokenizer
from gram_platform.model.transformer import Block, Rotary, make_norm
from gram_platform.release.files import open_checkpoint, shapes_by_file
from gram_platform.release.stock_config import native_config
from gram_platform.release.stock_tensors import CheckpointWeights, foreign_shapes, foreign_weights
from gram_platform.store import Store
from gram_platform.store.tensors import DiskTensors, stream_bytes
from gram_platform.store.views import Weights, load_view

# The largest allowed difference, for bfloat16 as a share of the largest logit.
FLOAT32_TOLERANCE, BFLOAT16_TOLERANCE = 1e-4, 0.05
NUM_TOKENS = 256
ROWS_AT_ONCE = 1024
TEXT_ENDINGS = (".json", ".md")
RANDOM_SEED = 0


@dataclass(frozen=True)
class Agreement:
    """How much the logits of a checkpoint differ from the view's, on `num_tokens` tokens."""

    largest_difference: float
    largest_logit: float
    tolerance: float
    num_tokens: int
    tokens: str

    def __str__(self) -> str:
        return (
            f"Largest difference of a logit {self.largest_difference:.2g} (tolerance"
            f" {self.tolerance:.2g}, largest logit {self.largest_logit:.3g}) over"
            f" {self.num_tokens:,} tokens of {self.tokens}"
        )


def verification_tokens(
    corpus: PackedCorpus | None, model: ModelConfig
) -> tuple[torch.Tensor, str]:
    """Returns tokens_BT and a description of their source.

    Takes the first tokens of each domain's validation split. If `corpus` is None, takes random ids.
    """
    num_tokens = min(model.seq_len, NUM_TOKENS)
    if corpus is None:
        generator = torch.Generator().manual_seed(RANDOM_SEED)
        tokens = torch.randint(model.vocab_size, (2, num_tokens), generator=generator)
        return tokens, "random ids, for the run's corpus is not in this storage"
    rows = [corpus.validation(domain)[0, :num_tokens].astype(np.int64) for domain in corpus.domains]
    return torch.from_numpy(np.stack(rows)), f"the validation split of {', '.join(corpus.domains)}"


# (config, weights by name, weights of the active modules).
Model = tuple[ModelConfig, Weights, Mapping[str, float]]
Tokens = tuple[torch.Tensor, str]


def verify_export(
    view: Model,
    folder: Path,
    dtype: torch.dtype,
    tokens: Tokens,
    progress: Callable[[int, int], None],
) -> Agreement:
    """Verifies a checkpoint. Raises ValueError if its logits or tensors differ from the view's.

    `progress` is called with (bytes done, total bytes).
    """
    config, weights, active = view
    dense = native_config(json.loads((folder / "config.json").read_text()))
    expected = merge_config(config, active)
    if dense != expected:
        raise invalid("export", str(dense), f"a model of the shape {expected}")
    _require_nothing_else(folder, dense, dtype)
    with open_checkpoint(folder) as written:
        read = CheckpointWeights(dense, written, is_tied=False, has_biases=True)
        read.require_zero_biases()
        modules = tuple(module for module in config.modules if module.domain in active)
        routed = (replace(config, modules=modules), weights, active)
        layer_bytes = dtype.itemsize * total_parameters(dense) // dense.num_layers
        difference = largest_difference(
            routed,
            (dense, read, {}),
            tokens[0],
            lambda done: progress(done * layer_bytes, dense.num_layers * layer_bytes),
        )
        agreement = _agreement(*difference, dtype, tokens, folder)
        for name, merged in foreign_weights(*view):
            if not _is_written(merged.to(dtype), written, name):
                raise invalid("export", name, "the view's merged weights, bit by bit")
            # Frees the memory before the next tensor is made.
            del merged
    return agreement


def _is_written(tensor: torch.Tensor, written: DiskTensors, name: str) -> bool:
    firsts = range(0, len(tensor), ROWS_AT_ONCE)
    parts = zip(firsts, tensor.split(ROWS_AT_ONCE), strict=True)
    return all(torch.equal(part, written.rows(name, n, n + len(part))) for n, part in parts)


def verify_by_transformers(
    store: Store, view: View, folder: Path, dtype: torch.dtype, tokens: Tokens
) -> Agreement:
    """Loads the checkpoint in `transformers` and compares its logits with the view's, in float32.

    Also tests `generate`. Rounding causes small differences, because `transformers` sums in another
    order. Raises ImportError without `transformers`, and ValueError for a large difference.
    """
    from transformers import AutoModelForCausalLM

    config, ours = load_view(store, view)
    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    with torch.no_grad():
        expected, actual = ours(tokens[0], dict(view.weights)), model(tokens[0]).logits
        start, length = tokens[0][:, :1], min(8, config.seq_len - 1)
        generated = model.generate(
            start,
            attention_mask=torch.ones_like(start),
            min_new_tokens=length,
            max_new_tokens=length,
            do_sample=False,
            pad_token_id=0,
        )
    assert generated.shape[1] == 1 + length, generated.shape
    largest = float((expected - actual).abs().max()), float(expected.abs().max())
    return _agreement(*largest, dtype, (tokens[0], f"{tokens[1]}, by transformers"), folder)


def require_same_ids(corpus: PackedCorpus, folder: Path, tokens_BT: torch.Tensor) -> None:
    """Raises ValueError if `transformers` encodes a text to ids that differ from training.

    Tests the text of each row of `tokens_BT`, and two that contain the end-of-text token's name.
    """
    from transformers import AutoTokenizer

    ours, exported = load_tokenizer(corpus.tokenizer_path), AutoTokenizer.from_pretrained(folder)
    end = ours.id_to_token(end_of_text_id(ours))
    texts = [ours.decode(row, skip_special_tokens=False) for row in tokens_BT.tolist()]
    for text in [*texts, f"one {end} two", end]:
        expected = encode(ours, text, corpus.tokenizer_path)
        if (ids := exported(text)["input_ids"]) != expected:
            raise invalid("export", ids, f"the ids of training, {expected}, for the text {text!r}")


def _agreement(
    difference: float, logit: float, dtype: torch.dtype, tokens: Tokens, folder: Path
) -> Agreement:
    tolerance = FLOAT32_TOLERANCE if dtype == torch.float32 else BFLOAT16_TOLERANCE * logit
    agreement = Agreement(difference, logit, tolerance, tokens[0].numel(), tokens[1])
    # `not ... <=` also rejects NaN.
    if not difference <= tolerance:
        raise invalid("export", str(folder), f"a checkpoint with the view's logits. {agreement}")
    return agreement


def _require_nothing_else(folder: Path, model: ModelConfig, dtype: torch.dtype) -> None:
    expected, files = foreign_shapes(model), shapes_by_file(folder)
    shapes = {name: shape for held in files.values() for name, shape in held.items()}
    if shapes != expected:
        different = sorted(set(shapes.items()) ^ set(expected.items()))
        allowed = "the tensors of a dense model of the view's width and no others"
        raise invalid("export", different[:4], allowed)
    paths = (path for path in folder.rglob("*") if path.suffix not in TEXT_ENDINGS)
    actual = {path.name: path.stat().st_size for path in paths}
    sizes = {
        file: stream_bytes({n: s for n, s in expected.items() if n in held}, dtype)
        for file, held in files.items()
    }
    if actual != sizes:
        raise invalid("export", actual, f"only the files and sizes of the view's tensors: {sizes}")


@torch.no_grad()
def largest_difference(
    left: Model, right: Model, tokens_BT: torch.Tensor, progress: Callable[[int], None]
) -> tuple[float, float]:
    """Returns (the logits' largest absolute difference, `left`'s largest absolute logit).

    The models `left` and `right` must have the same d_model, depth and vocabulary. `progress` is
    called with the number of completed layers.
    """
    models = (left, right)
    states = [weights["wte.weight"][tokens_BT].double() for _, weights, _ in models]
    for layer in range(left[0].num_layers):
        states = [_layer(*model, layer, x) for model, x in zip(models, states, strict=True)]
        progress(layer + 1)
    norms = [_load(make_norm, config, weights, "ln_f.") for config, weights, _ in models]
    states = [norm(x_BTD) for norm, x_BTD in zip(norms, states, strict=True)]
    differences, largest = [], []
    for first in range(0, left[0].vocab_size, ROWS_AT_ONCE):
        rows = first, min(first + ROWS_AT_ONCE, left[0].vocab_size)
        heads = [weights.rows("lm_head.weight", *rows).double() for _, weights, _ in models]
        expected, actual = (x_BTD @ head.T for x_BTD, head in zip(states, heads, strict=True))
        # `max` returns NaN if an element is NaN.
        differences.append((expected - actual).abs().max())
        largest.append(expected.abs().max())
    return float(torch.stack(differences).max()), float(torch.stack(largest).max())


def _layer(
    config: ModelConfig,
    weights: Weights,
    active: Mapping[str, float],
    layer: int,
    x_BTD: torch.Tensor,
) -> torch.Tensor:
    block = _load(Block, config, weights, f"blocks.{layer}.")
    rotary = Rotary(config.head_dim, config.seq_len, config.rope_theta).double()
    rotary.reset_tables()
    ordered = {domain: active[domain] for domain in config.module_domains if domain in active}
    return block(x_BTD, rotary, ordered)


def _load(
    make: Callable[[ModelConfig], Module], config: ModelConfig, weights: Weights, prefix: str
) -> Module:
    with torch.device("meta"):
        module = make(config)
    module.load_state_dict(
        {name: weights[prefix + name].double() for name in module.state_dict()}, assign=True
    )
    return module
