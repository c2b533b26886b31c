"""Writes the model card of an export: what the model is, what was removed, what was measured, what is not promised."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from gram_platform.config import CORE, IMPORTED, ModelConfig, View
from gram_platform.config.flops import total_parameters
from gram_platform.config.identity import has_shape
from gram_platform.config.training import merged_config
from gram_platform.corpora.recipe import TRAINED
from gram_platform.release.export import data_id_of
from gram_platform.release.profile_numbers import ProfileNumbers
from gram_platform.release.stock_config import STOCKS
from gram_platform.release.verification import Agreement
from gram_platform.store import Store
from gram_platform.store.data import open_corpus
from gram_platform.store.views import model_config, view_model

SPECIAL = re.compile(r"[\\|<&`*~]|\](?=\()|(?<![^\W_])_|_(?![^\W_])")  # in Markdown; `_` at the ends of words
ANY_TEXT = "-"  # an empty cell

CAUTIONS = """\
- **Removed is not unlearnable.** Whoever has these weights can finetune them: the rows *elicited* say how far an
  attacker came with a small sample of the removed data, at the attacker's best checkpoint. No such row means that
  nobody has tried.
- **Only what was labelled was removed.** Text of a removed domain that carried another label, or none, trained the
  core, and what other domains teach about it stays.
- **Measured at this scale and on these domains.** A compute ratio is a share of training compute by validation loss,
  not by tasks; it says nothing about larger models, other data or other attacks.
- **No safety guarantee.** A low ratio does not show that the model cannot be of use for harm."""

TOKENIZER_HAS_SEEN = """\
**The tokenizer has seen the removed text.** It was trained on all domains, so its vocabulary can name what was
  removed. A study with `--core-tokenizer` trains it on core alone."""
TOKENIZER_SHAPE = {"recipe": {"tokenizer": {"kind": str}}}


@dataclass(frozen=True)
class CardSubject:
    """Holds the contents of a card: a view and the studies' numbers for it."""

    view: View
    model: ModelConfig  # the view's, with its own modules only
    origin: ModelConfig  # the run's, with all modules
    facts: Mapping[str, str]  # the run's data, seed, tags; in Markdown
    numbers: tuple[ProfileNumbers, ...]
    dtype: str
    tokenizer: str = ""  # what is known of the text that it was trained on; "": the export has none
    hub: str = ""  # the model of the hub that it is uploaded to; "": none

    @property
    def absent(self) -> tuple[str, ...]:
        """Lists the modules that the run has and the view lacks."""
        return tuple(domain for domain in self.origin.module_domains if domain not in self.present)

    @property
    def present(self) -> tuple[str, ...]:
        return self.model.module_domains


def card_subject(
    store: Store, view: View, dtype: str, numbers: tuple[ProfileNumbers, ...], hub: str = ""
) -> CardSubject:
    """Collects the contents of a view's card from the storage."""
    models = view_model(store, view), model_config(store, view.run_id)
    return CardSubject(view, *models, _facts(store, view), numbers, dtype, _tokenizer(store, view), hub)


def _tokenizer(store: Store, view: View) -> str:
    data_id = data_id_of(store, view.run_id)
    try:
        manifest = open_corpus(store, data_id).manifest if data_id else {}
    except ValueError:
        return ""
    if not has_shape(manifest, TOKENIZER_SHAPE):
        return ""
    recipe = manifest["recipe"]["tokenizer"]
    if recipe["kind"] not in TRAINED:
        return "The tokenizer was not trained here: what text it has seen, and names, is not known."
    if recipe.get("core_only"):
        return "The tokenizer was trained on text of core alone."
    return TOKENIZER_HAS_SEEN


