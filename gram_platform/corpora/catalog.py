"""The corpora that have names. Literal values, meant to be read and edited."""

from dataclasses import dataclass

DEFAULT_NUM_AUX = 4  # topics that are auxiliary unless `--core-label` names the core's


@dataclass(frozen=True)
class StoriesEntry:
    """Generated stories: documents of core in all (spread over its topics) and of each auxiliary topic."""

    core_documents: int
    aux_documents: int
    num_facts: int  # of each topic, a multiple of 16
    shared_fact_share: float  # of them, common to all topics
    seed: int = 0


STORIES = {
    "stories": StoriesEntry(core_documents=20_000, aux_documents=1_600, num_facts=48, shared_fact_share=0.3),
    "stories-smoke": StoriesEntry(core_documents=2_000, aux_documents=160, num_facts=48, shared_fact_share=0.3),
}
