"""Packs the corpora that a storage lacks, and compares their text with what the runs need."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gram_platform.config.identity import invalid
from gram_platform.config.terminal import say, say_bytes
from gram_platform.corpora.packed import SPLITS, PackedCorpus
from gram_platform.corpora.parts import Workers
from gram_platform.corpora.recipe import CorpusRecipe, FilesSource, HubSource
from gram_platform.corpora.tokenizer import end_of_text_id, load_tokenizer
from gram_platform.engine.cluster import connect
from gram_platform.engine.part_workers import part_workers
from gram_platform.methods.nodes import Node
from gram_platform.store import Store
from gram_platform.store.data import lost_text, provide_corpus
from gram_platform.studies.definition import Preset
from gram_platform.studies.plan import Plan, StudyPlan


def pack_corpora(plan: Plan, store: Store) -> None:
    """Packs the corpora that are not packed yet, by tasks of Ray unless the study runs in process.

    The tasks run on this machine, unless all machines see the text and the parts: a storage that
    they mount, and text that is fetched or generated. Then the cluster's machines for packing do
    it, where it has or starts some. ValueError for a run that fits no number of ranks, before
    packing, and for a label with too little packed text.
    """
    for part in plan.studies:
        for run in (node for node in part.nodes if node.is_run):
            # Raises where --num-workers auto finds no number of ranks.
            part.ranks.of(run.config, run.size)
    for part in plan.studies:
        for recipe in part.corpora:
            anywhere = store.is_local and not isinstance(recipe.source, FilesSource)
            workers = ray_workers(anywhere, plan.verbose) if plan.needs_ray else None
            corpus = provide_corpus(recipe, store, say_bytes(), workers)
            for line in corpus.skipped:
                say(line)
            require_enough_data(part, corpus)
            require_document_end(part.nodes, corpus)


def ray_workers(anywhere: bool = False, is_verbose: bool = False) -> Workers:
    """Returns `part_workers` that connect to Ray, or start it, once there is work for two."""
    return part_workers(partial(connect, is_verbose), anywhere)


@dataclass(frozen=True)
class Shortage:
    """A domain with too little text in a split, in tokens needed and available at the first of its
    sizes."""

    domain: str
    split: str
    # An estimate before packing.
    available: int
    needed: int
    sizes: tuple[str, ...]
    # False where it depends on the bytes of a token.
    is_certain: bool

    @property
    def text(self) -> str:
        use = "training" if self.split == "train" else self.split
        amounts = (
            f"about {self.available:,} tokens for {use}, {self.sizes[0]} needs {self.needed:,}"
        )
        verb = "stops at" if self.is_certain else "may stop at"
        return f"domain {self.domain}: {amounts}: {verb} {', '.join(self.sizes)}"


def needed_sequences(nodes: Iterable[Node], data_id: str) -> dict[str, int]:
    """Returns the training sequences of each domain from which the runs on these data draw."""
    needed: dict[str, int] = {}
    for node in nodes:
        if node.is_run and node.config.data.data_id == data_id:
            for part in (part for budget in node.config.data.domains for part in budget.pool):
                needed[part.domain] = max(
                    needed.get(part.domain, 0), part.first + part.num_sequences
                )
    return needed


def shortages(
    nodes: Sequence[Node], preset: Preset, recipes: Mapping[str, Sequence[CorpusRecipe]]
) -> list[Shortage]:
    """Returns every domain and split of which a size needs too much; `recipes` of each size: one
    for each variant."""
    found: dict[tuple[str, str, bool], Shortage] = {}
    for size, recipes_of_size in recipes.items():
        of_size = [node for node in nodes if node.size == size]
        for short in (
            short
            for recipe in recipes_of_size
            for short in _of_recipe(of_size, recipe, size, preset)
        ):
            key = (short.domain, short.split, short.is_certain)
            first = found.setdefault(key, short)
            if size not in first.sizes:
                found[key] = replace(first, sizes=(*first.sizes, size))
    return sorted(found.values(), key=lambda short: not short.is_certain)


def _of_recipe(
    nodes: Sequence[Node], recipe: CorpusRecipe, size: str, preset: Preset
) -> Iterator[Shortage]:
    trained = needed_sequences(nodes, recipe.data_id)
    wanted = {
        "train": trained,
        "validation": dict.fromkeys(recipe.domains, preset.eval_sequences(size)),
    }
    for split in SPLITS:
        for domain in recipe.domains:
            needed, expected = (
                wanted[split].get(domain, 0),
                recipe.expected_sequences(split, domain),
            )
            if needed > expected:
                is_certain = needed > recipe.most_sequences(split, domain)
                tokens = (expected * recipe.seq_len, needed * recipe.seq_len)
                yield Shortage(domain, split, *tokens, (size,), is_certain)


def require_supply(studies: Iterable[StudyPlan]) -> None:
    """ValueError for a domain with too little text under any tokenizer; needs no packed data."""
    for part in studies:
        certain = [
            short.text
            for short in shortages(part.nodes, part.preset, part.recipes)
            if short.is_certain
        ]
        if certain:
            allowed = "a corpus with enough text of every domain.\n  " + "\n  ".join(certain)
            raise invalid("corpus", part.choice.corpus, allowed)


def require_enough_data(part: StudyPlan, corpus: PackedCorpus) -> None:
    """ValueError for a domain with too few packed sequences for its budget or validation set."""
    here = [
        node for node in part.nodes if node.is_run and node.config.data.data_id == corpus.data_id
    ]
    needed = needed_sequences(here, corpus.data_id)
    evaluated = {part.preset.eval_sequences(node.size) for node in here}
    for domain in corpus.domains:
        for split, wanted in (
            ("train", needed.get(domain, 0)),
            ("validation", max(evaluated, default=0)),
        ):
            available = corpus.num_sequences(split, domain)
            if available < wanted:
                tokens = (
                    f"of {corpus.seq_len} tokens for {split}; preset {part.preset_name!r} needs"
                    f" {wanted}"
                )
                allowed = f"a domain with enough text: it has {available} sequences {tokens}"
                raise invalid("corpus", f"{part.choice.corpus} [domain {domain}]", allowed)


def require_document_end(nodes: Iterable[Node], corpus: PackedCorpus) -> None:
    """ValueError if runs without attention across documents name another end of text than the
    corpus."""
    runs = (
        node.config for node in nodes if node.is_run and node.config.data.data_id == corpus.data_id
    )
    named = {run.model.document_end for run in runs} - {-1}
    end = end_of_text_id(load_tokenizer(corpus.tokenizer_path)) if named else -1
    for wrong in named - {end}:
        raise invalid(
            "model.document_end",
            wrong,
            f"the token that ends texts in {corpus.tokenizer_path}, {end}",
        )


def supply_lines(part: StudyPlan) -> list[str]:
    """Returns a dry run's lines on the text that each size fetches from the hub, on what tokenizers
    cannot spell, and on shortages."""
    lines, most = [], {}
    for size, recipes_of_size in part.recipes.items():
        fetched: dict = {}
        for source in (
            recipe.source for recipe in recipes_of_size if isinstance(recipe.source, HubSource)
        ):
            for row, num_bytes in zip(source.rows, source.expected_bytes, strict=True):
                key = str(row.identity)
                fetched[key] = max(fetched.get(key, 0), num_bytes)
        for key, num_bytes in fetched.items():
            most[key] = max(most.get(key, 0), num_bytes)
        lines += [f"text to fetch for {size}: {sum(fetched.values()):,} bytes"] if fetched else []
    if len(lines) > 1:
        lines.append(f"text to fetch for all sizes, which share it: {sum(most.values()):,} bytes")
    store = Store(part.choice.storage)
    for recipe in part.corpora:
        lines += lost_text(store, recipe.data_id)
    short = shortages(part.nodes, part.preset, part.recipes)
    heads = {True: "shortage", False: "possible shortage"}
    return [*lines, *(f"{heads[shortage.is_certain]}: {shortage.text}" for shortage in short)]
