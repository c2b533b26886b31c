"""A run whose answers say which profile gave them, and the policy of four callers.

Every module pushes the logit of a token of its own: core answers 1, one module its own token, two
modules that of the pair. Greedy and drawn answers are the same, since the logits are hundreds
apart.
"""

import dataclasses
import json
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gram_platform.config import (
    DataConfig,
    DomainBudget,
    EvalPoints,
    ModelConfig,
    ModuleSpec,
    OptimizerConfig,
    RoutingConfig,
    RunConfig,
)
from gram_platform.corpora import Packing, prepare, resolve
from gram_platform.model.transformer import Transformer, build, initial_weights
from gram_platform.release.serving.policy import Policy, parse_policy, token_digest
from gram_platform.store import Store
from tests.release.planted import complete

MODULES = ("lisp", "secret", "virology")  # nobody is granted `secret`
SEQ_LEN, PUSH, CORE_PUSH = 64, 400.0, 100.0
ANSWERS = {"open": 1, "lisp": 2, "medicine": 3, "both": 4}  # profile -> the token it says
WEIGHTS = {
    "open": {},
    "lisp": {"lisp": 1.0},
    "medicine": {"virology": 1.0},
    "both": {"lisp": 1.0, "virology": 1.0},
}
SECRET_ANSWER = 5
END_OF_TEXT = 0

POLICY = """
[profiles.open]
modules = []
[profiles.lisp]
modules = ["lisp"]
[profiles.medicine]
modules = { virology = 1.0 }
[profiles.both]
modules = ["lisp", "virology"]
[profiles.nobodys]
modules = ["secret"]
"""


def text_of(policy: Policy) -> str:
    """Writes a policy as a file's text."""
    text = ""
    for name, weights in policy.profiles:
        modules = ", ".join(f"{_quoted(module)} = {weight!r}" for module, weight in weights)
        text += f"[profiles.{_quoted(name)}]\nmodules = {{ {modules} }}\n"
    for rule in policy.tokens:
        fields = {name: value for name, value in vars(rule).items() if value is not None}
        lines = (f"{name} = {json.dumps(value)}\n" for name, value in fields.items())
        text += "[[tokens]]\n" + "".join(lines)
    return text


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


@dataclass(frozen=True)
class Planted:
    """The run, in a storage or not, and the tokens of its callers."""

    config: ModelConfig
    policy_text: str
    tokens: dict[str, str]  # holder -> token

    @property
    def policy(self) -> Policy:
        return parse_policy(self.policy_text)


def planted(vocab_size: int = 300, **max_requests: int) -> Planted:
    """A caller for each profile, and `reader`, who has three of them; some with limits of their
    own."""
    tokens = {name: f"token-of-{name}" for name in (*ANSWERS, "reader")}
    text = POLICY
    for name, token in tokens.items():
        profiles = '["open", "lisp", "medicine"]' if name == "reader" else f'["{name}"]'
        text += (
            f'[[tokens]]\nname = "{name}"\nsha256 = "{token_digest(token)}"\nprofiles ='
            f" {profiles}\n"
        )
        text += 'default = "medicine"\nmetrics = true\n' if name == "reader" else ""
        text += f"max_requests = {max_requests[name]}\n" if name in max_requests else ""
    config = ModelConfig(
        2, 16, 4, 2, 32, vocab_size, SEQ_LEN, tuple(ModuleSpec(d, "mlp", 4) for d in MODULES)
    )
    return Planted(config, text, tokens)


