"""Wraps a view as a model that scores texts for the LM Evaluation Harness.

Requires lm-eval: `pip install 'gram-platform[eval]'`.
"""

from collections.abc import Mapping, Sequence
from itertools import zip_longest

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.utils import get_rolling_token_windows
from tokenizers import Tokenizer

from gram_platform.config.identity import sum_in_order
from gram_platform.config.layout import evaluation_batch
from gram_platform.corpora.packed import TOKENIZER
from gram_platform.corpora.tokenizer import encode, end_of_text_id
from gram_platform.model.transformer import Transformer

Tokens = list[int]
# (log-likelihood in nats, True if every token was the most likely).
Scored = tuple[float, bool]


class HarnessModel(TemplateLM):
    """A routed model in which the `active` modules are switched on.

    An empty context is replaced by an end-of-text token. A context that is too long is truncated on
    the left, as in the harness's own models.
    """

    def __init__(self, model: Transformer, active: Mapping[str, float], tokenizer: Tokenizer):
        super().__init__()
        self._model, self._active, self._tokenizer = model, active, tokenizer

    @property
    def eot_token_id(self) -> int:
        return end_of_text_id(self._tokenizer)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_) -> Tokens:
        return encode(self._tokenizer, string, TOKENIZER)

    def _loglikelihood_tokens(
        self, requests: list[tuple[object, Tokens, Tokens]], disable_tqdm: bool = False, **_
    ) -> list[Scored]:
        return self._score([(context, continuation) for _, context, continuation in requests])

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Returns each text's log-likelihood in nats. Splits long texts into windows."""
        length, totals = self._model.config.seq_len, []
        for (text,) in (request.args for request in requests):
            tokens = self.tok_encode(text)
            windows = get_rolling_token_windows(tokens, self.eot_token_id, length, context_len=1)
            # Inputs and targets share all tokens except the first and the last.
            pairs = [(read[: len(read) - len(targets) + 1], targets) for read, targets in windows]
            totals.append(sum_in_order(value for value, _ in self._score(pairs)))
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        raise NotImplementedError("tasks that generate text")

    @torch.no_grad()
    def _score(self, pairs: Sequence[tuple[Tokens, Tokens]]) -> list[Scored]:
        # The model does not read the last token.
        longest = self._model.config.seq_len + 1
        rows = [(context + continuation)[-longest:] for context, continuation in pairs]
        order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
        batch = evaluation_batch(self._model.config, self._model.device)
        scores = {}
        for first in range(0, len(order), batch):
            indices = order[first : first + batch]
            scored = self._batch([rows[i] for i in indices], [len(pairs[i][1]) for i in indices])
            scores |= zip(indices, scored, strict=True)
        return [scores[i] for i in range(len(rows))]

    def _batch(self, rows: list[Tokens], num_scored: list[int]) -> list[Scored]:
        padded = list(zip(*zip_longest(*rows, fillvalue=0), strict=True))
        tokens_BT = torch.tensor(padded, device=self._model.device)
        log_p_BTV = torch.log_softmax(self._model(tokens_BT[:, :-1], self._active).float(), dim=-1)
        log_p_BT = log_p_BTV.gather(2, tokens_BT[:, 1:, None])[:, :, 0].cpu().double()
        is_likeliest_BT = (log_p_BTV.argmax(dim=-1) == tokens_BT[:, 1:]).cpu()
        scores = []
        for i, (row, n) in enumerate(zip(rows, num_scored, strict=True)):
            span = slice(max(0, len(row) - 1 - n), len(row) - 1)
            scores.append((float(log_p_BT[i, span].sum()), bool(is_likeliest_BT[i, span].all())))
        return scores
