"""Pretrains language models whose dual-use capabilities can be switched off.

Notebooks import these functions from here. Each loads its module on first use, so importing the
package is fast.
"""

from importlib import import_module

__version__ = "0.1.0"

# Function: its module.
PUBLIC = {
    "analyse_grid": "analysis.lr_laws",
    "compute_ratio": "analysis.compute_ratio",
    "fit_learning_curve": "analysis.compute_ratio",
    "fit_pooled_curve": "analysis.ratios",
    "fit_power_law": "analysis.trends",
    "fit_quadratic": "analysis.surface",
    "load_configs": "tracking.frame",
    "load_curves": "tracking.frame",
    "load_runs": "tracking.frame",
    "load_store": "tracking.frame",
    "load_store_curves": "tracking.frame",
    "load_trials": "analysis.lr_grid",
}

__all__ = ["__version__", *PUBLIC]


def __getattr__(name: str):
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *PUBLIC})
