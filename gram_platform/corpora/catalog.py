"""Defines the named corpora, except `installed` (see `installed.py`).

Each row (`HubRow`) describes a Hub dataset. The rows are based on dataset cards and loading code.
They were written without network access, so none is `verified`. The revision "main" is a branch
whose content can change, so pin a row to a commit after checking it.

The rows' token counts come from logs that the paper's authors published
(agencyenterprise/modular-pretraining). The bytes per token are estimates for web text and code
with the GPT-2 and GPT-Neo tokenizers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gram_platform.config.identity import add_field, invalid, require_int, require_real
from gram_platform.config.ladder import STORIES_AUX, STORIES_AUX_SHARE, STORIES_CORE
from gram_platform.config.plugins import Table
from gram_platform.corpora.installed import INSTALLED
from gram_platform.corpora.recipe import HubRow

# Without `--core-label`, this many labels (the first by name) are auxiliary.
DEFAULT_NUM_AUX = 4


@dataclass(frozen=True)
class StoriesCorpus:
    """The parameters of a corpus of generated stories."""

    # Documents of all core topics together, and of each auxiliary topic.
    core_documents: int
    aux_documents: int
    # Facts of each topic, a multiple of 16.
    num_facts: int
    # The share of a topic's facts that all topics have in common.
    shared_fact_share: float
    seed: int = 0
    # Documents labelled `instructions`, with a prompt about a core topic's facts and a response.
    num_instructions: int = 0


@dataclass(frozen=True)
class HubCorpus:
    """A mixture of Hub datasets. More text is fetched if a study trains on more tokens."""

    rows: tuple[HubRow, ...]
    # () for all labels except the first DEFAULT_NUM_AUX by name.
    core_labels: tuple[str, ...] = ()
    # Core tokens, and the ratio of auxiliary tokens to core tokens. A study can override both.
    core_tokens: int = 10_000_000
    aux_share: float = 0.25
    # "" for a byte-level BPE that is trained on the corpus.
    tokenizer: str = ""
    # The token that ends a text, or "" for the tokenizer's special token.
    end_of_text: str = add_field("")

    def __post_init__(self) -> None:
        if not self.rows:
            raise invalid("rows", self.rows, "at least one dataset")
        require_int("core_tokens", self.core_tokens, 1)
        require_real("aux_share", self.aux_share, 0.0, 1.0, open_low=True)


@dataclass(frozen=True)
class TextCorpus:
    """Local text described by a user's recipe. Paths are relative to `root`."""

    # Patterns of files by label. Each file is a document.
    globs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Files and folders of .jsonl or .parquet with `text` and `label`.
    records: tuple[str, ...] = ()
    # A folder, relative to the recipe's folder.
    root: str = "."
    # () for the label `core`.
    core_labels: tuple[str, ...] = ()
    # As in `HubCorpus`.
    tokenizer: str = ""
    end_of_text: str = add_field("")

    def __post_init__(self) -> None:
        if not self.globs and not self.records:
            allowed = "at least one of both; or rows, for datasets of the hub"
            raise invalid("globs, records", "", allowed)


# A story has about 160 tokens with a vocabulary of 1,024. So "stories" has 3M training tokens of
# core and 0.2M of each topic, "stories-long" 30M of core, and "stories-100M" 100M of core and 0.9M
# of each topic. The law `demo` was measured on "stories-96". A topic has many facts, so a model
# learns few of them from a part of the topic's text. A tenth is private to the topic.
STORIES = {
    "stories": StoriesCorpus(20_000, 1_350, 384, 0.9),
    "stories-96": StoriesCorpus(16_500, 1_350, 96, 0.3),
    "stories-long": StoriesCorpus(200_000, 3_000, 384, 0.9),
    "stories-100M": StoriesCorpus(700_000, 7_000, 1_280, 0.9),
    "stories-smoke": StoriesCorpus(2_000, 200, 96, 0.3),
}
STORIES |= {
    "stories-instructed": replace(STORIES["stories"], num_instructions=4_000),
    "stories-instructed-smoke": replace(STORIES["stories-smoke"], num_instructions=600),
}

SIMPLE_STORIES_TOPICS = """
    a deadline or time limit, alien encounters, bygone eras, cultural traditions, dinosaurs, dream
    worlds, enchanted forests, fairy tales, fantasy worlds, gardens, giant creatures, haunted
    places, hidden treasures, holidays, invisibility, island adventures, living objects, lost
    cities, lost civilizations, magical lands, magical objects, miniature worlds, mysterious maps,
    mystical creatures, outer space, pirates, riddles, robots and technology, royal kingdoms, school
    life, seasonal changes, secret societies, shape-shifting, sibling rivalry, snowy adventures,
    space exploration, sports, subterranean worlds, superheroes, talking animals, the arts, the sky,
    time travel, treasure hunts, undercover missions, underwater adventures, unusual vehicles,
    virtual worlds
"""
STORIES_ROW = HubRow(
    dataset="SimpleStories/SimpleStories",
    revision="e63b8adc3b1a1bdc7cac5b500d150b71346b0628",
    text_fields=("story",),
    label_field="topic",
    labels=tuple(" ".join(topic.split()) for topic in SIMPLE_STORIES_TOPICS.split(",")),
    note=(
        "2,115,696 stories on the paper's 48 topics (app:stories), in lower case; any other topic"
        " is an error"
    ),
    bytes_per_token=4.6,
    # One epoch of core and the four auxiliary topics.
    available_tokens=STORIES_CORE + STORIES_AUX,
)
STORIES_TEST_ROW = replace(
    STORIES_ROW,
    split="test",
    held_out=True,
    available_tokens=5_500_000,
    note=(
        "21,371 stories, all validation: about 450 sequences of 256 tokens for each topic, by"
        " train's tokens a story"
    ),
)

