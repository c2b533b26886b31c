"""Reads a schedule's sequences, copies tensors to and from a GPU, and starts threads."""

import functools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gram_platform.config import DomainBudget, RunConfig
from gram_platform.config.identity import invalid
from gram_platform.config.routing import MicroBatch, domain_permutation, draw_positions
from gram_platform.corpora.packed import TokenRows

# Token sequences by domain: [num_sequences, seq_len + 1].
Arrays = Mapping[str, TokenRows]
# A domain's rows are computed for this many draws at once, since single permutations are slow.
DRAWS_AT_ONCE = 4096


@dataclass(frozen=True)
class Separator:
    """The tokens between a document's prompt and response, and the token that ends a document."""

    tokens: tuple[int, ...]
    end: int

    def places(self, sequences: np.ndarray) -> np.ndarray:
        """Returns where a separator begins, bool [num_sequences, seq_len + 2 - len(tokens)]."""
        windows = np.lib.stride_tricks.sliding_window_view(sequences, len(self.tokens), axis=1)
        return (windows == np.array(self.tokens)).all(-1)

    def of_responses(self, sequences: np.ndarray) -> np.ndarray:
        """Returns which targets belong to a response, bool [num_sequences, seq_len].

        A response includes the token that ends its document. A sequence begins inside a response if
        a document ends before the first separator. Otherwise it begins in a prompt.
        """
        # 1 if a response begins after the token, -1 if a prompt does.
        begins = np.zeros(sequences.shape, dtype=np.int8)
        begins[sequences == self.end] = -1
        begins[:, len(self.tokens) - 1 :][self.places(sequences)] = 1
        latest = np.maximum.accumulate(np.where(begins, np.arange(sequences.shape[1]), -1), axis=1)
        first = np.take_along_axis(begins, (begins != 0).argmax(1)[:, None], axis=1)
        known = np.take_along_axis(begins, np.maximum(latest, 0), axis=1)
        state = np.where(latest >= 0, known, -first)
        return state[:, :-1] > 0


