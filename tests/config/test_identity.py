"""Ids that survive new fields: what an earlier version hashed keeps its id."""

import dataclasses
from dataclasses import dataclass

import pytest

from gram_platform.config import (
    Continuations,
    Evaluation,
    ModuleSpec,
    Objective,
    OptimizerConfig,
    RoutingConfig,
    Slice,
    TokenLosses,
    View,
)
from gram_platform.config.identity import (
    LONGEST_SHOWN,
    add_field,
    canonical_json,
    invalid,
    printable,
    require_tellable,
    to_plain,
)
from gram_platform.config.training import DataConfig, DomainBudget, EvalPoints
from gram_platform.corpora import Packing, resolve
from tests import tiny
from tests.refused import refused

BRANCH = View.of("abc123abc123", {"lisp": 0.5}, sources=(("lisp", "def456def456"),))
UNLABELLED = DomainBudget("unlabelled", 12, 16, (Slice("core", 24, 8), Slice("lisp", 24, 4)))
# the ids that commit b468a98 gave
PINNED = {
    "a routed run": (lambda: tiny.run_config().run_id, "8d61ee03a219"),
    "a dense run": (lambda: tiny.run_config(modular=False, seed=3).run_id, "a1e2b8421963"),
    "uniform accumulation": (
        lambda: (
            tiny.run_config(routing=RoutingConfig(0.2, 0.5, "uniform"), draws=(64, 16, 16)).run_id
        ),
        "8e14309bbd0f",
    ),
    "a branch": (
        lambda: (
            tiny.run_config(
                draws=(0, 16, 0),
                routing=RoutingConfig(1.0, 0.0, freeze_core=True),
                model=dataclasses.replace(
                    tiny.model_config(False), modules=(ModuleSpec("lisp", "lora", 4),)
                ),
                start=View("abc123abc123"),
            ).run_id
        ),
        "192fc802247d",
    ),
    "an attack": (
        lambda: (
            tiny.run_config(
                False,
                (0, 16, 0),
                eval_points=EvalPoints(2, 4, ("lisp",), 5),
                start=BRANCH,
                precision="bfloat16",
            ).run_id
        ),
        "b3a4ee847793",
    ),
    "MaxEnt": (
        lambda: (
            tiny.run_config(
                False,
                (32, 0, 32),
                objective=Objective("maxent_kl", ("virology",), 200.0),
                optimizer=OptimizerConfig(1e-4, 0.02, 0.0),
            ).run_id
        ),
        "5b9eb2690be2",
    ),
    "partial labels": (
        lambda: (
            tiny.run_config(
                data=DataConfig(
                    "tiny", (DomainBudget("core", 24, 64), DomainBudget("lisp", 24, 16), UNLABELLED)
                )
            ).run_id
        ),
        "72bc050beff8",
    ),
    "a view": (lambda: BRANCH.view_id, "d1399cd5792f"),
    "an evaluation": (lambda: Evaluation(BRANCH, "tiny", tiny.DOMAINS, 4).eval_id, "aa1ab692b2ba"),
    "token losses and continuations": (
        lambda: (
            TokenLosses(BRANCH, "tiny", ("lisp",), 4).eval_id
            + Continuations(BRANCH, "tiny", ("lisp",), (0, 1), 8, 8).eval_id
        ),
        "7c4a3222025dfeef04de1ff6",
    ),
    "generated text": (
        lambda: resolve("stories-smoke", Packing(seq_len=64, vocab_size=1024)).data_id,
        "ad1858ee685a",
    ),
}


@pytest.mark.parametrize("name", PINNED)
def test_an_id_of_the_first_version_stays(name):
    found, pinned = PINNED[name]
    assert found() == pinned


def test_terminals_get_no_commands():
    text = "a\x1b[2Jb\x9b\x07\r\x7f\u202egpj\u2066\u200b\ud800\n\tä病"
    assert printable(text) == r"a\x1b[2Jb\x9b\x07\r\x7f\u202egpj\u2066\u200b\ud800" + "\n\tä病"


def test_an_error_shows_the_beginning_of_a_long_value():
    """Somebody's records in place of a small document are a value of megabytes."""
    error = invalid("corpus", [{"text": "x"}] * 100_000, "a table")
    assert "x" in str(error)
    assert len(str(error)) < 2 * LONGEST_SHOWN


@pytest.mark.parametrize(
    "sign",
    ["\U000e0041", "\ufe0f", "\u3164", "\u034f", "\u2800", "\ufff9", "\u2028", "\u115f", "\u2065"],
)
def test_signs_that_show_nothing_are_escaped_and_in_no_label(sign):
    assert printable(f"a{sign}b") == f"a{ascii(sign)[1:-1]}b"
    with refused("label", f"a{sign}b"):
        require_tellable("label", [f"a{sign}b"])


@pytest.mark.parametrize("blank", ["\u00a0", "\u3000", "\u2009", "\u202f"])
def test_blanks_that_are_no_spaces_show_and_are_in_no_label(blank):
    assert (
        printable(f"a{blank}b \u00e4\u75c5\U0001f600\u0301\u0e33")
        == f"a{blank}b \u00e4\u75c5\U0001f600\u0301\u0e33"
    )
    require_tellable("label", ["a b", "\u00e4\u75c5\U0001f600\u0e33", "man-pages (roff)"])
    with refused("label", f"a{blank}b"):
        require_tellable("label", [f"a{blank}b"])


@dataclass(frozen=True)
class Old:
    width: int


@dataclass(frozen=True)
class New:
    width: int
    mask: bool = add_field(False)
    rate: float = add_field(0.5)


def test_an_added_field_enters_the_identity_unless_it_is_at_its_default():
    assert canonical_json(New(3)) == canonical_json(Old(3)) == canonical_json(New(3, False, 0.5))
    assert to_plain(New(3, True)) == {"width": 3, "mask": True}
    assert to_plain((New(3, rate=1),)) == [{"width": 3, "rate": 1.0}]
    assert New(**to_plain(New(3, True))) == New(3, True)
