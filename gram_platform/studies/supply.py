"""What a study's corpora can serve: known before anything is fetched or packed, and exactly once it is packed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gram_platform.config.identity import invalid
from gram_platform.corpora import CorpusRecipe, PackedCorpus
from gram_platform.corpora.packed import SPLITS
from gram_platform.corpora.recipe import HubSource
from gram_platform.corpora.tokenizer import end_of_text_id, load_tokenizer
from gram_platform.methods.nodes import Node
from gram_platform.studies.definition import Preset
from gram_platform.studies.flags import CommonFlags


@dataclass(frozen=True)
class Shortage:
    """A label with too little text in a split, in tokens, at the first of the sizes that it stops."""

    domain: str
    split: str
    available: int  # about, as far as is known before packing
    needed: int
    sizes: tuple[str, ...]
    is_certain: bool  # or it depends on how many bytes a token has

    @property
    def text(self) -> str:
        """One line for people."""
        use = "training" if self.split == "train" else self.split
        amounts = f"about {self.available:,} tokens for {use}, {self.sizes[0]} needs {self.needed:,}"
        verb = "stops at" if self.is_certain else "may stop at"
        return f"label {self.domain}: {amounts}: {verb} {', '.join(self.sizes)}"


def needed_sequences(nodes: Iterable[Node], data_id: str) -> dict[str, int]:
    """Training sequences of each domain that the runs on these data draw from."""
    needed: dict[str, int] = {}
    for node in nodes:
        if node.is_run and node.config.data.data_id == data_id:
            for part in (part for budget in node.config.data.domains for part in budget.pool):
                needed[part.domain] = max(needed.get(part.domain, 0), part.first + part.num_sequences)
    return needed


def shortages(nodes: Sequence[Node], preset: Preset, recipes: Mapping[str, Sequence[CorpusRecipe]]) -> list[Shortage]:
    """Every label and split that a size needs more of than there is; `recipes` are each size's, one a variant."""
    found: dict[tuple[str, str, bool], Shortage] = {}
    for size, own in recipes.items():
        of_size = [node for node in nodes if node.size == size]
        for short in (short for recipe in own for short in _of_recipe(of_size, recipe, size, preset)):
            key = (short.domain, short.split, short.is_certain)
            first = found.setdefault(key, short)
            if size not in first.sizes:
                found[key] = _with_size(first, size)
    return sorted(found.values(), key=lambda short: not short.is_certain)


def _with_size(short: Shortage, size: str) -> Shortage:
    return Shortage(short.domain, short.split, short.available, short.needed, (*short.sizes, size), short.is_certain)


def _of_recipe(nodes: Sequence[Node], recipe: CorpusRecipe, size: str, preset: Preset) -> Iterator[Shortage]:
    trained = needed_sequences(nodes, recipe.data_id)
    wanted = {"train": trained, "validation": dict.fromkeys(recipe.domains, preset.eval_sequences(size))}
    for split in SPLITS:
        for domain in recipe.domains:
            needed, expected = wanted[split].get(domain, 0), recipe.expected_sequences(split, domain)
            if needed > expected:
                is_certain = needed > recipe.most_sequences(split, domain)
                tokens = (expected * recipe.seq_len, needed * recipe.seq_len)
                yield Shortage(domain, split, *tokens, (size,), is_certain)


def require_supply(
    nodes: Sequence[Node], preset: Preset, flags: CommonFlags, recipes: Mapping[str, Sequence[CorpusRecipe]]
) -> None:
    """ValueError for a label that has too little text whatever its tokenizer; nothing is fetched or packed yet."""
    certain = [short.text for short in shortages(nodes, preset, recipes) if short.is_certain]
    if certain:
        raise invalid("corpus", flags.corpus, "a corpus with enough text of every label.\n  " + "\n  ".join(certain))


def require_enough_data(nodes: Iterable[Node], preset: Preset, flags: CommonFlags, corpus: PackedCorpus) -> None:
    """ValueError when a label has too few sequences for its budget or its validation set; nothing has trained yet."""
    needed = needed_sequences(nodes, corpus.data_id)
    for domain in corpus.domains:
        for split, wanted in (("train", needed.get(domain, 0)), ("validation", preset.most_eval_sequences)):
            available = corpus.num_sequences(split, domain)
            if available < wanted:
                tokens = f"of {corpus.seq_len} tokens for {split}; preset {flags.preset!r} needs {wanted}"
                allowed = f"a label with enough text: it has {available} sequences {tokens}"
                raise invalid("corpus", f"{flags.corpus} [label {domain}]", allowed)


def require_document_end(nodes: Iterable[Node], corpus: PackedCorpus) -> None:
    """ValueError when runs that must not attend across documents name another end of text than the corpus has."""
    runs = (node.config for node in nodes if node.is_run and node.config.data.data_id == corpus.data_id)
    named = {run.model.document_end for run in runs} - {-1}
    end = end_of_text_id(load_tokenizer(corpus.tokenizer_path)) if named else -1
    for own in named - {end}:
        raise invalid("model.document_end", own, f"the token that ends texts in {corpus.tokenizer_path}, {end}")


def supply_lines(nodes: Sequence[Node], preset: Preset, recipes: Mapping[str, Sequence[CorpusRecipe]]) -> list[str]:
    """For a dry run: what each size fetches from the hub, and what there is too little of."""
    lines, most = [], {}
    for size, own in recipes.items():
        fetched: dict = {}
        for source in (recipe.source for recipe in own if isinstance(recipe.source, HubSource)):
            for row, num_bytes in zip(source.rows, source.expected_bytes, strict=True):
                key = str(row.identity)
                fetched[key] = max(fetched.get(key, 0), num_bytes)
        for key, num_bytes in fetched.items():
            most[key] = max(most.get(key, 0), num_bytes)
        lines += [f"text to fetch for {size}: {sum(fetched.values()):,} bytes"] if fetched else []
    if len(lines) > 1:
        lines.append(f"text to fetch for all sizes, which share it: {sum(most.values()):,} bytes")
    short = shortages(nodes, preset, recipes)
    heads = {True: "shortage", False: "possible shortage"}
    return [*lines, *(f"{heads[own.is_certain]}: {own.text}" for own in short)]
