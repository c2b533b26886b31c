"""Seeds that differ by a constant: their levels in a grid of which some cells lack a seed.

Ours: the paper pools its seeds as they are. Where a seed is missing from a cell, the level of the others bends a pooled
surface; where none is, levels move no minimum, but count as noise. So every seed of a size has its own constant, and
the constants sum to zero: what is fitted beside them is at the mean level.
"""

from collections.abc import Sequence

import numpy as np

from gram_platform.config.identity import invalid


def level_columns(seeds: Sequence | None, num: int) -> np.ndarray:
    """One column for each seed but the last, [num, K - 1]: 1 for its own losses, -1 for the last one's.

    `seeds` names the seed of each of `num` losses; None is a single one. ValueError for another length.
    """
    if seeds is None:
        return np.empty((num, 0))
    if len(seeds) != num:
        raise invalid("seeds", f"{len(seeds)} seeds", f"one seed for each of {num} losses")
    names, codes = np.unique(np.asarray(seeds).astype(str), return_inverse=True)
    last = np.full((1, max(len(names) - 1, 0)), -1.0)
    return np.concatenate([np.eye(last.size), last])[codes.ravel()]


def levelled(cell: np.ndarray, loss: np.ndarray, seeds: Sequence | None) -> np.ndarray:
    """The losses [n] less the level of their seed, by least squares of loss = cell + level; `cell` [n] numbers cells.

    The means of cells that have every seed stay as they are where all cells have. Seeds that share no cell with others
    cannot be told from the cells: they have level 0.
    """
    columns = level_columns(seeds, len(loss))
    if columns.shape[1] == 0:
        return loss
    within = np.stack([column - _cell_means(cell, column) for column in (*columns.T, loss)], axis=1)
    return loss - columns @ np.linalg.lstsq(within[:, :-1], within[:, -1], rcond=1e-9)[0]


def _cell_means(cell: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean over each value's cell, [n]."""
    return (np.bincount(cell, values) / np.bincount(cell).clip(1))[cell]