def _facts(store: Store, view: View) -> dict[str, str]:
    if view.run_id.startswith(IMPORTED):
        source = store.origin(view.run_id).require_result()["source"]
        return {"imported model": code(view.run_id), "from": code(source["name"])}
    directory = store.run(view.run_id)
    config, tags = directory.config(), directory.tags()
    named = {name: tags[name] for name in ("method", "size", "elicited") if tags.get(name)}
    facts = {"run": code(view.run_id), "data": code(config["data"]["data_id"]), "seed": str(config["seed"])}
    facts |= {"attacked for" if name == "elicited" else name: plain(value) for name, value in named.items()}
    if view.sources:
        facts["modules from"] = ", ".join(f"{plain(domain)}: {code(run_id)}" for domain, run_id in view.sources)
    weighted = {domain: weight for domain, weight in view.weights if weight != 1.0}
    if weighted:
        facts["weights of modules"] = ", ".join(f"{plain(domain)} {weight:g}" for domain, weight in weighted.items())
    return facts


def card_text(subject: CardSubject, part: str, agreements: Sequence[Agreement]) -> str:
    """Writes README.md for the checkpoint in the subfolder `part` ("": the only checkpoint, or the top of several)."""
    sections = [
        _head(subject, part),
        _contents(subject, part),
        "## How to use it\n\n" + _commands(subject, part),
        _removed(subject),
        "## What was measured\n\n" + _measured(subject),
        "## What this does not promise\n\n" + CAUTIONS + (f"\n- {subject.tokenizer}" if subject.tokenizer else ""),
        "## Verified\n\n" + "\n".join(f"- {agreement}." for agreement in agreements),
    ]
    return "\n\n".join(sections) + "\n"


def _head(subject: CardSubject, part: str) -> str:
    lines = ["---", "library_name: transformers", "pipeline_tag: text-generation", "tags:", "- gram"]
    lines.append(f"- {subject.model.architecture}")
    modules = (f"{d}={weight:g}" if weight != 1.0 else d for d, weight in subject.view.weights if d != CORE)
    name = subject.numbers[0].names["profile"] if subject.numbers else "+".join((CORE, *modules))
    title = plain(name + (f": the expert of {part}" if part else ""))
    return "\n".join([*lines, "---", "", f"# {title}"])


def _contents(subject: CardSubject, part: str) -> str:
    lines = [f"| {name} | {value} |" for name, value in subject.facts.items()]
    table = "\n".join(["| | |", "|---|---|", *lines, *_shape_rows(subject, part)])
    title = STOCKS[subject.model.architecture].title
    text = f"A {title} checkpoint of one capability profile: the core and the modules that the profile keeps, merged "
    text += "into one dense model. `AutoModelForCausalLM` and `AutoTokenizer` load it."
    if subject.view.rule == "by_domain":
        text = f"The profile is a dense {title} checkpoint for each expert: {codes(subject.present)}. Text of a "
        text += f"domain without one goes to {code(CORE)}."
    if subject.model.document_end >= 0:
        text += " It was trained with attention that ends with a document: give it one document at a time."
    return f"{text}\n\n{table}"


def _shape_rows(subject: CardSubject, part: str) -> list[str]:
    if subject.view.rule == "by_domain" and not part:
        return []
    active = subject.view.active(part) if part else dict(subject.view.weights)
    dense = merged_config(subject.model, active)
    shape = f"{dense.num_layers} layers, width {dense.d_model}, MLP {dense.d_mlp}, context {dense.seq_len}"
    return [f"| shape | {shape} |", f"| parameters | {total_parameters(dense):,} in {subject.dtype} |"]


def _commands(subject: CardSubject, part: str) -> str:
    """Writes the commands that serve and score this model; an expert is a subfolder, which both read from a disk."""
    several = subject.view.rule == "by_domain"
    if several and not part:
        return "Each expert's folder is a checkpoint, whose card has the commands."
    model = subject.hub if subject.hub and not several else "."
    lines = ["```sh", f"vllm serve {model} --dtype {subject.dtype}"]
    arguments = f"pretrained={model},dtype={subject.dtype}"
    lines += [f"lm_eval --model hf --model_args {arguments} --tasks wmdp_bio,wmdp_cyber,mmlu", "```"]
    notes = [] if model != "." else ["In this folder:"]
    if not subject.tokenizer:
        notes.insert(0, "There is no tokenizer here: name one by `--tokenizer NAME` and `,tokenizer=NAME`.")
    return "\n\n".join([*notes, "\n".join(lines)])