LISP = r"^(Common Lisp|Emacs Lisp)$"
CYBER = r"\bcs\.(CR|NI|OS)\b"
NUCLEAR = r"\bnucl-(ex|th)\b"
VIROLOGY = r"(?i)\b(virus(es)?|viral|virolog\w*|virion\w*)\b"
OSTI_PAGE = "https://www.osti.gov/api/v1/records?q=nuclear&product_type=Technical+Report&rows=100&page={page}"
GATED = (
    "gated: accept the terms on the hub and log in; no commit is known, so the main branch is read"
)

# The paper's mixture. The authors' settings are .84, .15 and .01 of core.
WEB_ROW = HubRow(
    dataset="HuggingFaceFW/fineweb-edu",
    revision="87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
    config="sample-350BT",
    label="core",
    share=0.832,
    note=(
        "no record is dropped: labels are by dataset; the authors read sample-100BT, which 5B"
        " nearly exhausts"
    ),
    bytes_per_token=4.7,
    available_tokens=350_000_000_000,
)
CODE_ROW = HubRow(
    dataset="bigcode/the-stack-dedup",
    revision="main",
    text_fields=("content",),
    label="core",
    drop=(("lang", LISP),),
    share=0.149,
    note=(
        f"{GATED}. Files are read by language name (ABAP, Ada, ... C), not shuffled: small sizes"
        " see only the first few languages. Scheme, Racket and Clojure belong to core"
    ),
    bytes_per_token=2.5,
)
LISP_ROWS = tuple(
    replace(
        CODE_ROW,
        data_dir=f"data/{language}",
        label="lisp",
        drop=(),
        share=0.00125,
        note=f"{GATED}. Each language gives half of lisp's tokens [ours]",
        bytes_per_token=3.0,
    )
    for language in ("common-lisp", "emacs-lisp")
)


def _papers(category: str, label: str, share: float, available_tokens: int) -> HubRow:
    return HubRow(
        dataset="AE-data/dual-use-papers",
        revision="main",
        label=label,
        keep=(("category", f"^{category}$"),),
        share=share,
        note=(
            f"the category {category} of the authors' papers; no commit is known, so the main"
            " branch is read"
        ),
        available_tokens=available_tokens,
    )


PAPER_ROWS = (
    _papers("biology", "virology", 0.0025, 1_750_000_000),
    _papers("cyber", "cybersecurity", 0.0025, 500_000_000),
    _papers("nuclear", "nuclear", 0.0025, 930_000_000),
    _papers("other", "core", 0.010, 1_190_000_000),
)

ABSTRACTS = HubRow(
    dataset="gfissore/arxiv-abstracts-2021",
    revision="main",
    text_fields=("title", "abstract"),
    label="core",
    drop=(("categories", CYBER), ("categories", NUCLEAR)),
    share=0.010,
    note="abstracts, not papers; no commit is known, so the main branch is read",
)
SOURCE_ROWS = (
    ABSTRACTS,
    replace(ABSTRACTS, label="cybersecurity", keep=(("categories", CYBER),), drop=(), share=0.0025),
    replace(ABSTRACTS, label="nuclear", keep=(("categories", NUCLEAR),), drop=(), share=0.00125),
    HubRow(
        dataset="json",
        revision="live",
        files=tuple(OSTI_PAGE.format(page=page) for page in range(1, 1001)),
        text_fields=("title", "description"),
        label="nuclear",
        share=0.00125,
        note="OSTI's public search, not versioned: titles and abstracts of technical reports",
    ),
    HubRow(
        dataset="common-pile/pubmed_filtered",
        revision="c156f0569a92d8f2edc33cebe1f72f7d3e1cae84",
        label="virology",
        keep=(("text", VIROLOGY),),
        share=0.0025,
        note=(
            "full texts that name a virus, from the hub's copy of PubMed Central: narrower than the"
            " paper's biology"
        ),
    ),
)

NEO = "EleutherAI/gpt-neo-125m@main"
HUB = {
    "simple-stories": HubCorpus(
        rows=(STORIES_ROW, STORIES_TEST_ROW),
        core_tokens=STORIES_CORE,
        aux_share=STORIES_AUX_SHARE,
        tokenizer="SimpleStories/SimpleStories-1.25M@main",
    ),
    "dual-use": HubCorpus(
        (WEB_ROW, CODE_ROW, *LISP_ROWS, *PAPER_ROWS), ("core",), 16_100_000_000, 0.01, NEO
    ),
    # Only the papers' four categories; core is the category "other".
    "dual-use-papers": HubCorpus(PAPER_ROWS, ("core",), 960_000_000, 0.01, NEO),
    # Public sources in place of the authors' papers: abstracts, and full texts for virology.
    "dual-use-sources": HubCorpus(
        (WEB_ROW, CODE_ROW, *LISP_ROWS, *SOURCE_ROWS), ("core",), 960_000_000, 0.01, NEO
    ),
}

# A package can also register the path of a TOML recipe.
CORPORA = Table(
    "gram.corpora",
    {**STORIES, **HUB},
    is_usable=lambda corpus: isinstance(corpus, StoriesCorpus | HubCorpus | Path),
    reserved=(INSTALLED,),
)
