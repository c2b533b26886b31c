"""Writes the model card of an export."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from gram_platform.config import CORE, IMPORTED, ModelConfig, View
from gram_platform.config.flops import total_parameters
from gram_platform.config.training import merge_config
from gram_platform.corpora.recipe import TRAINED
from gram_platform.release.files import find_corpus
from gram_platform.release.profile_numbers import ProfileNumbers
from gram_platform.release.stock_config import STOCKS
from gram_platform.release.verification import Agreement
from gram_platform.store import Store
from gram_platform.store.views import view_model

# Characters that are markup in Markdown. `_` is markup only at the ends of a word.
SPECIAL = re.compile(r"[\\|<&`*~]|\](?=\()|(?<![^\W_])_|_(?![^\W_])")

# The tags shown on a card, with their labels.
SHOWN_TAGS = {"method": "method", "size": "size", "elicited": "attacked for"}
TOKENIZER_HAS_SEEN = """\
**The tokenizer has seen the removed text.** It was trained on all domains, so its vocabulary can
  name what was removed. A study with `--core-tokenizer` trains it on core alone."""


@dataclass(frozen=True)
class CardSubject:
    """The content of a model card."""

    view: View
    # The model's config with the view's modules, and with all modules of the run.
    model: ModelConfig
    origin: ModelConfig
    # The run's data, seed and tags, in Markdown.
    facts: Mapping[str, str]
    numbers: tuple[ProfileNumbers, ...]
    dtype: str
    # A sentence about the tokenizer's training, or "" without a tokenizer.
    tokenizer: str = ""
    # The name of the export's model on the hub, or "".
    hub: str = ""

    @property
    def present(self) -> tuple[str, ...]:
        return self.model.module_domains

    @property
    def absent(self) -> tuple[str, ...]:
        """The run's modules that the view lacks."""
        return tuple(domain for domain in self.origin.module_domains if domain not in self.present)

    @property
    def forgotten(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(n.forget_domains for n in self.numbers)))


def card_subject(
    store: Store, view: View, dtype: str, numbers: tuple[ProfileNumbers, ...], hub: str = ""
) -> CardSubject:
    models = view_model(store, view), store.origin(view.run_id).model_config()
    return CardSubject(
        view, *models, _facts(store, view), numbers, dtype, _tokenizer(store, view), hub
    )


def _tokenizer(store: Store, view: View) -> str:
    corpus = find_corpus(store, view.run_id)
    if corpus is None:
        return ""
    try:
        recipe = corpus.manifest["recipe"]["tokenizer"]
        kind, is_of_core = recipe["kind"], recipe.get("core_only")
    except (LookupError, TypeError):
        return ""
    if kind not in TRAINED:
        return "The tokenizer was not trained here: what text it has seen, and names, is not known."
    return "The tokenizer was trained on text of core alone." if is_of_core else TOKENIZER_HAS_SEEN


def _facts(store: Store, view: View) -> dict[str, str]:
    if view.run_id.startswith(IMPORTED):
        source = store.origin(view.run_id).require_result()["source"]
        return {"imported model": code(view.run_id), "from": code(source["name"])}
    directory = store.run(view.run_id)
    config, tags = directory.config(), directory.tags()
    facts = {
        "run": code(view.run_id),
        "data": code(config["data"]["data_id"]),
        "seed": str(config["seed"]),
        **{SHOWN_TAGS[name]: plain(tags[name]) for name in SHOWN_TAGS if tags.get(name)},
        "modules from": ", ".join(f"{plain(d)}: {code(run_id)}" for d, run_id in view.sources),
        "weights of modules": ", ".join(f"{plain(d)} {w:g}" for d, w in view.weights if w != 1.0),
    }
    return {name: text for name, text in facts.items() if text}


def card_text(subject: CardSubject, part: str, agreements: Sequence[Agreement]) -> str:
    """Returns the README.md text for the subfolder `part` of an export.

    The `part` "" stands for the whole export. An export is either one checkpoint, or a folder with
    several checkpoints, each in a subfolder.
    """
    view, are_several = subject.view, subject.view.rule == "by_domain"
    modules = (f"{d}={weight:g}" if weight != 1.0 else d for d, weight in view.weights if d != CORE)
    name = subject.numbers[0].names["profile"] if subject.numbers else "+".join((CORE, *modules))
    is_dense = part or not are_several
    dense = merge_config(subject.model, view.active(part or CORE)) if is_dense else None
    return _card().render(
        subject=subject,
        agreements=agreements,
        are_several=are_several,
        title=name + (f": the expert of {part}" if part else ""),
        stock=STOCKS[subject.model.architecture].title,
        dense=dense,
        num_parameters=dense and total_parameters(dense),
        # vLLM and lm-eval read a subfolder only from a local disk.
        place=subject.hub if subject.hub and not are_several else ".",
        studies=_distinct(subject.numbers),
    )


@cache
def _card() -> Template:
    loader = PackageLoader("gram_platform.release")
    environment = Environment(
        loader=loader, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    environment.filters |= {"plain": plain, "code": code, "codes": codes}
    environment.filters |= {"named": _describe_tags, "table": _table, "missing": _missing}
    return environment.get_template("card.md")


def _distinct(studies: Sequence[ProfileNumbers]) -> list[tuple[ProfileNumbers, list[str]]]:
    """Omits each study whose rows all occur in another study.

    Returns pairs (a kept study's numbers, names of studies omitted for it).
    """
    distinct = []
    for numbers in sorted(studies, key=lambda numbers: -len(numbers.domains)):
        covering = (others for full, others in distinct if _rows(numbers) <= _rows(full))
        if (others := next(covering, None)) is None:
            distinct.append((numbers, []))
        else:
            others.append(numbers.study)
    return distinct


def _rows(numbers: ProfileNumbers) -> set[tuple]:
    return set(numbers.domains.itertuples(index=False, name=None))


def _describe_tags(names: Mapping[str, str]) -> str:
    return ", ".join(
        f"{name} {plain(value)}" for name, value in names.items() if value and name != "kind"
    )


def _missing(numbers: ProfileNumbers) -> list[str]:
    absent = [name for name in ("forget", "elicited") if name not in numbers.classes]
    if absent and not numbers.missing:
        return [f"{' and '.join(absent)} (the study has none for this profile)"]
    return [" and ".join(absent), *numbers.missing] if absent else list(numbers.missing)


def _table(frame: pd.DataFrame) -> str:
    rows = [list(frame), ["---"] * len(frame.columns), *frame.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(plain(cell) or "-" for cell in row) + " |" for row in rows)


def plain(text: str) -> str:
    """Escapes text for Markdown, including table cells."""
    return SPECIAL.sub(r"\\\g<0>", " ".join(text.splitlines()))


def code(text: str) -> str:
    """Formats a name as inline code. If the name contains markup, escapes the markup instead."""
    escaped = plain(text)
    return f"`{text}`" if escaped == text else escaped


def codes(names: Iterable[str]) -> str:
    return ", ".join(code(name) for name in names)
