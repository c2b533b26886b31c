"""Text that comes token by token is the text of all tokens, up to the first stop."""

import json

import pytest

from gram_platform.corpora.tokenizer import train_tokenizer
from gram_platform.release.serving.requests import DEFAULT_MAX_TOKENS, Refusal, parse_request
from gram_platform.release.serving.text import TextStream, Vocabulary

TEXT = "The naïve 语言模型 said: “stop it”, and stopped. 🦙🦙 the end of the end"


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return Vocabulary.of(train_tokenizer([TEXT] * 4, 280).to_str(), context=64)


def request(**fields):
    return parse_request(json.dumps({"prompt": "x", **fields}).encode())


def streamed(vocabulary, tokens, stops=(), parts=1) -> tuple[str, list[str], bool]:
    stream, shown = TextStream(vocabulary, stops), []
    for start in range(0, len(tokens), parts):
        shown.append(
            stream.add(tuple(tokens[start : start + parts]), last=start + parts >= len(tokens))
        )
        if stream.stopped:
            break
    return "".join(shown), shown, stream.stopped


@pytest.mark.parametrize("parts", [1, 2, 7])
def test_the_parts_are_the_whole(vocabulary, parts):
    tokens = vocabulary.tokenizer.encode(TEXT).ids
    assert len(tokens) > 25
    text, shown, stopped = streamed(vocabulary, tokens, parts=parts)
    assert text == TEXT
    assert not any("\ufffd" in part for part in shown)
    assert not stopped
    assert streamed(vocabulary, tokens, stops=("nowhere", "en…"), parts=parts)[0] == TEXT


@pytest.mark.parametrize("stops", [("型",), ("it”, and", "end"), ("T",), ("zzz", " the end")])
@pytest.mark.parametrize("parts", [1, 3, 100])
def test_the_first_stop_ends_the_text(vocabulary, stops, parts):
    tokens = vocabulary.tokenizer.encode(TEXT).ids
    text, _, stopped = streamed(vocabulary, tokens, stops, parts)
    assert stopped
    assert text == TEXT[: min(TEXT.find(stop) for stop in stops if stop in TEXT)]


def test_half_a_character_is_shown_at_the_end_only(vocabulary):
    tokens = vocabulary.tokenizer.encode("ab☃").ids
    text, shown, _ = streamed(vocabulary, tokens[:-1])
    assert shown[:2] == ["a", "b"]
    assert text.startswith("ab\ufffd")


def test_prompts_become_tokens_that_fit(vocabulary):
    ids = vocabulary.prompt_ids(request(prompt="The end"))
    assert vocabulary.tokenizer.decode(list(ids)) == "The end"
    assert vocabulary.prompt_ids(request(prompt="")) == (vocabulary.end_of_text,)
    assert vocabulary.prompt_ids(request(prompt=[5, 6])) == (5, 6)
    assert vocabulary.end_of_text not in vocabulary.prompt_ids(request(prompt="<|endoftext|>"))
    assert len(vocabulary.prompt_ids(request(prompt=[1] * (65 - DEFAULT_MAX_TOKENS)))) == 49
    for param, fields in (
        ("prompt", {"prompt": [1] * (66 - DEFAULT_MAX_TOKENS)}),
        ("prompt", {"prompt": "x y " * 10_000}),
        ("prompt", {"prompt": TEXT, "max_tokens": 60}),
        ("prompt", {"prompt": [vocabulary.num_tokens]}),
        ("prompt", {"prompt": [-1]}),
        ("max_tokens", {"max_tokens": 65}),
    ):
        with pytest.raises(Refusal) as refusal:
            vocabulary.prompt_ids(request(**fields))
        assert (refusal.value.status, refusal.value.param) == (400, param)


def test_a_request_with_defaults():
    made = parse_request(
        b'{"prompt": "x", "user": "me", "n": 1, "echo": false, "logprobs": null, "logit_bias": {}}'
    )
    assert (made.prompt, made.profile, made.max_tokens, made.temperature, made.top_p) == (
        "x",
        None,
        16,
        1.0,
        1.0,
    )
    assert (made.stop, made.stream) == ((), False)
    assert made.seed != parse_request(b'{"prompt": "x"}').seed


def test_stops_are_texts_and_none_is_absent_or_null():
    assert (request(stop=None).stop, request(stop=[]).stop) == ((), ())
    assert (request(stop="a").stop, request(stop=["a", "b"]).stop) == (("a",), ("a", "b"))
    for stop in (False, 0, {"a": 1}, "", [""], [["a"]], ["a"] * 5):
        with pytest.raises(Refusal) as refusal:
            request(stop=stop)
        assert (refusal.value.status, refusal.value.param) == (400, "stop")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"prompt": "x"} x',
        b'\xff{"prompt": "x"}',
        b'{"prompt": "x", "prompt": "y"}',
        b'{"prompt": "x", "temperature": NaN}',
        b'{"prompt": "x", "max_tokens": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
        b'{"max_tokens": 3}',
        b'{"prompt": []}',
        b'{"prompt": ["a", "b"]}',
        b'{"prompt": [["a"]]}',
        b'{"prompt": [[1, 2], [3]]}',
        b'{"prompt": [[1, "a"]]}',
        b'{"prompt": [[[1]]]}',
        b'{"prompt": "x", "stream_options": true}',
        b'{"prompt": "x", "stream_options": {"include_usage": true}}',
        b'{"prompt": "x", "stream": true, "stream_options": {"include_usage": 1}}',
        b'{"prompt": "x", "stream": true, "stream_options": {"other": true}}',
        b'{"prompt": [1, true]}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "x", "model": 7}',
        b'{"prompt": "x", "max_tokens": 0}',
        b'{"prompt": "x", "max_tokens": true}',
        b'{"prompt": "x", "temperature": -1}',
        b'{"prompt": "x", "top_p": 0}',
        b'{"prompt": "x", "seed": 1.5}',
        b'{"prompt": "x", "n": 2}',
        b'{"prompt": "x", "n": true}',
        b'{"prompt": "x", "stream": "yes"}',
        b'{"prompt": "x", "logprobs": 0}',
        b'{"prompt": "x", "echo": true}',
        b'{"prompt": "x", "modules": ["secret"]}',
        b'{"prompt": "x", "__proto__": {}}',
    ],
)
def test_bodies_that_are_refused(body):
    with pytest.raises(Refusal) as refusal:
        parse_request(body)
    assert refusal.value.status == 400
    assert "secret" not in refusal.value.message


def test_a_prompt_on_which_the_library_fails_is_refused():
    """A pattern that tries every way to divide a run of one letter ends in a panic."""
    plain = json.loads(train_tokenizer([TEXT] * 4, 280).to_str())
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated"}
    plain["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [{**split, "invert": False}, plain["pre_tokenizer"]],
    }
    strange = Vocabulary.of(json.dumps(plain), context=64)
    assert strange.prompt_ids(request(prompt="ab"))
    with pytest.raises(Refusal):
        strange.prompt_ids(request(prompt="a" * 40 + "!"))


@pytest.mark.parametrize("prompt", ["a", [1, 2, 3], [7], ""])
def test_a_list_of_one_prompt_is_the_prompt(prompt):
    alone, listed = (
        parse_request(json.dumps({"prompt": one, "seed": 1}).encode()) for one in (prompt, [prompt])
    )
    assert alone == listed
