"""Turns labelled text into packed token sequences.

`resolve` turns a name or path into a `CorpusRecipe`, whose hash is the `data_id`. `prepare` packs
the corpus, and `PackedCorpus` reads the result. Modules are imported lazily, so that reading a
packed corpus needs only numpy.
"""

from importlib import import_module

_MODULE_OF = {
    "CorpusRecipe": "recipe",
    "CorruptCorpus": "packed",
    "PackedCorpus": "packed",
    "Packing": "resolution",
    "CheckResult": "checking",
    "catalog_names": "resolution",
    "check": "checking",
    "prepare": "pack",
    "resolve": "resolution",
}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
