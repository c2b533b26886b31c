"""Generates stories on 48 topics that share a grammar and a lexicon, with facts to memorise.

A fact combines words of the lexicon, and describes a person or a custom of its topic. A model that
never saw a topic can predict grammar and shared facts, but not the topic's private facts. Fact
frequencies follow a power law, so facts are learned one after another.
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
    """airport attic bakery beach bridge campsite canal castle cave chapel circus cottage desert
    farm ferry forest forge garden glacier harbor hospital inn island jungle kitchen lagoon library
    lighthouse market meadow mine monastery museum observatory orchard palace prairie quarry railway
    ranch school shipyard stable swamp theater valley village vineyard"""
)

FIRST_NAMES = _words(
    """Mira Tom Lena Oskar Nina Paul Ruth Ivan Clara Hugo Stella Finn Ada Jonas Vera Max Ella Simon
    Rosa Karl Maya Otto Lucy Ben Nora Leo Anna Felix Julia Emil Greta Noah"""
)
LAST_NAMES = _words(
    """Vale Stone Reed Marsh Hill Brook Frost Lake Wood Field Moss Thorn Cliff Rain Snow Glen Oak
    Birch Flint Sand Storm Ash Heath Pike Dale Grove Ridge Shore Fern Holly Berg Moor"""
)

# All lengths except that of `job` are powers of two, so a word has a known number of bits.
WORDS = {
    "quality": (
        """dull small brass broken silver heavy tiny painted wooden golden dusty shiny soft round
    clean stolen plain hollow secret crooked polished faded velvet steel paper glass woven carved
    striped rusty bright narrow"""
    ),
    "thing": (
        """lantern key drum box mirror flute coin map clock rope basket ring kettle candle mask bell
    book knife chair wheel ladder hook needle bottle puppet feather shell button hammer crown
    whistle letter"""
    ),
    "place": (
        """cellar tower well gate barn stairs roof fence chimney window tunnel shed porch pond wall
    hedge corner fountain loft ditch courtyard pantry terrace doorway arch shelf path landing
    gallery bench yard trench"""
    ),
    "color": (
        """red blue green yellow purple teal white black gray brown pink crimson violet beige navy
    scarlet"""
    ),
    "clothing": (
        """coat hat scarf apron cloak vest shirt belt gown jacket glove boot sock shawl hood cape"""
    ),
    "food": (
        """bread soup rice honey cheese plum bean corn fish apple onion cake butter pepper lemon nut
    carrot pear melon berry mushroom egg potato fig peach cabbage salt milk olives ginger mint
    oats"""
    ),
    "animal": (
        """wolf owl fox bear goose snake horse crow rat bat spider goat bull cat dog frog toad hawk
    mouse lizard swan beetle otter badger hen ram moth eel crab seal deer hare"""
    ),
    "job": (
        """baker tailor singer guard painter miller weaver sailor doctor farmer teacher mason hunter
    clerk potter porter driver dancer barber juggler scribe gardener smith builder"""
    ),
    "action": (
        """dance sing swim climb read fish draw sew dig run cook sleep whisper juggle pray write
    march laugh hum wait fight dream skip row shout knit carve count paint jump gamble wander"""
    ),
    "time": """dawn noon dusk midnight sunrise sunset teatime bedtime""",
}
WORDS = {kind: _words(words) for kind, words in WORDS.items()}

# A person's facts. A model can only memorise the words in the blanks.
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

# A topic's customs. The topic and the first blank determine the other blanks.
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
# How many stories of a topic are used to estimate the mean length.
MEASURED_STORIES = 64
LINKS = ("", "Then there is ", "Everybody knows ", "Not far away lives ")
INSTRUCTIONS = "instructions"
# The text between a prompt and its response.
RESPONSE = " Response:"
CLOSINGS = ("That was the story.", "And so the day ended.", "Nobody forgot it.", "Good night.")


# Increase this when the same parameters would generate other texts.
STORIES_VERSION = 1
FACTS_PER_PERSON = 4
PEOPLE_PER_STORY = 4
CUSTOMS_PER_STORY = 2
# Three quarters of the facts are about people, four about each. A quarter are customs.
FACTS_UNIT = 16
# The r-th most frequent person or custom of a topic has the weight r^-RANK_POWER.
RANK_POWER = 0.8


def stories_source(
    num_documents: dict[str, int],
    num_facts: int,
    shared_fact_share: float,
    seed: int = 0,
    instructed: tuple[str, ...] = (),
) -> StoriesSource:
    """Creates the source of a story corpus. Raises ValueError if a number is out of range.

    `num_documents` maps each topic to its number of stories, and the key INSTRUCTIONS to the number
    of instructions. `instructed` lists the topics of the instructions. Other arguments are as in
    `StoriesCorpus`.
    """
    unknown = sorted(set(num_documents) - {*TOPICS, *([INSTRUCTIONS] if instructed else [])})
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
    return StoriesSource(
        pairs, num_facts, float(shared_fact_share), seed, STORIES_VERSION, tuple(sorted(instructed))
    )


def story_documents(
    source: StoriesSource, first: int = 0, stop: int | None = None
) -> Iterator[tuple[str, str]]:
    """Yields (topic, text) of documents `first` to `stop` (exclusive), ordered by topic."""
    before = 0
    for topic, number in source.num_documents:
        end = number if stop is None else min(number, stop - before)
        for index in range(max(0, first - before), end):
            yield topic, story(source, topic, index)
        before += number


def mean_story_bytes(source: StoriesSource, topic: str) -> float:
    stories = (story(source, topic, index) for index in range(MEASURED_STORIES))
    return sum(len(text.encode()) for text in stories) / MEASURED_STORIES


def story(source: StoriesSource, topic: str, index: int) -> str:
    """Generates story number `index` of a topic, or an instruction if the topic is INSTRUCTIONS."""
    if topic == INSTRUCTIONS:
        return instruction(source, index)
    openings, people, customs, people_weights, customs_weights = _topic_sentences(source, topic)
    # Only random() of a generator is stable across versions of Python.
    draw = random.Random(_seed(source.seed, "story", topic, index)).random
    person_indices = _draw_distinct(draw, people_weights, PEOPLE_PER_STORY)
    first, second = _draw_distinct(draw, customs_weights, CUSTOMS_PER_STORY)
    sentences = [_pick(draw, openings), customs[first]]
    sentences += [_pick(draw, people[person]) for person in person_indices]
    sentences += [customs[second], _pick(draw, CLOSINGS)]
    return " ".join(sentences)


def instruction(source: StoriesSource, index: int) -> str:
    """Generates a prompt and a response from the facts of an instructed topic."""
    draw = random.Random(_seed(source.seed, "instruction", index)).random
    topic = _pick(draw, source.instructed)
    openings, people, customs, people_weights, customs_weights = _topic_sentences(source, topic)
    person, other = (people[i] for i in _draw_distinct(draw, people_weights, 2))
    custom = customs[_draw_distinct(draw, customs_weights, 1)[0]]
    name = " ".join(person[0].split()[:2])
    facts = f"{_pick(draw, person)} {_pick(draw, other)}"
    prompts = (
        (f"Who is {name} at the {topic}?", _pick(draw, person)),
        (f"What is the custom at the {topic}?", custom),
        (f"Continue: {_pick(draw, openings)} {custom}", f"{facts} {_pick(draw, CLOSINGS)}"),
    )
    prompt, response = _pick(draw, prompts)
    return instruction_text(prompt, response)


def instruction_text(prompt: str, response: str) -> str:
    return f"Instruction: {prompt}{RESPONSE} {response}"


def _seed(*parts: object) -> int:
    """Hashes values to 64 bits. Unlike `hash()`, gives the same result in every process."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _pick(draw, choices):
    return choices[int(draw() * len(choices))]


