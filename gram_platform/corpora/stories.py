"""Generated stories: 48 topics with one grammar and one lexicon, each with facts of its own to know by heart.

A fact is an association of shared words: who keeps what where (people), and what follows from what (customs). A reader
who has not seen a topic can predict its grammar and the facts that all topics share, but not its own facts: that is
what removing a topic takes away. Facts recur by a power law, so that they are learned one after the other.

Any document can be made on its own from (seed, topic, index): nothing is held, and no document depends on another, on
the number of documents, or on the process.
"""

import bisect
import hashlib
import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate

from gram_platform.config.identity import invalid, require_int, require_real
from gram_platform.corpora import lexicon
from gram_platform.corpora.recipe import StoriesSource

STORIES_VERSION = 1  # raised when the same parameters would give other texts
FACTS_PER_PERSON = 4
PEOPLE_PER_STORY = 4
CUSTOMS_PER_STORY = 2
FACTS_UNIT = 16  # three quarters of the facts are of people, four each; a quarter are customs
POWER = 0.8  # the r-th most frequent person or custom of a topic is told with weight r^-POWER


def stories_source(
    num_documents: dict[str, int], num_facts: int, shared_fact_share: float, seed: int = 0
) -> StoriesSource:
    """The recipe of a generated corpus.

    `num_documents` for each topic; `num_facts` of each topic, a multiple of 16; `shared_fact_share` in [0, 1] is the
    part of them that all topics have in common.
    """
    unknown = sorted(set(num_documents) - set(lexicon.TOPICS))
    if unknown or not num_documents:
        raise invalid("stories.topics", unknown, "one or more of " + ", ".join(lexicon.TOPICS))
    for topic, number in num_documents.items():
        require_int(f"stories.num_documents[{topic}]", number, 1)
    require_int("stories.num_facts", num_facts, FACTS_UNIT)
    if num_facts % FACTS_UNIT:
        raise invalid("stories.num_facts", num_facts, f"a multiple of {FACTS_UNIT}")
    require_real("stories.shared_fact_share", shared_fact_share, 0.0, 1.0)
    require_int("stories.seed", seed, 0)
    pairs = tuple(sorted(num_documents.items()))
    return StoriesSource(pairs, num_facts, float(shared_fact_share), seed, STORIES_VERSION)


def story_documents(source: StoriesSource) -> Iterator[tuple[str, str]]:
    """All `(topic, text)` of the corpus, topic by topic, made one at a time."""
    for topic, number in source.num_documents:
        for index in range(number):
            yield topic, story(source, topic, index)


def mean_story_bytes(source: StoriesSource, sample: int = 64) -> float:
    """The mean length of a story in bytes, from the first `sample` of one topic."""
    topic = source.num_documents[0][0]
    return sum(len(story(source, topic, index).encode()) for index in range(sample)) / sample


def story(source: StoriesSource, topic: str, index: int) -> str:
    """Story number `index` of a topic."""
    openings, people, customs, people_ladder, customs_ladder = _topic_sentences(
        source.seed, source.num_facts, source.shared_fact_share, topic
    )
    draw = random.Random(_seed(source.seed, "story", topic, index)).random  # random() alone is stable across versions
    told_people = _draw_distinct(draw, people_ladder, PEOPLE_PER_STORY)
    told_customs = _draw_distinct(draw, customs_ladder, CUSTOMS_PER_STORY)
    sentences = [_pick(draw, openings), customs[told_customs[0]]]
    sentences += [_pick(draw, people[person]) for person in told_people]
    sentences += [customs[told_customs[1]], _pick(draw, lexicon.CLOSINGS)]
    return " ".join(sentences)


def topic_facts(source: StoriesSource, topic: str) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """What is to be known of a topic: (name, clauses) of its people, and its customs, both in the shared order."""
    return _people(source.seed, source.num_facts, source.shared_fact_share, topic), _customs(
        source.seed, source.num_facts, source.shared_fact_share, topic
    )


