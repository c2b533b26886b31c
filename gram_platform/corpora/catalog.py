"""The corpora that have names. Literal values, meant to be read and edited.

A hub row is `verified` once a person, or `gram prepare --check`, has opened a record of that revision and seen its
fields. The rows below were written from the datasets' cards and from code that reads them, on a machine without a
network: none is verified. A revision of "main" floats; put a commit there once you have checked it.
"""

from dataclasses import dataclass

from gram_platform.corpora.recipe import HubRow

DEFAULT_NUM_AUX = 4  # topics that are auxiliary unless `--core-label` names the core's


@dataclass(frozen=True)
class StoriesEntry:
    """Generated stories: documents of core in all (spread over its topics) and of each auxiliary topic."""

    core_documents: int
    aux_documents: int
    num_facts: int  # of each topic, a multiple of 16
    shared_fact_share: float  # of them, common to all topics
    seed: int = 0


@dataclass(frozen=True)
class HubEntry:
    """Datasets of the hub, mixed. `num_bytes` of text in all; each row gives its share, until it is exhausted."""

    rows: tuple[HubRow, ...]
    num_bytes: int
    core_labels: tuple[str, ...]  # empty: all but the first DEFAULT_NUM_AUX labels by name
    tokenizer: str = ""  # empty: a byte-level BPE trained on the corpus


# A story has about 160 tokens at vocabulary 1,024, so "stories" trains on 2.5M tokens of core, 0.2M of each topic.
STORIES = {
    "stories": StoriesEntry(core_documents=16_500, aux_documents=1_350, num_facts=96, shared_fact_share=0.3),
    "stories-smoke": StoriesEntry(core_documents=2_000, aux_documents=200, num_facts=96, shared_fact_share=0.3),
}

SIMPLE_STORIES_TOPICS = (
    "alien encounters",
    "bygone eras",
    "cultural traditions",
    "dinosaurs",
    "dream worlds",
    "enchanted forests",
    "fairy tales",
    "fantasy worlds",
    "gardens",
    "giant creatures",
    "haunted places",
    "hidden treasures",
    "holidays",
    "invisibility",
    "island adventures",
    "living objects",
    "lost cities",
    "lost civilizations",
    "magical lands",
    "magical objects",
    "miniature worlds",
    "mysterious maps",
    "mystical creatures",
    "outer space",
    "pirates",
    "riddles",
    "robots and technology",
    "royal kingdoms",
    "school life",
    "seasonal changes",
    "secret societies",
    "shape-shifting",
    "sibling rivalry",
    "snowy adventures",
    "space exploration",
    "sports",
    "subterranean worlds",
    "superheroes",
    "talking animals",
    "the arts",
    "the sky",
    "time travel",
    "treasure hunts",
    "undercover missions",
    "underwater adventures",
    "unusual vehicles",
    "virtual worlds",
)

LISP = r"^(Common Lisp|Emacs Lisp|Scheme|Racket|Clojure|NewLisp)$"
CYBER = r"\bcs\.(CR|NI|OS)\b"
NUCLEAR = r"\bnucl-(ex|th)\b"
VIROLOGY = r"(?i)\b(virus(es)?|viral|virolog\w*|virion\w*)\b"
OSTI_PAGE = "https://www.osti.gov/api/v1/records?q=nuclear&product_type=Technical+Report&rows=100&page={page}"

DUAL_USE_ROWS = (
    HubRow(
        dataset="HuggingFaceFW/fineweb-edu",
        revision="87f09149ef4734204d70ed1d046ddc9ca3f2b8f9",
        config="sample-350BT",
        text_fields=("text",),
        label="core",
        drop=(("text", VIROLOGY),),
        share=0.832,
        verified=False,
        note="whether the paper dropped virology from the web text is not known; here it is",
    ),
    HubRow(
        dataset="bigcode/the-stack-dedup",
        revision="main",
        text_fields=("content",),
        label="core",
        drop=(("lang", LISP),),
        share=0.149,
        verified=False,
        note="gated: accept its terms on the hub and log in",
    ),
    HubRow(
        dataset="gfissore/arxiv-abstracts-2021",
        revision="main",
        text_fields=("title", "abstract"),
        label="core",
        drop=(("categories", CYBER), ("categories", NUCLEAR)),
        share=0.010,
        verified=False,
        note="abstracts: full texts with their categories are not on the hub that we know of",
    ),
    HubRow(
        dataset="bigcode/the-stack-dedup",
        revision="main",
        text_fields=("content",),
        label="lisp",
        keep=(("lang", LISP),),
        share=0.0025,
        verified=False,
        note="gated: accept its terms on the hub and log in",
    ),
    HubRow(
        dataset="gfissore/arxiv-abstracts-2021",
        revision="main",
        text_fields=("title", "abstract"),
        label="cybersecurity",
        keep=(("categories", CYBER),),
        share=0.0025,
        verified=False,
        note="too few abstracts for the sizes above 100M: give a folder of full texts there",
    ),
    HubRow(
        dataset="common-pile/pubmed_filtered",
        revision="c156f0569a92d8f2edc33cebe1f72f7d3e1cae84",
        text_fields=("text",),
        label="virology",
        keep=(("text", VIROLOGY), ("metadata.journal", r"(?i)vir(us|ol|al)")),
        share=0.0025,
        verified=False,
        note="the open-access full texts that Europe PMC serves, in the hub's copy of PubMed Central",
    ),
    HubRow(
        dataset="json",
        revision="live",
        files=tuple(OSTI_PAGE.format(page=page) for page in range(1, 1001)),
        text_fields=("title", "description"),
        label="nuclear",
        share=0.0025,
        verified=False,
        note="OSTI's public search, which is not versioned: titles and abstracts of technical reports",
    ),
)

HUB = {
    "simple-stories": HubEntry(
        rows=(
            HubRow(
                dataset="SimpleStories/SimpleStories",
                revision="e63b8adc3b1a1bdc7cac5b500d150b71346b0628",
                text_fields=("story",),
                label_field="topic",
                labels=SIMPLE_STORIES_TOPICS,
                share=1.0,
                verified=False,
                note="the topics are those of the published generator; a topic that is missing here is an error",
            ),
        ),
        num_bytes=2_500_000_000,
        core_labels=(),
    ),
    "dual-use": HubEntry(
        rows=DUAL_USE_ROWS,
        num_bytes=72_000_000_000,  # the 16.1B core tokens of 800M at 4.3 bytes each, and 3% for validation
        core_labels=("core",),
        tokenizer="EleutherAI/gpt-neo-125m@main",
    ),
}
