"""Generates text for several profiles in one batch, one token per sequence at each step.

The B sequences use the first B rows of the key-value cache. When a sequence ends, the sequence in
row B - 1 moves to the free row. In shapes, T is the length of the longest prompt, and V the
vocabulary size.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from gram_platform.model.row_modules import Activation, activation
from gram_platform.model.rows import RowReader
from gram_platform.release.serving.policy import Grant
from gram_platform.train.evaluate import draw, uniforms

# A completion ends at a stop sequence or end-of-text token, or after max_tokens.
STOP, LENGTH = "stop", "length"
# Below this temperature, logits / temperature could overflow.
COLDEST = 1e-6
_NUMBERS = count()


@dataclass(frozen=True)
class GenerationRequest:
    """A tokenized prompt and its sampling parameters."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


@dataclass(eq=False)
class ActiveSequence:
    """A request in progress, its grant, and the tokens drawn so far."""

    request: GenerationRequest
    grant: Grant
    number: int = field(default_factory=lambda: next(_NUMBERS))
    drawn: list[int] = field(default_factory=list)
    end: str = ""

    def __post_init__(self) -> None:
        self.uniforms = uniforms(self.request.max_tokens, "completion", self.request.seed)

    @property
    def num_read(self) -> int:
        """The number of tokens that the model has read: all except the last drawn token."""
        return len(self.request.prompt) + max(0, len(self.drawn) - 1)


class Batch:
    """The sequences being generated. Not thread-safe."""

    def __init__(self, reader: RowReader, vocab_size: int, end_of_text: int):
        self.reader, self.vocab_size, self.end_of_text = reader, vocab_size, end_of_text
        self.sequences: list[ActiveSequence] = []
        self._active: Activation | None = None

    @property
    def num_free(self) -> int:
        return self.reader.num_rows - len(self.sequences)

    def admit(self, new: Sequence[ActiveSequence]) -> list[ActiveSequence]:
        """Reads the prompts of `new` sequences and draws their first tokens. Returns `new`."""
        assert 0 < len(new) <= self.num_free
        first = len(self.sequences)
        self.reader.clear(first, len(new))
        lengths_B = torch.tensor([len(s.request.prompt) for s in new])
        tokens_BT = torch.zeros(len(new), int(lengths_B.max()), dtype=torch.int64)
        for row, sequence in enumerate(new):
            tokens_BT[row, : lengths_B[row]] = torch.tensor(sequence.request.prompt)
        self.sequences.extend(new)
        self._active = None
        seen_B = torch.zeros_like(lengths_B)
        self._advance(new, tokens_BT, seen_B, lengths_B, self._activation(new), first)
        return list(new)

    def step(self) -> list[ActiveSequence]:
        """Draws a token for each active sequence. Returns the sequences, including any that end."""
        sequences = list(self.sequences)
        if not sequences:
            return []
        self._active = self._active or self._activation(sequences)
        tokens_B1 = torch.tensor([[s.drawn[-1]] for s in sequences])
        seen_B = torch.tensor([s.num_read for s in sequences])
        self._advance(sequences, tokens_B1, seen_B, torch.ones_like(seen_B), self._active, 0)
        return sequences

    def remove(self, sequence: ActiveSequence) -> None:
        """Frees the row of a sequence. Does nothing if the sequence is not active."""
        if sequence not in self.sequences:
            return
        row, last = self.sequences.index(sequence), len(self.sequences) - 1
        if row != last:
            self.reader.move(last, row, self.sequences[last].num_read)
            self.sequences[row] = self.sequences[last]
        self.sequences.pop()
        self._active = None

    def _activation(self, sequences: Sequence[ActiveSequence]) -> Activation:
        weights = [dict(s.grant.weights) for s in sequences]
        return activation(self.reader.domains, weights, str(self.reader.device))

    def _advance(
        self, sequences, tokens_BT, seen_B, lengths_B, active: Activation, first: int
    ) -> None:
        inputs = (x.to(self.reader.device) for x in (tokens_BT, seen_B, lengths_B))
        logits_BV = self.reader.read(*inputs, active, first)[:, : self.vocab_size]
        pairs = [(s.request.temperature, s.request.top_p) for s in sequences]
        temperatures_B, top_ps_B = torch.tensor(pairs, dtype=torch.float64).T
        uniforms_B = torch.stack([s.uniforms[len(s.drawn)] for s in sequences])
        tokens_B = next_tokens(logits_BV, temperatures_B, top_ps_B, uniforms_B)
        for sequence, token in zip(sequences, tokens_B.tolist(), strict=True):
            sequence.drawn.append(token)
            if token == self.end_of_text:
                sequence.end = STOP
            elif len(sequence.drawn) == sequence.request.max_tokens:
                sequence.end = LENGTH
        for sequence in [s for s in sequences if s.end]:
            self.remove(sequence)


def next_tokens(
    logits_BV: torch.Tensor,
    temperatures_B: torch.Tensor,
    top_ps_B: torch.Tensor,
    uniforms_B: torch.Tensor,
) -> torch.Tensor:
    """Draws the next token of each row, with the row's temperature, `top_p` and random number.

    Returns tokens_B (int64, on the CPU). If a row's temperature is below COLDEST, takes its most
    likely token, or the lowest id in a tie. Otherwise, draws from the smallest set of most likely
    tokens whose probabilities sum to at least `top_p`.
    """
    tokens_B = logits_BV.argmax(dim=-1).cpu()
    warm = (temperatures_B >= COLDEST).nonzero()[:, 0]
    if len(warm):
        scaled = logits_BV[warm.to(logits_BV.device)].cpu().double() / temperatures_B[warm, None]
        if (top_ps_B[warm] < 1).any():
            scaled = _nucleus(scaled, top_ps_B[warm])
        tokens_B[warm] = draw(scaled, uniforms_B[warm])[0]
    return tokens_B


def _nucleus(logits_BV: torch.Tensor, top_ps_B: torch.Tensor) -> torch.Tensor:
    p_BV, order_BV = logits_BV.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    before_BV = p_BV.cumsum(dim=-1) - p_BV
    outside_BV = (before_BV >= top_ps_B[:, None]) & (top_ps_B[:, None] < 1)
    outside_BV[:, 0] = False
    return logits_BV.masked_fill(
        torch.zeros_like(outside_BV).scatter(1, order_BV, outside_BV), -torch.inf
    )
