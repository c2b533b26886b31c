"""What one process holds of a tensor: all of it, or consecutive rows. The currency of saving and loading."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Piece:
    """`rows` are the rows from `first_row` on of a tensor of `shape`; a scalar counts as one row."""

    rows: torch.Tensor
    first_row: int
    shape: tuple[int, ...]

    def between(self, first: int, stop: int) -> torch.Tensor:
        """The rows [first, stop) of the whole tensor, which must be among this piece's; a view."""
        if not self.shape:
            return self.rows
        assert self.first_row <= first <= stop <= self.first_row + len(self.rows), (first, stop, self.first_row)
        return self.rows[first - self.first_row : stop - self.first_row]


def whole(tensor: torch.Tensor) -> Piece:
    """A piece that is the tensor."""
    return Piece(tensor, 0, tuple(tensor.shape))


def as_piece(value: torch.Tensor | Piece) -> Piece:
    return value if isinstance(value, Piece) else whole(value)


def num_rows(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1


def all_rows(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """(0, number of rows), whatever the tensor's name: what a process alone needs."""
    return 0, num_rows(shape)


def rank_rows(count: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """[first, stop) of `count` rows that FSDP2 gives to a rank: equal chunks, rounded up; the last may be short."""
    size = -(-count // num_ranks)
    return min(rank * size, count), min((rank + 1) * size, count)
