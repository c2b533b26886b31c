"""Converts prompts to token ids, and generated tokens to text up to a stop sequence."""

from dataclasses import dataclass

from tokenizers import Tokenizer

from gram_platform.corpora.packed import TOKENIZER
from gram_platform.corpora.tokenizer import configure, encode, end_of_text_id
from gram_platform.release.serving.requests import CompletionRequest, bad_request

# The decoder's output for an incomplete character.
UNFINISHED = "\ufffd"


@dataclass(frozen=True)
class Vocabulary:
    """A run's tokenizer, and the number of tokens that its model can read (`context`)."""

    tokenizer: Tokenizer
    # The number of ids that have a text. A model's vocabulary may be larger.
    num_tokens: int
    context: int
    end_of_text: int
    # The length of the longest token, in bytes for a byte-level tokenizer.
    longest_piece: int

    @classmethod
    def of(cls, tokenizer_json: str, context: int) -> "Vocabulary":
        tokenizer = configure(Tokenizer.from_str(tokenizer_json))
        ids = tokenizer.get_vocab(with_added_tokens=True)
        longest = max(map(len, ids))
        return cls(tokenizer, max(ids.values()) + 1, context, end_of_text_id(tokenizer), longest)

    def prompt_ids(self, request: CompletionRequest) -> tuple[int, ...]:
        """Returns the prompt's token ids, or an end-of-text token for an empty prompt.

        Raises Refusal 400 if the prompt and `max_tokens` together exceed the context, an id is
        unknown, or the text cannot be encoded.
        """
        # The model does not read the last drawn token.
        room = self.context + 1 - request.max_tokens
        if room < 1:
            raise bad_request(
                "max_tokens", f"at most {self.context}: the model reads {self.context} tokens"
            )
        reserved = f"beside max_tokens = {request.max_tokens}"
        fits = f"at most {room} tokens {reserved}: the model reads {self.context}"
        if isinstance(request.prompt, str):
            # This text is too long even if every token is the longest.
            if len(request.prompt) > room * self.longest_piece:
                raise bad_request("prompt", fits, "context_length_exceeded")
            try:
                ids = tuple(encode(self.tokenizer, request.prompt, TOKENIZER))
            except ValueError as error:
                raise bad_request("prompt", f"text that can be encoded ({error})") from None
            ids = ids or (self.end_of_text,)
        else:
            ids = request.prompt
        if len(ids) > room:
            raise bad_request("prompt", fits, "context_length_exceeded")
        if not all(0 <= token < self.num_tokens for token in ids):
            raise bad_request("prompt", f"token ids from 0 to {self.num_tokens - 1}")
        return ids


class TextStream:
    """Decodes tokens incrementally.

    `add` holds back an incomplete character, and text that may begin a stop sequence.
    The text ends before the first stop sequence, and `stopped` is then True.
    """

    def __init__(self, vocabulary: Vocabulary, stops: tuple[str, ...]):
        self.stopped = False
        self._vocabulary, self._stops = vocabulary, stops
        # The tokens of the last returned text. Some tokenizers need them to decode the next.
        self._context: list[int] = []
        self._new: list[int] = []
        self._held = ""

    def add(self, tokens: tuple[int, ...], last: bool = False) -> str:
        """Adds tokens. Returns the text that is now complete, or all held text if `last` is set."""
        self._new += [token for token in tokens if token != self._vocabulary.end_of_text]
        text = self._decode_new(last)
        if not self._stops or self.stopped:
            return "" if self.stopped else text
        self._held += text
        return self._release(last)

    def _decode_new(self, last: bool) -> str:
        before = self._decode(self._context)
        text = self._decode(self._context + self._new)
        if not self._new or (text.endswith(UNFINISHED) and not last):
            return ""
        self._context, self._new = self._new, []
        return text[len(before) :]

    def _release(self, last: bool) -> str:
        ends = [end for stop in self._stops if (end := self._held.find(stop)) >= 0]
        if ends:
            self.stopped = True
            return self._held[: min(ends)]
        num_held = 0 if last else max(_overlap(self._held, stop) for stop in self._stops)
        end = len(self._held) - num_held
        text, self._held = self._held[:end], self._held[end:]
        return text

    def _decode(self, tokens: list[int]) -> str:
        return self._vocabulary.tokenizer.decode(tokens, skip_special_tokens=False)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
