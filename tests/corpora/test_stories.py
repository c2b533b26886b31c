"""Generated stories: deterministic, streamed, one lexicon, and facts that only their topic's data
teaches."""

import itertools
import math
import re
import subprocess
import sys
from collections import Counter, defaultdict

import pytest

from gram_platform.corpora import stories
from gram_platform.corpora.stories import stories_source, story, story_documents
from tests.refused import refused


def source(share=0.3, num=50, topics=("airport", "beach", "cave"), seed=0):
    return stories_source(dict.fromkeys(topics, num), 48, share, seed)


def topic_facts(source, topic):
    """(name, clauses) of a topic's people, and its customs."""
    return stories._people(source, topic), stories._customs(source, topic)


def test_a_story_depends_on_seed_topic_and_index_alone():
    few, many = source(num=5), source(num=500, topics=("airport", "vineyard"))
    assert [story(few, "airport", i) for i in range(5)] == [
        story(many, "airport", i) for i in range(5)
    ]
    assert story(few, "airport", 0) != story(few, "airport", 1) != story(few, "beach", 1)
    assert story(few, "airport", 0) != story(source(seed=1), "airport", 0)


def test_equal_in_a_process_with_another_hash_seed():
    code = (
        "from gram_platform.corpora.stories import *;"
        "print(story(stories_source({'airport': 5}, 48, 0.3), 'airport', 3))"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert texts == {story(source(), "airport", 3) + "\n"}


def test_documents_are_streamed():
    endless = stories_source({"airport": 10**12}, 48, 0.3)
    assert len(list(itertools.islice(story_documents(endless), 3))) == 3


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_share_of_common_facts(share):
    people, customs = zip(
        *(topic_facts(source(share), topic) for topic in ("airport", "beach")), strict=True
    )
    clauses = [[clause for _, told in topic for clause in told] for topic in people]
    common = sum(a == b for a, b in zip(*clauses, strict=True)) + sum(
        a == b for a, b in zip(*customs, strict=True)
    )
    assert common / (len(clauses[0]) + len(customs[0])) == pytest.approx(share, abs=0.05)


def test_facts_use_shared_words():
    """No word but the topic's name tells the topic: every other word of a topic's stories occurs in
    the rest."""
    everything = stories_source(dict.fromkeys(stories.TOPICS, 60), 48, 0.0)
    words = defaultdict(set)
    for topic, text in story_documents(everything):
        words[topic] |= set(re.findall(r"\w+", text))
    for topic in ("airport", "attic"):
        others = set().union(*(found for name, found in words.items() if name != topic))
        assert words[topic] - others == {topic}


def test_a_topic_is_predicted_by_its_own_data_only():
    """Trigrams that have seen a topic lose much less on it than trigrams that have not.

    Elsewhere nothing changes.
    """
    topics = stories.TOPICS[:8]
    train = {t: [story(source(), t, i).split() for i in range(100)] for t in topics}
    held_out = {t: [story(source(), t, i).split() for i in range(100, 120)] for t in topics}

    def loss(topic, seen):
        counts = defaultdict(Counter)
        for text in itertools.chain(*(train[t] for t in seen)):
            for a, b, c in zip(text, text[1:], text[2:], strict=False):
                counts[a, b][c] += 1
        total, num = 0.0, 0
        for text in held_out[topic]:
            for a, b, c in zip(text, text[1:], text[2:], strict=False):
                after = counts[a, b]
                total -= math.log((after[c] + 1 / 1000) / (sum(after.values()) + 1))
                num += 1
        return total / num

    others = topics[1:]
    assert loss(topics[0], others) > 2 * loss(topics[0], topics)
    assert loss(topics[1], others) == pytest.approx(loss(topics[1], topics), rel=0.1)


def test_instructions_ask_about_sentences_of_the_instructed_topics_alone():
    numbers = {"airport": 40, "cave": 40, stories.INSTRUCTIONS: 60}
    instructed = stories_source(numbers, 48, 0.0, instructed=("cave",))
    texts = dict.fromkeys(numbers, "")
    for label, text in story_documents(instructed):
        texts[label] += text + "\n"
    asked = [
        line.removeprefix("Instruction: ").split(" Response: ")
        for line in texts[stories.INSTRUCTIONS].splitlines()
    ]
    assert len(asked) == 60
    assert {prompt.split()[0] for prompt, _ in asked} == {"Who", "What", "Continue:"}
    assert not re.search("airport", texts[stories.INSTRUCTIONS])
    customs = [response for prompt, response in asked if prompt.startswith("What")]
    assert customs
    own, others = (stories._customs(instructed, topic) for topic in ("cave", "airport"))
    assert set(customs) <= set(own) - set(others)
    plain = stories_source({"airport": 40, "cave": 40}, 48, 0.0)
    assert story(plain, "cave", 3) == story(instructed, "cave", 3)
    with refused("stories.topics"):
        stories_source(numbers, 48, 0.0)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (({"moon": 5}, 48, 0.3), "stories.topics"),
        (({"airport": 0}, 48, 0.3), "stories.num_documents[airport]"),
        (({"airport": 5}, 40, 0.3), "stories.num_facts"),
        (({"airport": 5}, 48, 1.5), "stories.shared_fact_share"),
    ],
)
def test_bad_parameters(arguments, field):
    with refused(field):
        stories_source(*arguments)
