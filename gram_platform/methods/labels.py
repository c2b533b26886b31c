"""Names methods for readers, and orders the names of methods, sizes and seeds.

What is typed or stored has a method's id, as `gram`: flags, tags, names of nodes, table.csv. What is read has its
label, as GRAM: tables of results in the terminal and on pages, figures, claims.
"""

import re

from gram_platform.methods import METHODS

METHOD_LABELS = {
    "gram": "GRAM",
    "gram_subsets": "GRAM (subsets)",
    "gram_lora": "GRAM (LoRA)",
    "ft_full": "FT-Full",
    "ft_lora": "FT-LoRA",
    "ft_mlp": "FT-MLP",
    "maxent": "MaxEnt",
    "rmu": "RMU",
    "graddiff": "GradDiff",
    "demix": "DEMix",
}


def method_label(method: str) -> str:
    """Returns the label of a method's id; the id for the others, as `filtering` and methods of installed packages."""
    return METHOD_LABELS.get(method, method)


UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def method_key(method: str) -> tuple:
    """Sorts methods as METHODS lists them, and all other names last."""
    names = list(METHODS)
    return names.index(method) if method in names else len(names), str(method)


def size_key(size: str) -> tuple:
    """Sorts 50M before 800M before 2B, and all other names last."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kmbt])", str(size).lower())
    return (0, float(found[1]) * UNITS[found[2]], "") if found else (1, 0.0, str(size))


def seed_key(seed: str) -> tuple:
    """Sorts numbers by value, and all other names last."""
    return (0, int(seed), "") if str(seed).isdecimal() else (1, 0, str(seed))
