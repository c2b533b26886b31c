"""Measures the rate of a model's own matrix products: an upper bound for its training."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F

from benchmarks.timing import Clock, clock_of
from gram_platform.config import ModelConfig

NUM_TIMES = 3  # consecutive calls per timing


@dataclass(frozen=True)
class Product:
    """Holds one linear layer's shape and its count in the model."""

    name: str
    fan_in: int
    fan_out: int
    count: int


def products(config: ModelConfig) -> tuple[Product, ...]:
    """Lists the linear layers of a dense model."""
    layers, d_model = config.num_layers, config.d_model
    qkv_width = (config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    return (
        Product("qkv_proj", d_model, qkv_width, layers),
        Product("o_proj", d_model, d_model, layers),
        Product("c_fc", d_model, config.d_mlp, layers),
        Product("c_proj", config.d_mlp, d_model, layers),
        Product("lm_head", d_model, config.vocab_size, 1),
    )


@dataclass
class MatmulRate:
    """Times the output, input gradient and weight gradient of every linear layer on one micro-batch, at each call.

    `rates`: FLOP/s over all the model's products, one number per call. `by_product` and `attention` are from the last
    call.
    """

    config: ModelConfig
    num_sequences: int
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.bfloat16
    rates: list[float] = field(default_factory=list)
    by_product: dict[str, float] = field(default_factory=dict)

    def __call__(self) -> None:
        clock = clock_of(self.device)
        total_flops, total_s = 0.0, 0.0
        for product in products(self.config):
            flops = 2 * self.num_sequences * self.config.seq_len * product.fan_in * product.fan_out
            seconds = {kind: _seconds(call, clock) for kind, call in self._calls(product)}
            self.by_product |= {f"{product.name} {kind}": flops / spent for kind, spent in seconds.items()}
            total_flops += product.count * len(seconds) * flops
            total_s += product.count * sum(seconds.values())
        self.rates.append(total_flops / total_s)

    def _calls(self, product: Product) -> Iterator[tuple[str, Callable[[], object]]]:
        num_tokens = self.num_sequences * self.config.seq_len
        x_NI = self._random(num_tokens, product.fan_in)
        weight_OI = self._random(product.fan_out, product.fan_in)
        gradient_NO = self._random(num_tokens, product.fan_out)
        yield "output", lambda: F.linear(x_NI, weight_OI)
        yield "input gradient", lambda: gradient_NO @ weight_OI
        yield "weight gradient", lambda: gradient_NO.t() @ x_NI

    def attention(self) -> Mapping[str, float]:
        """Times causal attention of one layer in seconds: forward, and forward with backward."""
        clock, config = clock_of(self.device), self.config
        shape = (self.num_sequences, config.num_heads, config.seq_len, config.head_dim)
        q_BHTh, k_BHTh, v_BHTh = (self._random(*shape).requires_grad_(True) for _ in range(3))

        def forward() -> torch.Tensor:
            return F.scaled_dot_product_attention(q_BHTh, k_BHTh, v_BHTh, is_causal=True)

        gradient = self._random(*shape)
        both = _seconds(lambda: forward().backward(gradient), clock)
        return {"attention forward, s": _seconds(forward, clock), "attention forward and backward, s": both}

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=self.device).to(self.dtype)


def _seconds(call: Callable[[], object], clock: Clock) -> float:
    """Times one call after a warm-up."""
    call()
    started = clock()
    for _ in range(NUM_TIMES):
        call()
    return (clock() - started) / NUM_TIMES
