"""Packs missing corpora, and checks that corpora have enough text for the runs."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product

from gram_platform.analysis.columns import align_columns
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
from gram_platform.studies.plan import Plan, StudyPlan


def pack_corpora(plan: Plan, store: Store) -> None:
    """Packs the missing corpora in Ray tasks, or in this process with --in-process.

    Raises ValueError if a run does not fit into memory on any number of ranks, or if a domain has
    too little packed text.
    """
    for part in plan.studies:
        for run in (node for node in part.nodes if node.is_run):
            # Raises where --num-workers auto finds no number of ranks.
            part.ranks.of(run.config, run.size)
    for part in plan.studies:
        for recipe in part.corpora:
            # Other machines may pack if they mount the storage and can get the text.
            anywhere = store.is_local and not isinstance(recipe.source, FilesSource)
            workers = None if plan.in_process else ray_workers(anywhere, plan.verbose)
            corpus = provide_corpus(recipe, store, say_bytes(), workers)
            for line in corpus.warnings:
                say(line)
            require_enough_data(part, corpus)
            require_document_end(part.nodes, corpus)


def ray_workers(anywhere: bool = False, is_verbose: bool = False) -> Workers:
    """Returns workers that pack a corpus. Workers for several tasks join or start Ray."""
    return part_workers(partial(connect, is_verbose), anywhere)


@dataclass(frozen=True)
class Shortage:
    """A domain with too little text in a split for the runs of `sizes`.

    `available` and `needed` are numbers of tokens for the first of these sizes.
    """

    domain: str
    split: str
    # An estimate before packing.
    available: int
    needed: int
    # The sizes that need more, in order.
    sizes: dict[str, None]
    # False if it depends on how many bytes a token has.
    is_certain: bool

    @property
    def text(self) -> str:
        use = "training" if self.split == "train" else self.split
        amount = f"about {self.available:,} tokens for {use}"
        need = f"{next(iter(self.sizes))} needs {self.needed:,}"
        verb = "stops at" if self.is_certain else "may stop at"
        return f"domain {self.domain}: {amount}, {need}: {verb} {', '.join(self.sizes)}"


def count_needed(nodes: Iterable[Node], data_id: str) -> dict[str, int]:
    """Maps each domain to the most training sequences that any run on this data needs."""
    needed: dict[str, int] = defaultdict(int)
    for run in runs_on(nodes, data_id):
        for part in (part for budget in run.config.data.domains for part in budget.pool):
            needed[part.domain] = max(needed[part.domain], part.first + part.num_sequences)
    return needed


def runs_on(nodes: Iterable[Node], data_id: str) -> list[Node]:
    return [node for node in nodes if node.is_run and node.data_id == data_id]


def shortages(part: StudyPlan) -> list[Shortage]:
    """Lists domains that may lack text in a split. Those that certainly lack text come first."""
    short: dict[tuple[str, str, bool], Shortage] = {}
    for size, recipe in ((s, recipe) for s, recipes in part.recipes.items() for recipe in recipes):
        wanted = {
            "train": count_needed((n for n in part.nodes if n.size == size), recipe.data_id),
            "validation": dict.fromkeys(recipe.domains, part.preset.eval_sequences(size)),
        }
        for split, domain in product(SPLITS, recipe.pools):
            needed = wanted[split].get(domain, 0)
            expected = recipe.estimate_sequences(split, domain)
            if needed > expected:
                is_certain = needed > recipe.most_sequences(split, domain)
                tokens = expected * recipe.seq_len, needed * recipe.seq_len
                new = Shortage(domain, split, *tokens, {}, is_certain)
                short.setdefault((domain, split, is_certain), new).sizes[size] = None
    return sorted(short.values(), key=lambda shortage: not shortage.is_certain)


def require_supply(studies: Iterable[StudyPlan]) -> None:
    """Raises ValueError if a domain is certain to have too little text."""
    for part in studies:
        short = shortages(part)
        if certain := [shortage.text for shortage in short if shortage.is_certain]:
            allowed = "\n  ".join(["a corpus with enough text of every domain.", *certain])
            raise invalid("corpus", part.choice.corpus, allowed)


def require_enough_data(part: StudyPlan, corpus: PackedCorpus) -> None:
    """Raises ValueError if a domain has too few packed sequences for training or validation."""
    runs = runs_on(part.nodes, corpus.data_id)
    needed = count_needed(runs, corpus.data_id)
    evaluated = max((part.preset.eval_sequences(run.size) for run in runs), default=0)
    amounts = [("train", domain, number) for domain, number in needed.items()]
    amounts += [("validation", domain, evaluated) for domain in corpus.domains]
    for split, domain, wanted in amounts:
        available = corpus.num_sequences(split, domain)
        if available < wanted:
            has = f"it has {available} sequences of {corpus.seq_len} tokens for {split}"
            needs = f"preset {part.preset_name!r} needs {wanted}"
            allowed = f"a domain with enough text: {has}; {needs}"
            raise invalid("corpus", f"{part.choice.corpus} [domain {domain}]", allowed)


def require_document_end(nodes: Iterable[Node], corpus: PackedCorpus) -> None:
    """Raises ValueError if a run's `document_end` is neither -1 nor the tokenizer's end of text."""
    named = {run.config.model.document_end for run in runs_on(nodes, corpus.data_id)} - {-1}
    end = end_of_text_id(load_tokenizer(corpus.tokenizer_path)) if named else -1
    for wrong in named - {end}:
        allowed = f"the token that ends texts in {corpus.tokenizer_path}, {end}"
        raise invalid("model.document_end", wrong, allowed)


def supply_lines(part: StudyPlan) -> Iterator[str]:
    """Yields dry-run lines on labels, profiles, text to fetch, unencodable text and shortages."""
    largest = part.choice.sizes[-1]
    nodes = [node for node in part.nodes if node.size == largest]
    for recipe in part.recipes[largest]:
        yield from text_lines(recipe, count_needed(nodes, recipe.data_id), largest)
    profiles = {name: None for s in part.settings for name in map(s.profile_name, s.profiles)}
    yield f"compared profiles, as what is left switched on: {', '.join(profiles)}"
    fetched = {size: _count_bytes(recipes) for size, recipes in part.recipes.items()}
    if len(fetched) > 1:
        fetched["all sizes, which share it"] = _count_bytes(part.corpora)
    for size, num_bytes in fetched.items():
        if num_bytes:
            yield f"text to fetch for {size}: {num_bytes:,} bytes"
    for recipe in part.corpora:
        yield from lost_text(Store(part.choice.storage), recipe.data_id)
    for short in shortages(part):
        yield f"{'' if short.is_certain else 'possible '}shortage: {short.text}"


def text_lines(
    recipe: CorpusRecipe, used: Mapping[str, int] | None = None, size: str = ""
) -> list[str]:
    """Returns the lines of a table of each domain's labels, documents and training tokens.

    `used` maps domains to the number of sequences that runs of `size` train on.
    """
    rows = [
        ("domain", "labels", "documents", "tokens, about", *([f"used by {size}"] if size else []))
    ]
    for domain in recipe.domains_from:
        labels = domain.labels if len(domain.labels) < 4 else (*domain.labels[:3], "...")
        tokens = recipe.estimate_sequences("train", domain.name) * recipe.seq_len
        uses = [f"{used.get(domain.name, 0) * recipe.seq_len:,}"] if used is not None else []
        documents = f"{domain.num_documents:,}" if domain.num_documents else "-"
        rows.append((domain.name, ", ".join(labels), documents, f"{tokens:,}", *uses))
    return align_columns(rows, 2).splitlines()


def _count_bytes(recipes: Iterable[CorpusRecipe]) -> int:
    most: dict[str, int] = defaultdict(int)
    for source in (recipe.source for recipe in recipes):
        if isinstance(source, HubSource):
            for row, num_bytes in zip(source.rows, source.available_bytes, strict=True):
                most[str(row.identity)] = max(most[str(row.identity)], num_bytes)
    return sum(most.values())
