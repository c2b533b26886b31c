"""Labelled text -> tokenizer -> packed sequences.

`resolve` turns what a user names into a `CorpusRecipe` (its hash is the `data_id`), `prepare` packs it,
`PackedCorpus` reads it. Names are resolved on first use, so that reading a packed corpus needs numpy alone.
"""

from importlib import import_module

_HOME = {
    "CorpusRecipe": "recipe",
    "CorruptCorpus": "packed",
    "PackedCorpus": "packed",
    "CheckResult": "checking",
    "catalog_names": "resolution",
    "check": "checking",
    "prepare": "pack",
    "resolve": "resolution",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