def said_rights(text: str) -> set[tuple[str, str, str, float]]:
    """(digest, profile, module, weight) of all that a policy's text can mean to grant, by another
    reading of it.

    Every profile has the module "" too. Nothing for a digest in two entries, and in a text that is
    no TOML.
    """
    try:
        plain = tomllib.loads(text)
    except (ValueError, RecursionError):
        return set()
    profiles, entries = plain.get("profiles"), plain.get("tokens")
    profiles = profiles if isinstance(profiles, Mapping) else {}
    entries = (
        [entry for entry in entries if isinstance(entry, Mapping)]
        if isinstance(entries, list)
        else []
    )
    times, said = Counter(str(entry.get("sha256")) for entry in entries), set()
    for entry in entries:
        named, digest = entry.get("profiles"), str(entry.get("sha256"))
        for name in named if isinstance(named, list) and times[digest] == 1 else ():
            profile = profiles.get(name) if isinstance(name, str) else None
            modules = profile.get("modules") if isinstance(profile, Mapping) else None
            weights = modules if isinstance(modules, Mapping) else {}
            if isinstance(modules, list):
                weights = {module: 1.0 for module in modules if isinstance(module, str)}
            if isinstance(modules, list | Mapping):
                plain_weights = {"": 0.0} | {
                    m: w for m, w in weights.items() if isinstance(w, int | float)
                }
                said |= {(digest, name, module, weight) for module, weight in plain_weights.items()}
    return said


def policy_rights(policy: Policy) -> set[tuple[str, str, str, float]]:
    """What a policy grants, as `said_rights`."""
    held = {(rule.sha256, profile) for rule in policy.tokens for profile in rule.profiles}
    weights = {pair: {"": 0.0} | dict(policy.grant(*pair).weights) for pair in held}
    return {
        (*pair, module, weight)
        for pair, found in weights.items()
        for module, weight in found.items()
    }


def planted_weights(config: ModelConfig) -> dict[str, torch.Tensor]:
    """Random, but for the last layer's biases and an unembedding that read them off.

    Dimension 0 has what lisp adds, 1 what virology does, 2 what `secret` does. They are far larger
    than anything else, so the final norm leaves about +-1 in them; which token wins follows from
    the signs.
    """
    weights = dict(initial_weights(config, seed=0))
    last = f"blocks.{config.num_layers - 1}"
    for axis, module in enumerate(("lisp", "virology", "secret")):
        bias = torch.zeros(config.d_model)
        bias[axis] = PUSH
        weights[f"{last}.aux.{module}.c_proj.bias"] = bias
    core = torch.zeros(config.d_model)
    core[3] = CORE_PUSH  # so that core alone has something to say
    weights[f"{last}.mlp.c_proj.bias"] = core
    head = torch.zeros(config.vocab_size, config.d_model)
    for token, directions in {
        1: {3: 60.0},
        2: {0: 100.0},
        3: {1: 100.0},
        4: {0: 90.0, 1: 90.0},
        5: {2: 300.0},
    }.items():
        for axis, value in directions.items():
            head[token, axis] = value
    weights["lm_head.weight"] = head
    return weights


def planted_model(config: ModelConfig) -> Transformer:
    return build(config, planted_weights(config).items()).eval().requires_grad_(False)


def write_storage(root: Path, plan: Planted) -> str:
    """A storage with the run, its corpus and tokenizer; its run_id. The policy is `policy.toml`
    beside it."""
    source = root / "source"
    source.mkdir(parents=True)
    sentence = "the quick brown fox jumps over the lazy dog, and the dog sleeps. "
    records = [
        {"text": f"{sentence * 4} {i}", "label": d} for i in range(80) for d in ("core", *MODULES)
    ]
    (source / "texts.jsonl").write_text("\n".join(map(json.dumps, records)))
    store = Store(root).open_for_writing(min_free_bytes=0)
    recipe = resolve(
        str(source), Packing(core_label="core", seq_len=SEQ_LEN, vocab_size=plan.config.vocab_size)
    )
    corpus = prepare(recipe, store.data_root)
    (root / "policy.toml").write_text(plan.policy_text)
    return write_run(
        root, dataclasses.replace(plan.config, vocab_size=corpus.vocab_size), corpus.data_id
    )


def write_run(root: Path, config: ModelConfig, data_id: str, num_ranks: int = 1) -> str:
    """The run, complete, in a storage, as so many ranks write it; its run_id."""
    domains = ("core", *MODULES)
    data = DataConfig(data_id, tuple(DomainBudget(d, 8, 8) for d in domains))
    optimizer, points = OptimizerConfig(1e-3, 0.1, 0.1), EvalPoints(0, 2, domains)
    run = RunConfig(config, data, RoutingConfig(), optimizer, 4, 2, points, 0, precision="float32")
    return complete(
        Store(root).open_for_writing(min_free_bytes=0), run, planted_weights(config), num_ranks
    )