class ScheduleReader:
    """Reads the micro-batches of a run's schedule.

    `arrays` maps domains to tokens [num_sequences, seq_len + 1]. `permuted` means that the rows
    are stored in the order of the domain's permutation. Otherwise the reader permutes them. An
    objective that counts only responses needs a `separator`.
    """

    def __init__(
        self,
        config: RunConfig,
        arrays: Arrays,
        permuted: bool = False,
        separator: Separator | None = None,
    ):
        self.config, self.arrays, self._permuted = config, arrays, permuted
        # By domain: the first cursor, and the rows from there on.
        self._chunks: dict[str, tuple[int, np.ndarray]] = {}
        self._budgets = {d.name: d for d in config.data.domains}
        self._names = tuple(arrays)
        for budget in config.data.domains:
            _require_pool(budget, arrays)
        self.separator = separator
        beginnings = (array[:DRAWS_AT_ONCE] for array in arrays.values())
        if separator and not any(separator.places(rows).any() for rows in beginnings):
            expected = "text between prompt and response in the training data"
            raise invalid("objective.responses_after", config.objective.responses_after, expected)

    def tokens(self, micro_batch: MicroBatch, rank: int = 0, num_ranks: int = 1) -> Tensor:
        """Returns a rank's share of a micro-batch, int64 [micro_batch / num_ranks, seq_len + 1]."""
        share = rank_share(self.rows(micro_batch), rank, num_ranks)
        return torch.from_numpy(self._sequences(share))

    def weights(
        self, micro_batch: MicroBatch, rank: int = 0, num_ranks: int = 1
    ) -> tuple[Tensor, ...]:
        """Returns a rank's loss weights in a tuple, float32 [micro_batch / num_ranks, seq_len].

        Prompt tokens have weight 0. All response tokens have the same weight, such that the mean
        weight of the micro-batch's tokens is 1. Without a separator, returns ().
        """
        if self.separator is None:
            return ()
        counted = self.separator.of_responses(self._sequences(self.rows(micro_batch)))
        weights = (counted * (counted.size / max(1, counted.sum()))).astype(np.float32)
        return (torch.from_numpy(rank_share(weights, rank, num_ranks)),)

    def _sequences(self, rows: np.ndarray) -> np.ndarray:
        sequences = np.empty((len(rows), self.config.model.seq_len + 1), dtype=np.int64)
        for number in np.unique(rows[:, 0]):
            chosen = rows[:, 0] == number
            sequences[chosen] = self.arrays[self._names[number]][rows[chosen, 1]]
        return sequences

    def rows(self, micro_batch: MicroBatch) -> np.ndarray:
        """Returns (domain's index in `arrays`, row) for each sequence, int64 [micro_batch, 2]."""
        domain, size = micro_batch.domain, self.config.micro_batch
        first, rows = self._chunks.get(domain, (0, np.empty((0, 2), dtype=np.int64)))
        if not first <= micro_batch.cursor <= first + len(rows) - size:
            first, rows = micro_batch.cursor, self._chunk(domain, micro_batch.cursor)
            self._chunks[domain] = first, rows
        return rows[micro_batch.cursor - first :][:size]

    def _chunk(self, domain: str, cursor: int) -> np.ndarray:
        budget = self._budgets[domain]
        whole_chunk = max(DRAWS_AT_ONCE // self.config.micro_batch, 1) * self.config.micro_batch
        count = min(whole_chunk, budget.num_draws - cursor)
        positions = draw_positions(self.config.seed, budget, cursor, count)
        rows, begin = np.empty((count, 2), dtype=np.int64), 0
        for part in budget.pool:
            mine = (positions >= begin) & (positions < begin + part.num_sequences)
            in_domain = positions[mine] - begin + part.first
            if not self._permuted:
                data_id, size = self.config.data.data_id, len(self.arrays[part.domain])
                in_domain = domain_permutation(data_id, part.domain, size)(in_domain)
            rows[mine, 0], rows[mine, 1] = self._names.index(part.domain), in_domain
            begin += part.num_sequences
        return rows


def rank_share(rows: np.ndarray, rank: int, num_ranks: int) -> np.ndarray:
    share = len(rows) // num_ranks
    return rows[rank * share : (rank + 1) * share]


def _require_pool(budget: DomainBudget, arrays: Arrays) -> None:
    for part in budget.pool:
        if part.domain not in arrays:
            raise invalid("data.domains", part.domain, "one of the corpus's: " + ", ".join(arrays))
        available, needed = len(arrays[part.domain]), part.first + part.num_sequences
        if needed > available:
            allowed = f"at most the corpus's {available} training sequences"
            raise invalid(f"data.domains[{part.domain}].num_sequences", needed, allowed)


def tokens_of(rows: np.ndarray, device: torch.device | str) -> Tensor:
    return on_device(torch.from_numpy(rows.astype(np.int64)), device)


def on_device(tokens: Tensor, device: torch.device | str) -> Tensor:
    """Copies tokens to a device. Copies to a GPU are asynchronous, from pinned memory."""
    if torch.device(device).type == "cuda":
        tokens = tokens.pin_memory()
    return tokens.to(device, non_blocking=True)


def gpu_of_this_thread() -> Callable[[], None]:
    """Returns a function that makes a new thread use the calling thread's GPU, if any.

    By default, threads start on GPU 0, where each rank of a machine would create a 0.5 GiB context.
    """
    if not torch.cuda.is_initialized():
        return lambda: None
    return functools.partial(torch.cuda.set_device, torch.cuda.current_device())


def start_thread(name: str, target: Callable, *inputs: object) -> threading.Thread:
    """Starts a daemon thread that uses the calling thread's GPU."""
    use_gpu = gpu_of_this_thread()
    thread = threading.Thread(target=lambda: (use_gpu(), target(*inputs)), name=name, daemon=True)
    thread.start()
    return thread


class Staging:
    """Copies GPU tensors on a side stream into pinned memory.

    Other tensors are copied synchronously. The copies are complete after `wait`, which any thread
    can call. The next `copy` may overwrite them.
    """

    def __init__(self) -> None:
        self._pinned: dict[str, Tensor] = {}
        self._stream: torch.cuda.Stream | None = None
        self._copied: torch.cuda.Event | None = None

    def copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Starts copying `tensors` to the CPU. Call `before_change` before changing the tensors."""
        on_gpu = {name: tensor for name, tensor in tensors.items() if tensor.device.type == "cuda"}
        others = tensors.keys() - on_gpu.keys()
        copies = {name: tensors[name].to("cpu", copy=True) for name in others}
        if on_gpu:
            self._stream = self._stream or torch.cuda.Stream()
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                for name, tensor in on_gpu.items():
                    if name not in self._pinned:
                        pinned = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                        self._pinned[name] = pinned
                    copies[name] = self._pinned[name].copy_(tensor, non_blocking=True)
            self._copied = self._stream.record_event()
        return {name: copies[name] for name in tensors}

    def wait(self) -> None:
        if self._copied is not None:
            self._copied.synchronize()

    def before_change(self) -> None:
        """Makes later GPU work wait for the copies, without blocking this process."""
        if self._copied is not None:
            torch.cuda.current_stream().wait_event(self._copied)
