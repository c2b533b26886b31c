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
from gram_platform.corpora.recipe import StoriesSource


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TOPICS = _words(
    """airport attic bakery beach bridge campsite canal castle cave chapel circus cottage desert farm ferry forest
    forge garden glacier harbor hospital inn island jungle kitchen lagoon library lighthouse market meadow mine
    monastery museum observatory orchard palace prairie quarry railway ranch school shipyard stable swamp
    theater valley village vineyard"""
)

FIRST_NAMES = _words(
    """Mira Tom Lena Oskar Nina Paul Ruth Ivan Clara Hugo Stella Finn Ada Jonas Vera Max Ella Simon Rosa Karl Maya
    Otto Lucy Ben Nora Leo Anna Felix Julia Emil Greta Noah"""
)
LAST_NAMES = _words(
    """Vale Stone Reed Marsh Hill Brook Frost Lake Wood Field Moss Thorn Cliff Rain Snow Glen Oak Birch Flint Sand
    Storm Ash Heath Pike Dale Grove Ridge Shore Fern Holly Berg Moor"""
)

# Each list has a power of two of words, so that a learned slot is worth a known number of bits.
WORDS = {
    "quality": """dull small brass broken silver heavy tiny painted wooden golden dusty shiny soft round clean stolen
    plain hollow secret crooked polished faded velvet steel paper glass woven carved striped rusty
    bright narrow""",
    "thing": """lantern key drum box mirror flute coin map clock rope basket ring kettle candle mask bell book
    knife chair wheel ladder hook needle bottle puppet feather shell button hammer crown whistle
    letter""",
    "place": """cellar tower well gate barn stairs roof fence chimney window tunnel shed porch pond wall hedge
    corner fountain loft ditch courtyard pantry terrace doorway arch shelf path landing gallery bench
    yard trench""",
    "color": """red blue green yellow purple teal white black gray brown pink crimson violet beige navy scarlet""",
    "clothing": """coat hat scarf apron cloak vest shirt belt gown jacket glove boot sock shawl hood cape""",
    "food": """bread soup rice honey cheese plum bean corn fish apple onion cake butter pepper lemon nut carrot
    pear melon berry mushroom egg potato fig peach cabbage salt milk olives ginger mint oats""",
    "animal": """wolf owl fox bear goose snake horse crow rat bat spider goat bull cat dog frog toad hawk mouse
    lizard swan beetle otter badger hen ram moth eel crab seal deer hare""",
    "job": """baker tailor singer guard painter miller weaver sailor doctor farmer teacher mason hunter clerk
    potter porter driver dancer barber juggler scribe gardener smith builder""",
    "action": """dance sing swim climb read fish draw sew dig run cook sleep whisper juggle pray write march laugh
    hum wait fight dream skip row shout knit carve count paint jump gamble wander""",
    "time": """dawn noon dusk midnight sunrise sunset teatime bedtime""",
}
WORDS = {kind: _words(words) for kind, words in WORDS.items()}

# What can be told of a person: every blank is a slot that the fact fills, and that a reader can only know by heart.
RELATIONS = (
    "keeps a {quality} {thing} near the {place}",
    "wears a {color} {clothing} at {time}",
    "eats {food} with {food2} every {time}",
    "fears the {quality} {animal} by the {place}",
    "works as a {job} behind the {place}",
    "likes to {action} with the {color} {animal}",
    "lost a {color} {thing} in the {place}",
    "wants to {action} under the {quality} {place}",
)

# What can be told of a topic: the first blank is chosen freely, the others follow from it and the topic.
CUSTOMS = (
    "Whenever the {animal} comes, people {action} and share {food}.",
    "Whoever finds a {thing} must {action} near the {place}.",
    "The song of the {animal} is about a {color} {clothing}.",
    "The {job} always brings {food} to the {place}.",
)

OPENINGS = (
    "This is a story from the {topic}.",
    "Once there was a day at the {topic}.",
    "Here is what they tell at the {topic}.",
    "Come and hear about the {topic}.",
)
JOINS = ("{a}, {b} and {c}.", "{a}. Also, {first} {b} and {c}.")
LINKS = ("", "Then there is ", "Everybody knows ", "Not far away lives ")
CLOSINGS = ("That was the story.", "And so the day ended.", "Nobody forgot it.", "Good night.")


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
    unknown = sorted(set(num_documents) - set(TOPICS))
    if unknown or not num_documents:
        raise invalid("stories.topics", unknown, "one or more of " + ", ".join(TOPICS))
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
    sentences += [customs[told_customs[1]], _pick(draw, CLOSINGS)]
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
    words = {kind: _pick(draw, choices) for kind, choices in WORDS.items()}
    return template.format(**words, food2=_pick(draw, WORDS["food"]))


def _people(seed: int, num_facts: int, share: float, topic: str) -> list[tuple[str, list[str]]]:
    """(name, clauses); the first `share` of all clauses, and their people, are the same in every topic."""
    num_clauses = num_facts * 3 // 4
    num_people, num_shared = num_clauses // FACTS_PER_PERSON, round(share * num_clauses)
    pairs = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    names = _shuffled(pairs, random.Random(_seed(seed, "names")))
    people = []
    for person in range(num_people):
        first_clause = person * FACTS_PER_PERSON
        slot = (TOPICS.index(topic) + 1 if first_clause >= num_shared else 0) * num_people + person
        relations = _shuffled(RELATIONS, random.Random(_seed(seed, "relations", slot)))
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
        template = CUSTOMS[index % len(CUSTOMS)]
        kind = template[template.index("{") + 1 : template.index("}")]
        key = WORDS[kind][index // len(CUSTOMS) % len(WORDS[kind])]
        rest = template.replace("{" + kind + "}", key, 1)
        customs.append(_fill(rest, random.Random(_seed(seed, "custom", scope, index)).random))
    return customs


@lru_cache(maxsize=256)
def _topic_sentences(seed: int, num_facts: int, share: float, topic: str) -> tuple:
    """Every sentence of a topic, written out: openings, variants for each person, customs, and the two ladders."""
    people = [_person_variants(name, clauses) for name, clauses in _people(seed, num_facts, share, topic)]
    customs = _customs(seed, num_facts, share, topic)
    order = random.Random(_seed(seed, "ranks", topic))
    openings = tuple(opening.format(topic=topic) for opening in OPENINGS)
    return openings, people, customs, _ladder(len(people), order), _ladder(len(customs), order)


def _person_variants(name: str, clauses: list[str]) -> tuple[str, ...]:
    """A person's sentence in all its forms: where the telling starts, how clauses are joined, how it is linked."""
    variants = []
    for start in range(len(clauses)):
        a, b, c = (clauses[(start + step) % len(clauses)] for step in range(3))
        for join in JOINS:
            told = join.format(a=a, b=b, c=c, first=name.split()[0])
            variants += [f"{link}{name}, who {told}" if link else f"{name} {told}" for link in LINKS]
    return tuple(variants)
