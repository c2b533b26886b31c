"""Lists the methods. Each maps a setting to the runs to train and the views to compare.

A method's id, such as `gram`, appears in flags, tags, node names and table.csv. Its label, such as
GRAM, appears in figures, claims and tables for readers.
"""

import re

from gram_platform.config.identity import require_choice
from gram_platform.config.plugins import Table
from gram_platform.methods import branches, demix, dense, gram, sgtm, undo, unlearning
from gram_platform.methods.setting import MethodRuns, Profile, Setting

METHODS = Table(
    "gram.methods",
    # In the order of tables. Methods of installed packages follow.
    {
        "baseline": dense.plan_baseline,
        "filtering": dense.plan_filtering,
        "gram": gram.plan,
        "gram_subsets": gram.plan_subsets,
        "gram_lora": gram.plan_lora,
        "ft_full": branches.plan_full,
        "ft_lora": branches.plan_lora,
        "ft_mlp": branches.plan_mlp,
        "maxent": unlearning.plan_maxent,
        "rmu": unlearning.plan_rmu,
        "graddiff": unlearning.plan_graddiff,
        "undo": undo.plan,
        "demix": demix.plan,
        "sgtm": sgtm.plan,
    },
)

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
    "undo": "UNDO",
    "demix": "DEMix",
    "sgtm": "SGTM",
}
UNITS = {"k": 1e3, "m": 1e6, "b": 1e9, "t": 1e12}


def plan(method: str, setting: Setting) -> MethodRuns:
    """Returns a method's runs and views in a setting. Raises ValueError for an unknown method."""
    require_choice("methods", method, tuple(METHODS))
    return METHODS[method](setting)


def method_label(method: str) -> str:
    """Returns a method's label, which defaults to its id, as for `filtering`."""
    return METHOD_LABELS.get(method, method)


def method_key(method: str) -> tuple:
    """Returns a sort key. Methods sort in the order of METHODS, and before all other names."""
    names = list(METHODS)
    return names.index(method) if method in names else len(names), str(method)


def size_key(size: str) -> tuple:
    """Returns a sort key. Sizes sort by value (50M, 800M, 2B), and before all other names."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kmbt])", str(size).lower())
    return (0, round(float(match[1]) * UNITS[match[2]], 3), "") if match else (1, 0.0, str(size))


def seed_key(seed: str) -> tuple:
    """Returns a sort key. Numbers sort by value, and before all other names."""
    return (0, int(seed), "") if str(seed).isdecimal() else (1, 0, str(seed))


__all__ = ["METHODS", "MethodRuns", "Profile", "Setting", "plan"]
