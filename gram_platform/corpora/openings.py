"""The documents inside packed sequences: where they begin, and what follows. Needs numpy alone."""

from collections.abc import Sequence

import numpy as np

from gram_platform.config.identity import invalid


def packed_documents(rows: np.ndarray, end_of_text: int) -> list[np.ndarray]:
    """The whole documents of rows [N, seq_len + 1], in order, without their end of text; one cut at the end is not.

    The last token of a row is the first of the next.
    """
    stream = np.concatenate([rows[:, :-1].reshape(-1), rows[-1, -1:]])
    ends = np.flatnonzero(stream == end_of_text)
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    return [stream[start:end] for start, end in zip(starts, ends, strict=True)]


def openings(
    rows: np.ndarray, end_of_text: int, wanted: Sequence[int], num_prompt_tokens: int, num_tokens: int
) -> list[tuple[list[int], list[int]]]:
    """(prompt, at most `num_tokens` of what follows) of the wanted documents, counted over those longer than a prompt.

    ValueError when there are fewer.
    """
    long_enough = [d for d in packed_documents(rows, end_of_text) if len(d) > num_prompt_tokens]
    if max(wanted) >= len(long_enough):
        allowed = f"numbers below the {len(long_enough)} documents of more than {num_prompt_tokens} tokens"
        raise invalid("continuations.documents", tuple(wanted), allowed)
    stop = num_prompt_tokens + num_tokens
    chosen = [long_enough[index].tolist() for index in wanted]
    return [(tokens[:num_prompt_tokens], tokens[num_prompt_tokens:stop]) for tokens in chosen]