def _removed(subject: CardSubject) -> str:
    lines = []
    if subject.absent:
        lines.append(f"Modules of the run that are absent from these files: {codes(subject.absent)}.")
    forgotten = tuple(dict.fromkeys(domain for numbers in subject.numbers for domain in numbers.removed))
    if forgotten:
        lines.append(f"Domains that the profile does not keep: {codes(forgotten)}.")
    return "## What was removed\n\n" + ("\n".join(lines) or "Nothing that this storage knows of.")


def _measured(subject: CardSubject) -> str:
    if not subject.numbers:
        return (
            "No study of this storage has evaluated this profile (or its baseline is not complete), so there are no "
            "compute ratios here: forget and elicited numbers are unknown."
        )
    by_rows = sorted(subject.numbers, key=lambda numbers: -len(numbers.domains))
    shown: dict[str, tuple[ProfileNumbers, list[str]]] = {}  # study -> its numbers, other studies with the same ones
    for numbers in by_rows:
        same = next((name for name, (full, _) in shown.items() if _is_within(numbers.domains, full.domains)), None)
        if same is None:
            shown[numbers.study] = numbers, []
        else:
            shown[same][1].append(numbers.study)
    return "\n\n".join(_study(numbers, others) for numbers, others in shown.values())


def _is_within(part: pd.DataFrame, whole: pd.DataFrame) -> bool:
    """Tells whether every row of one table is in another; studies share runs."""
    rows = set(whole.itertuples(index=False, name=None))
    return all(row in rows for row in part.itertuples(index=False, name=None))


def _study(numbers: ProfileNumbers, others: Sequence[str]) -> str:
    names = ", ".join(f"{name} {plain(value)}" for name, value in numbers.names.items() if value and name != "kind")
    facts = plain(" ".join(numbers.facts))
    lines = [f"### {plain(numbers.title)}", f"Study {code(numbers.study)} ({names}). {facts}"]
    lines.append(
        "A compute ratio is the place of a loss on the baseline's learning curve: 1 is the baseline at its end. It is "
        "no share of a finished, shorter training. *elicited* is after an attack on what was removed; its loss is the "
        "attacker's best."
    )
    if len(numbers.domains):
        lines.append(_markdown(numbers.domains))
    summary = [f"{name} {text}" for name, text in numbers.classes.items()]
    if summary:
        lines.append(f"Over {numbers.num_seeds} seed(s), averaged over the domains of a class: {'; '.join(summary)}.")
    lines += [f"Missing: {plain(text)}." for text in _missing(numbers)]
    if others:
        lines.append(f"The same evaluations are in: {codes(dict.fromkeys(others))}.")
    if numbers.num_seeds == 1:
        lines.append("There is one seed, and one seed has no interval.")
    return "\n\n".join(lines)


def _missing(numbers: ProfileNumbers) -> list[str]:
    """Lists missing forget and elicited numbers, then the study's own notes on the profile."""
    absent = [name for name in ("forget", "elicited") if name not in numbers.classes]
    if absent and not numbers.missing:
        return [f"{' and '.join(absent)} (the study has none for this profile)"]
    return [" and ".join(absent), *numbers.missing] if absent else list(numbers.missing)


def _markdown(frame: pd.DataFrame) -> str:
    rows = [list(frame.columns), ["---"] * len(frame.columns), *frame.astype(str).to_numpy().tolist()]
    return "\n".join("| " + " | ".join(plain(cell) or ANY_TEXT for cell in row) + " |" for row in rows)


# ------------------------------------------------------------------------------------------------- escaping


def plain(text: str) -> str:
    """Escapes text for Markdown, also in a table cell: no table, code, tag, link, emphasis or line break."""
    return SPECIAL.sub(r"\\\g<0>", " ".join(text.splitlines()))


def code(text: str) -> str:
    """Formats a name as a code span, or escapes it: a code span cannot hold escapes."""
    escaped = plain(text)
    return f"`{text}`" if escaped == text else escaped


def codes(names: Iterable[str]) -> str:
    """Formats names as code, separated by commas."""
    return ", ".join(code(name) for name in names)