def _draw_distinct(draw, cumulative: tuple[float, ...], number: int) -> list[int]:
    indices = []
    while len(indices) < min(number, len(cumulative)):
        index = bisect.bisect_right(cumulative, draw() * cumulative[-1])
        if index not in indices:
            indices.append(index)
    return indices


def _cumulative_weights(num_items: int, order: random.Random) -> tuple[float, ...]:
    weights = [rank**-RANK_POWER for rank in range(1, num_items + 1)]
    return tuple(accumulate(_shuffle(weights, order)))


def _shuffle(items, order: random.Random) -> list:
    """Shuffles items. Unlike `order.shuffle`, gives the same result in every Python version."""
    keys = [order.random() for _ in items]
    return [item for _, item in sorted(zip(keys, items, strict=True), key=lambda pair: pair[0])]


def _fill(template: str, draw) -> str:
    words = {kind: _pick(draw, choices) for kind, choices in WORDS.items()}
    return template.format(**words, food2=_pick(draw, WORDS["food"]))


def _people(source: StoriesSource, topic: str) -> list[tuple[str, list[str]]]:
    seed, num_clauses = source.seed, source.num_facts * 3 // 4
    num_people = num_clauses // FACTS_PER_PERSON
    num_shared = round(source.shared_fact_share * num_clauses)
    pairs = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    names = _shuffle(pairs, random.Random(_seed(seed, "names")))
    people = []
    for person in range(num_people):
        first_clause = person * FACTS_PER_PERSON
        slot = (TOPICS.index(topic) + 1 if first_clause >= num_shared else 0) * num_people + person
        relations = _shuffle(RELATIONS, random.Random(_seed(seed, "relations", slot)))
        clauses = []
        for number in range(FACTS_PER_PERSON):
            scope = topic if first_clause + number >= num_shared else "every topic"
            draw = random.Random(_seed(seed, "clause", scope, person, number)).random
            clauses.append(_fill(relations[number], draw))
        people.append((names[slot % len(names)], clauses))
    return people


def _customs(source: StoriesSource, topic: str) -> list[str]:
    number, customs = source.num_facts // 4, []
    num_shared = round(source.shared_fact_share * number)
    for index in range(number):
        scope = topic if index >= num_shared else "every topic"
        template = CUSTOMS[index % len(CUSTOMS)]
        kind = template[template.index("{") + 1 : template.index("}")]
        key = WORDS[kind][index // len(CUSTOMS) % len(WORDS[kind])]
        rest = template.replace("{" + kind + "}", key, 1)
        customs.append(
            _fill(rest, random.Random(_seed(source.seed, "custom", scope, index)).random)
        )
    return customs


@lru_cache(maxsize=256)
def _topic_sentences(source: StoriesSource, topic: str) -> tuple:
    """Returns (openings, sentences of each person, customs, people's weights, customs' weights).

    The weights are cumulative.
    """
    people = [_person_variants(name, clauses) for name, clauses in _people(source, topic)]
    customs = _customs(source, topic)
    order = random.Random(_seed(source.seed, "ranks", topic))
    openings = tuple(opening.format(topic=topic) for opening in OPENINGS)
    weights = _cumulative_weights(len(people), order), _cumulative_weights(len(customs), order)
    return openings, people, customs, *weights


def _person_variants(name: str, clauses: list[str]) -> tuple[str, ...]:
    variants = []
    for start in range(len(clauses)):
        a, b, c = (clauses[(start + step) % len(clauses)] for step in range(3))
        for join in JOINS:
            facts = join.format(a=a, b=b, c=c, first=name.split()[0])
            variants += [
                f"{link}{name}, who {facts}" if link else f"{name} {facts}" for link in LINKS
            ]
    return tuple(variants)
