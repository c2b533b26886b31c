"""What `--help` of studies and searches looks like at 80 columns, and what misspelt values are answered with."""

import dataclasses
import re
from itertools import pairwise

import pytest

from gram_platform.cli import main
from gram_platform.config.identity import meant, one_of
from gram_platform.studies.build import build_graph
from gram_platform.studies.flags import CampaignFlags, Flags, groups_of, parse
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.searches.definition import OptunaFlags, SearchFlags
from gram_platform.studies.searches.hyperparams import SweepFlags
from gram_platform.studies.searches.lr_batch import GridFlags
from tests import pseudo_terminal

KINDS = (Flags, CampaignFlags, SearchFlags, OptunaFlags, SweepFlags, GridFlags)
COLUMNS = 80
FLAG = re.compile(r"(--?[\w-]+(?:, --[\w-]+)*(?: [^ ]+(?: \.\.\.)?)?)(?:  +(.*))?")


@pytest.fixture(scope="module", params=["scaling", "lr_bs_grid", "maxent_search"])
def help_text(request) -> str:
    code, printed = pseudo_terminal.run("run", request.param, "--help", columns=COLUMNS)
    assert code == 0
    return pseudo_terminal.plain(printed)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_flag_is_in_one_box(kind):
    grouped = [field.name for group in groups_of(kind) for field in dataclasses.fields(group)]
    assert sorted(grouped) == sorted(field.name for field in dataclasses.fields(kind))
    assert len(set(grouped)) == len(grouped)


def test_help_fits_the_terminal_in_boxes_without_twins(help_text):
    assert max(map(len, help_text.splitlines())) <= COLUMNS
    titles = re.findall(r"─ ([\w ]+) options ─", help_text)
    assert titles[0] == "subject"
    assert titles[-5:] == ["size and seed", "storage", "device", "cost", "execution"]
    assert "--no-" not in help_text
    assert not re.search(r"default: (0|-1|False|''|0\.0)\)", " ".join(help_text.split()))


def test_the_texts_of_help_are_joined(help_text):
    """A line ends where the next word has no room, not where a line of the source ends."""
    inside = [line[2:-2].rstrip() for line in help_text.splitlines() if line.startswith("│")]
    starts = [match.start(2) for line in inside if (match := FLAG.fullmatch(line)) and match[2]]
    start = min(starts)
    is_alone = [line.startswith("-") and "  " not in line for line in inside]  # a long flag, above its text
    texts = [
        (line[:start].strip(), "" if alone else line[start:]) for line, alone in zip(inside, is_alone, strict=True)
    ]
    for (_, line), (flag, following) in pairwise(texts):
        if line and following and not flag:
            room = COLUMNS - 4 - start - len(line) - 1
            assert len(following.split()[0]) > room, (line, following)


MISSPELT = {
    ("--preset", "smok"): "smoke",
    ("--preset", "smoke", "--methods", "filterin"): "filtering",
    ("--preset", "smoke", "--sizes", "tinny"): "tiny",
    ("--preset", "paper", "--sizes", "50m"): "50M",
    ("--preset", "smoke", "--through", "smal"): "small",
    ("--preset", "smoke", "--num-workers", "tinny=2"): "tiny",
    ("--preset", "smoke", "--set", "routng.p_aux_spread=0.1"): "routing",
    ("--preset", "smoke", "--law", "dem"): "demo",
    ("--preset", "smoke", "--corpus", "storis"): "stories",
    ("--preset", "smoke", "--retain", "airprt"): "airport",
}


@pytest.mark.parametrize("arguments", MISSPELT, ids=" ".join)
def test_misspelt_values_get_a_suggestion(arguments, storage):
    with pytest.raises(ValueError, match=rf"\. Perhaps you meant: {MISSPELT[arguments]}") as refused:
        build_graph(STUDY, parse(STUDY, list(arguments)))
    field = "routng" if "--set" in arguments else arguments[-2].removeprefix("--").replace("-", "_")
    assert str(refused.value).startswith(f"{field}=") or "--set" in arguments


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("run", "scaling", "--device", "cud"), "cuda"),
        (("run", "maxent_search", "--machine", "h20"), "h200"),
        (("list", "metods"), "methods"),
        (("export", "x", "--out", "y", "--dtype", "float3"), "float32"),
    ],
)
def test_misspelt_choices_get_a_suggestion(arguments, meant, capsys):
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    words = " ".join(capsys.readouterr().err.replace("\u2502", "").split())
    assert re.search(rf"{arguments[-1]!r}: expected .* meant: {meant} ", words)


def test_what_resembles_nothing_gets_no_suggestion():
    assert one_of("magic", ("baseline", "gram")) == "one of baseline, gram"
    assert re.fullmatch("one of baseline, gram.* meant: gram", one_of("Gram", ("baseline", "gram")))
    assert meant("", ("a",)) == meant(3, ("core",)) == meant("x", ()) == ""
