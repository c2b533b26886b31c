"""Properties under random histories: a row's logits depend on its own request alone, and no edit
gives a right."""

import random
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from gram_platform.config import ModuleSpec
from gram_platform.model.rows import RowReader
from gram_platform.model.transformer import Transformer, build
from gram_platform.release.serving.batch import (
    ActiveSequence,
    Batch,
    GenerationRequest,
    next_tokens,
)
from gram_platform.release.serving.policy import (
    Grant,
    Policy,
    parse_policy,
    token_digest,
    update_policy,
)
from gram_platform.train.evaluate import uniforms
from tests import tiny
from tests.release.serving.planted import MODULES, planted, policy_rights, said_rights, text_of

NUM_HISTORIES = 6
VOCAB, NUM_ROWS = 290, 5  # the model has 10 further ids, which have no text
LOADED = ("lisp", "virology")
BROKEN = "broken"  # a module of NaN
DOCUMENT_END = 5


def random_model(kind: str, d_mlp: int, document_end: int) -> Transformer:
    """Equal weights at every call; modules of unequal widths, of which the last is broken."""
    widths = zip((*MODULES, BROKEN), (4, 2, 6, 3), strict=True)
    modules = tuple(ModuleSpec(domain, kind, width) for domain, width in widths)
    config = replace(planted().config, d_mlp=d_mlp, modules=modules, document_end=document_end)
    model = build(config, tiny.initial_weights(config, seed=3)).eval().requires_grad_(False)
    for name, parameter in sorted(model.named_parameters()):
        parameter.add_(
            0.4
            * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(sum(name.encode()))
            )
        )
        if BROKEN in name:
            parameter.fill_(torch.nan)
    return model


class Recorded:
    """A batch, and the logits that each of its sequences was drawn from."""

    def __init__(self, reader: RowReader):
        self.batch, self.logits = Batch(reader, VOCAB, end_of_text=7), defaultdict(list)
        read, advance, last = reader.read, self.batch._advance, []

        def reading(*inputs) -> torch.Tensor:
            last.append(read(*inputs))
            return last[-1]

        def advancing(sequences, *rest) -> None:
            sequences = list(sequences)
            advance(sequences, *rest)
            for sequence, logits_V in zip(sequences, last[-1], strict=True):
                self.logits[sequence].append(logits_V)

        reader.read, self.batch._advance = reading, advancing


def random_sequence(chooser: random.Random) -> ActiveSequence:
    drawn = [chooser.randrange(VOCAB) for _ in range(chooser.randint(1, 30))]
    prompt = tuple(DOCUMENT_END if chooser.random() < 0.1 else token for token in drawn)
    weights = {m: chooser.choice((1.0, 1.0, 0.5, 2.0)) for m in MODULES if chooser.random() < 0.5}
    weights |= {BROKEN: 1.0} if chooser.random() < 0.1 else {}
    temperature, top_p = chooser.choice((0.0, 0.7, 1.0)), chooser.choice((1.0, 0.8))
    request = GenerationRequest(
        prompt, chooser.randint(1, 25), temperature, top_p, chooser.randrange(10**6)
    )
    return ActiveSequence(request, Grant("holder", "profile", tuple(weights.items())))


def drawn_from(logits_CV: torch.Tensor, request: GenerationRequest) -> list[int]:
    """The tokens of a request whose logits are known."""
    num_tokens = len(logits_CV)
    full = [
        torch.full((num_tokens,), value, dtype=torch.float64)
        for value in (request.temperature, request.top_p)
    ]
    numbers = uniforms(request.max_tokens, "completion", request.seed)[:num_tokens]
    return next_tokens(logits_CV[:, :VOCAB], *full, numbers).tolist()


