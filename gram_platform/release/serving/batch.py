"""Sequences that are continued together, one token of each at a time, whatever their profiles.

The first B rows of the reader's memory are the sequences at work; a new one is put behind them, and the last takes the
place of one that has ended.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from itertools import count

import torch

from gram_platform.config.identity import invalid, require_int, require_real
from gram_platform.model.row_modules import Activation, activation
from gram_platform.model.rows import RowReader
from gram_platform.release.serving.drawing import next_tokens
from gram_platform.release.serving.policy import Grant
from gram_platform.train.evaluate import uniforms

STOP, LENGTH = "stop", "length"  # why a completion ends: an end of text, or as many tokens as were asked for
_NUMBERS = count()


@dataclass(frozen=True)
class Order:
    """What is to be continued, and how: token ids, and no text."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0

    def check(self, vocab_size: int, context: int) -> None:
        """ValueError unless it is valid and fits a context of so many tokens; the last token is never read."""
        require_int("max_tokens", self.max_tokens, 1, context)
        require_real("temperature", self.temperature, 0.0, 100.0)
        require_real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        require_int("seed", self.seed, -(2**63), 2**63 - 1)
        if not 1 <= len(self.prompt) <= context + 1 - self.max_tokens:
            allowed = f"1 to {context + 1 - self.max_tokens} tokens beside max_tokens={self.max_tokens}"
            raise invalid("prompt", f"{len(self.prompt)} tokens", allowed)
        if not all(type(token) is int and 0 <= token < vocab_size for token in self.prompt):
            raise invalid("prompt", "token ids", f"integers from 0 to {vocab_size - 1}")


@dataclass(eq=False)
class Sequence:
    """An order at work: what it may use, and how far it is."""

    order: Order
    grant: Grant
    number: int = field(default_factory=lambda: next(_NUMBERS))
    drawn: list[int] = field(default_factory=list)
    end: str = ""

    def __post_init__(self) -> None:
        self.uniforms = uniforms(self.order.max_tokens, "completion", self.order.seed)

    @property
    def num_read(self) -> int:
        """The last token drawn is not read yet."""
        return len(self.order.prompt) + max(0, len(self.drawn) - 1)


class Batch:
    """The sequences at work. Not safe for several threads."""

    def __init__(self, reader: RowReader, vocab_size: int, end_of_text: int):
        self.reader, self.vocab_size, self.end_of_text = reader, vocab_size, end_of_text
        self.sequences: list[Sequence] = []
        self._active: Activation | None = None

    @property
    def num_free(self) -> int:
        return self.reader.num_rows - len(self.sequences)

    def admit(self, new: Many[Sequence]) -> list[Sequence]:
        """Read the prompts and draw each one's first token; those that have not ended are at work. Returns `new`."""
        assert 0 < len(new) <= self.num_free
        first = len(self.sequences)
        self.reader.clear(first, len(new))
        lengths_B = torch.tensor([len(s.order.prompt) for s in new])
        tokens_BT = torch.zeros(len(new), int(lengths_B.max()), dtype=torch.int64)
        for row, sequence in enumerate(new):
            tokens_BT[row, : lengths_B[row]] = torch.tensor(sequence.order.prompt)
        self.sequences.extend(new)
        self._active = None
        self._advance(new, tokens_BT, torch.zeros_like(lengths_B), lengths_B, self._activation(new), first)
        return list(new)

    def step(self) -> list[Sequence]:
        """Draw one token more of every sequence at work; returns them, also those that have ended with it."""
        at_work = list(self.sequences)
        if not at_work:
            return []
        if self._active is None:
            self._active = self._activation(at_work)
        tokens_B1 = torch.tensor([[s.drawn[-1]] for s in at_work])
        seen_B = torch.tensor([s.num_read for s in at_work])
        self._advance(at_work, tokens_B1, seen_B, torch.ones_like(seen_B), self._active, 0)
        return at_work

    def remove(self, sequence: Sequence) -> None:
        """Its row is free from now on; nothing when it is not at work."""
        if sequence not in self.sequences:
            return
        row, last = self.sequences.index(sequence), len(self.sequences) - 1
        if row != last:
            self.reader.move(last, row, self.sequences[last].num_read)
            self.sequences[row] = self.sequences[last]
        self.sequences.pop()
        self._active = None

    def _activation(self, sequences: Many[Sequence]) -> Activation:
        return activation(self.reader.domains, [dict(s.grant.weights) for s in sequences], str(self.reader.device))

    def _advance(self, sequences, tokens_BT, seen_B, lengths_B, active: Activation, first: int) -> None:
        device = self.reader.device
        inputs = (tokens_BT.to(device), seen_B.to(device), lengths_B.to(device))
        logits_BV = self.reader.read(*inputs, active, first)[:, : self.vocab_size]
        temperatures_B = torch.tensor([s.order.temperature for s in sequences], dtype=torch.float64)
        top_ps_B = torch.tensor([s.order.top_p for s in sequences], dtype=torch.float64)
        uniforms_B = torch.stack([s.uniforms[len(s.drawn)] for s in sequences])
        for sequence, token in zip(
            sequences, next_tokens(logits_BV, temperatures_B, top_ps_B, uniforms_B).tolist(), strict=True
        ):
            sequence.drawn.append(token)
            if token == self.end_of_text:
                sequence.end = STOP
            elif len(sequence.drawn) == sequence.order.max_tokens:
                sequence.end = LENGTH
        for sequence in [s for s in sequences if s.end]:
            self.remove(sequence)