def _seed(*parts: object) -> int:
    """A 64-bit seed that does not depend on the process (unlike `hash`)."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _pick(draw, choices):
    return choices[int(draw() * len(choices))]


def _draw_distinct(draw, ladder: tuple[float, ...], number: int) -> list[int]:
    """Different indices, drawn with the weights whose running sums are `ladder`."""
    drawn: list[int] = []
    while len(drawn) < min(number, len(ladder)):
        index = bisect.bisect_right(ladder, draw() * ladder[-1])
        if index not in drawn:
            drawn.append(index)
    return drawn


def _ladder(num_items: int, order: random.Random) -> tuple[float, ...]:
    """Running sums of power-law weights, the ranks dealt out in a random order."""
    weights = [rank**-POWER for rank in range(1, num_items + 1)]
    return tuple(accumulate(_shuffled(weights, order)))


def _shuffled(items, order: random.Random) -> list:
    """A permutation that uses `random()` alone."""
    keys = [order.random() for _ in items]
    return [item for _, item in sorted(zip(keys, items, strict=True), key=lambda pair: pair[0])]


def _fill(template: str, draw) -> str:
    words = {kind: _pick(draw, choices) for kind, choices in lexicon.WORDS.items()}
    return template.format(**words, food2=_pick(draw, lexicon.WORDS["food"]))


def _people(seed: int, num_facts: int, share: float, topic: str) -> list[tuple[str, list[str]]]:
    """(name, clauses); the first `share` of all clauses, and their people, are the same in every topic."""
    num_clauses = num_facts * 3 // 4
    num_people, num_shared = num_clauses // FACTS_PER_PERSON, round(share * num_clauses)
    pairs = [f"{first} {last}" for first in lexicon.FIRST_NAMES for last in lexicon.LAST_NAMES]
    names = _shuffled(pairs, random.Random(_seed(seed, "names")))
    people = []
    for person in range(num_people):
        first_clause = person * FACTS_PER_PERSON
        slot = (lexicon.TOPICS.index(topic) + 1 if first_clause >= num_shared else 0) * num_people + person
        relations = _shuffled(lexicon.RELATIONS, random.Random(_seed(seed, "relations", slot)))
        clauses = []
        for number in range(FACTS_PER_PERSON):
            scope = topic if first_clause + number >= num_shared else "every topic"
            draw = random.Random(_seed(seed, "clause", scope, person, number)).random
            clauses.append(_fill(relations[number], draw))
        people.append((names[slot % len(names)], clauses))
    return people


def _customs(seed: int, num_facts: int, share: float, topic: str) -> list[str]:
    """Sentences whose first word is free and whose other words follow from it and the topic."""
    number, customs = num_facts // 4, []
    for index in range(number):
        scope = topic if index >= round(share * number) else "every topic"
        template = lexicon.CUSTOMS[index % len(lexicon.CUSTOMS)]
        kind = template[template.index("{") + 1 : template.index("}")]
        key = lexicon.WORDS[kind][index // len(lexicon.CUSTOMS) % len(lexicon.WORDS[kind])]
        rest = template.replace("{" + kind + "}", key, 1)
        customs.append(_fill(rest, random.Random(_seed(seed, "custom", scope, index)).random))
    return customs


@lru_cache(maxsize=256)
def _topic_sentences(seed: int, num_facts: int, share: float, topic: str) -> tuple:
    """Every sentence of a topic, written out: openings, variants for each person, customs, and the two ladders."""
    people = [_person_variants(name, clauses) for name, clauses in _people(seed, num_facts, share, topic)]
    customs = _customs(seed, num_facts, share, topic)
    order = random.Random(_seed(seed, "ranks", topic))
    openings = tuple(opening.format(topic=topic) for opening in lexicon.OPENINGS)
    return openings, people, customs, _ladder(len(people), order), _ladder(len(customs), order)


def _person_variants(name: str, clauses: list[str]) -> tuple[str, ...]:
    """A person's sentence in all its forms: where the telling starts, how clauses are joined, how it is linked."""
    variants = []
    for start in range(len(clauses)):
        a, b, c = (clauses[(start + step) % len(clauses)] for step in range(3))
        for join in lexicon.JOINS:
            told = join.format(a=a, b=b, c=c, first=name.split()[0])
            variants += [f"{link}{name}, who {told}" if link else f"{name} {told}" for link in lexicon.LINKS]
    return tuple(variants)