@pytest.mark.parametrize(
    "how", [("mlp", 32, -1), ("mlp", 0, -1), ("lora", 32, -1), ("mlp", 32, DOCUMENT_END)]
)
def test_logits_are_those_of_the_model_on_a_row_alone(how):
    """Whoever comes, ends, is removed or moves beside it; a row that is used again starts from
    nothing."""
    model, together = random_model(*how), Recorded(RowReader(random_model(*how), NUM_ROWS))
    for seed in range(NUM_HISTORIES):
        chooser, everybody = random.Random(seed), []
        batch = together.batch
        while len(everybody) < 12 or batch.sequences:
            if batch.num_free and len(everybody) < 12 and chooser.random() < 0.6:
                new = [random_sequence(chooser) for _ in range(chooser.randint(1, batch.num_free))]
                everybody += batch.admit(new)
            if everybody and chooser.random() < 0.2:
                batch.remove(chooser.choice(everybody))  # which may have ended
            batch.step()
        for sequence in everybody:
            request, drawn, logits_CV = (
                sequence.request,
                sequence.drawn,
                torch.stack(together.logits[sequence]),
            )
            read = torch.tensor([[*request.prompt, *drawn[:-1]]])
            own_CV = model(read, dict(sequence.grant.weights))[0, len(request.prompt) - 1 :]
            close = {"rtol": 1e-5, "atol": 1e-4, "equal_nan": True}
            torch.testing.assert_close(logits_CV, own_CV, **close, msg=f"seed {seed}")
            assert drawn == drawn_from(logits_CV, request), f"seed {seed}"


def rights(policy: Policy) -> dict[tuple[str, str], tuple]:
    """What each token may use: (digest, profile) -> weights."""
    return {
        (r.sha256, p): policy.grant(r.sha256, p).weights for r in policy.tokens for p in r.profiles
    }


def edited(text: str, chooser: random.Random) -> str:
    """As a person or an accident may leave the file: an entry more, less or commented out, a few
    bytes off, cut off."""
    head, *entries = text.split("\n[[tokens]]")
    kind = chooser.randrange(7)
    if kind < 3 and entries:
        entry = entries.pop(chooser.randrange(len(entries)))
        entries += ["".join(f"\n# {line}" for line in entry.splitlines())] if kind == 2 else []
    elif kind == 3:
        profile = chooser.choice(("open", "lisp", "both", "nobodys"))
        digest = token_digest(str(chooser.randrange(10**9)))
        entries.append(
            f'\nname = "t{chooser.randrange(10**6)}"\nsha256 = "{digest}"\nprofiles ='
            f' ["{profile}"]\n'
        )
    text = "\n[[tokens]]".join([head, *entries])
    if kind == 4 and text:
        at = chooser.randrange(len(text))
        text = (
            text[:at]
            + chooser.choice(('"', "[[", "x", "=", "\n", "\0", "é"))
            + text[at + chooser.randrange(4) :]
        )
    elif kind == 5:
        text = text[: chooser.randrange(len(text) + 1)]
    elif kind == 6:
        text += chooser.choice(
            ("[[tokens]", "[profiles.p]\nmodules = 1\n", "x = 1\n", "[" * 5000, 'a = "')
        )
    return text


def test_no_edit_gives_a_right_by_accident():
    """Nothing is granted that the text does not say; a text without an error is followed as it
    is."""
    num_broken = num_partly = 0
    for seed in range(100):
        chooser, policy, text = random.Random(seed), planted().policy, text_of(planted().policy)
        for _ in range(12):
            before, text = policy, edited(text, chooser)
            policy, error = update_policy(text, before, LOADED)
            assert policy_rights(policy) <= said_rights(text), f"seed {seed}"
            assert set(policy.modules_of_tokens) <= set(LOADED), f"seed {seed}"
            try:
                meant = rights(parse_policy(text))
            except ValueError:
                num_broken += 1
                assert error, f"seed {seed}"
                text = chooser.choice((text, text_of(policy)))  # somebody mends it, or not yet
                continue
            assert rights(policy).items() <= meant.items(), f"seed {seed}"
            num_partly += bool(error)
            if not error:
                assert rights(policy) == meant
                assert policy == parse_policy(text)
    assert num_broken > 150
    assert num_partly > 15
