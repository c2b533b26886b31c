"""Describes which rows of a tensor a process holds, for saving and loading."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Piece:
    """Rows of a tensor, from `first_row` on. `shape` is the tensor's. A scalar has one row."""

    rows: Tensor
    first_row: int
    shape: tuple[int, ...]

    def between(self, first: int, stop: int) -> Tensor:
        """Returns a view of rows [first, stop) of the whole tensor. This piece must hold them."""
        if not self.shape:
            return self.rows
        end = self.first_row + len(self.rows)
        assert self.first_row <= first <= stop <= end, (first, stop, self.first_row)
        return self.rows[first - self.first_row : stop - self.first_row]


@dataclass(frozen=True)
class RowsOnDisk:
    """A tensor whose rows are read from disk when it is sliced: `rows_on_disk[first:stop]`."""

    shape: tuple[int, ...]
    read: Callable[[int, int], Tensor]

    def __getitem__(self, rows: slice) -> Tensor:
        return self.read(rows.start, rows.stop)


def whole(tensor: Tensor) -> Piece:
    return Piece(tensor, 0, tuple(tensor.shape))


def as_piece(value: Tensor | Piece) -> Piece:
    return value if isinstance(value, Piece) else whole(value)


def num_rows(shape: tuple[int, ...]) -> int:
    return shape[0] if shape else 1


def all_rows(name: str, shape: tuple[int, ...]) -> tuple[int, int]:
    return 0, num_rows(shape)


def rank_rows(count: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Returns a rank's rows [first, stop) of `count` under FSDP2. The last ranks may have fewer."""
    size = -(-count // num_ranks)
    return min(rank * size, count), min((rank + 1) * size, count)
