"""Ranks, compute and hours of whole runs and studies."""

import dataclasses
import datetime

import pytest

from gram_platform.config import Objective, View
from gram_platform.config.flops import total_parameters
from gram_platform.config.ladder import PAPER_SIZES
from gram_platform.methods.budgets import dense_run, run_flops
from gram_platform.planner import (
    MACHINES,
    USABLE_MEMORY,
    UTILISATIONS,
    Machine,
    choose_num_merged,
    choose_num_passes,
    fits,
    run_evaluation_flops,
    utilisation_of,
)
from gram_platform.planner.memory import rank_memory
from gram_platform.planner.ranks import AUTO, Ranks, fewest_ranks
from gram_platform.studies.dry_run import describe
from gram_platform.studies.library import stories
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.workplace import placement_of
from tests.planner.scene import DOMAINS, run_of
from tests.refused import refused
from tests.submitted import plan_of, study_plan


def paper_run(name: str, study=STUDY):
    preset = study.presets["paper"]
    setting = preset.setting(preset.sizes[name], 0, "data", DOMAINS, (("virology",),))
    return dense_run(setting, DOMAINS, preset.num_eval_points, "heterogeneous")


def test_compute_of_the_papers_800m_baseline():
    """6 N D but for what the textbook leaves out: the embedding's look-up costs nothing, attention
    costs 12 L d T."""
    run = paper_run("800M")
    shape, num_tokens = run.model, run.num_tokens
    assert num_tokens == pytest.approx(16.1e9 * 1.01, rel=1e-3)
    in_products = total_parameters(shape) - shape.vocab_size * shape.d_model
    per_token = 6 * in_products + 12 * shape.num_layers * shape.d_model * shape.seq_len
    # The rest: biases and norms.
    assert run_flops(run) == pytest.approx(num_tokens * per_token, rel=2e-3)
    assert run_flops(run) == pytest.approx(6 * total_parameters(shape) * num_tokens, rel=0.02)


@pytest.mark.parametrize("name", PAPER_SIZES)
def test_every_size_of_the_paper_fits(name):
    run = paper_run(name)
    for machine in (MACHINES["h100"], MACHINES["h200"]):
        plain, fewer = fewest_ranks(run, machine), fewest_ranks(run, machine, checkpointing=True)
        assert run.micro_batch % plain == 0
        assert fits(run, plain, machine)
        assert fits(run, plain, machine, num_passes=choose_num_passes(run, plain, machine))
        fewer_ranks = [r for r in range(1, plain) if run.micro_batch % r == 0]
        assert not any(fits(run, r, machine) for r in fewer_ranks)
        assert fewer <= plain
        assert fits(run, fewer, machine, checkpointing=True)
    assert fewest_ranks(run, Machine("toy", 1e12, 1e6, 0.0)) is None


def test_passes_are_the_fewest_that_fit():
    """On a GPU alone, and none of fewer than 4,096 tokens; a machine of less memory needs more of
    them."""
    run, h100 = paper_run("800M"), MACHINES["h100"]
    passes = {
        name: choose_num_passes(run, 1, dataclasses.replace(h100, memory_bytes=b))
        for name, b in MEMORIES.items()
    }
    assert passes["ample"] == 1 < passes["an H100's"] < passes["none"] == run.micro_batch // 4
    assert fits(run, 1, h100, num_passes=passes["an H100's"])
    assert not fits(run, 1, h100, num_passes=passes["an H100's"] - 1)
    assert choose_num_passes(run, 8, h100) == choose_num_passes(run, 1, MACHINES["cpu"]) == 1
    assert fewest_ranks(paper_run("400M"), h100) == fewest_ranks(run, h100) == 1


def test_a_window_has_the_fewest_passes_that_fit():
    """Of 32,768 tokens at most where one rank gathers no weights, on GPUs alone, in the memory that
    a run may use; RMU's micro-batches have a pass each."""
    h100, run = MACHINES["h100"], paper_run("26M", stories.STUDY)
    assert run.micro_batch * run.model.seq_len * 8 == 32_768
    assert choose_num_merged(run, 1, h100) == 8
    assert choose_num_merged(run, 2, h100) == run.micro_batches_per_step == 8
    assert choose_num_merged(run, 1, MACHINES["cpu"]) == 1
    needed = {n: rank_memory(run, 1, False, "cuda", 1, n).total / USABLE_MEMORY for n in (2, 3, 4)}
    cases = ((needed[4], 4), (needed[4] - 1, 3), (needed[3] - 1, 2), (needed[2] - 1, 1), (0, 1))
    for memory, number in cases:
        assert choose_num_merged(run, 1, dataclasses.replace(h100, memory_bytes=memory)) == number
    objective = Objective("misdirection", ("lisp", "virology"), steered_layers=1, steering=2.0)
    rmu = run_of("dense", draws=(48, 24, 24), objective=objective, start=View.of("start"))
    assert choose_num_merged(rmu, 1, h100) == 1 < choose_num_merged(run_of("dense"), 1, h100) == 2
    merged = {
        name: [choose_num_merged(paper_run(name), n, h100) for n in (1, 4, 8)] for name in PAPER
    }
    assert merged == {"50M": [1, 3, 3], "800M": [1, 1, 3]}
    assert paper_run("50M").micro_batches_per_step == 3


PAPER = ("50M", "800M")


MEMORIES = {"ample": 1e15, "an H100's": MACHINES["h100"].memory_bytes, "none": 0.0}


def test_a_run_gets_the_fewest_ranks_whose_memory_suffices():
    h100 = MACHINES["h100"]
    assert {name: fewest_ranks(paper_run(name), h100) for name in ("2B", "5B")} == {
        "2B": 1,
        "5B": 2,
    }
    assert not fits(paper_run("5B"), 1, h100)


def test_ranks_of_a_studys_runs():
    run, machine = paper_run("5B"), MACHINES["h100"]
    auto = Ranks(AUTO, (("2B", 4),), machine)
    assert auto.of(run, "5B") == fewest_ranks(run, machine)
    assert Ranks(AUTO, (), machine, checkpointing=True).of(run, "5B") == fewest_ranks(
        run, machine, True
    )
    assert auto.of(paper_run("2B"), "2B") == 4
    size, attack = run_of("dense", micro_batch=12), run_of("dense", micro_batch=8)
    # No sequence is left out.
    assert [Ranks(6).of(run, "a size") for run in (size, attack)] == [6, 2]
    some = Ranks(2, (("5B", 3), ("2B", 2)), most=(("", 12), ("5B", 6)))
    assert [some.choices(size, name) for name in ("a size", "5B", "2B")] == [
        (12, 6, 4, 3, 2),
        (6, 4, 3),
        (2,),
    ]
    assert [some.choices(attack, name) for name in ("a size", "2B")] == [(8, 4, 2), (2,)]
    with refused("machine", "toy"):
        Ranks(AUTO, (), Machine("toy", 1e12, 1e6, 0.0)).of(run, "5B")


def test_memory_falls_with_ranks():
    run = paper_run("5B")
    totals = [rank_memory(run, ranks).total for ranks in (2, 4, 8, 16, 32, 64)]
    assert totals == sorted(totals, reverse=True)


def test_several_machines_of_gpus_have_a_copy_of_the_weights_each():
    """Their ranks keep what eight ranks keep; on CPUs all ranks share one copy."""
    run = paper_run("5B")
    kept = {n: rank_memory(run, n, device="cuda") for n in (8, 16, 32)}
    assert (
        kept[8].weights == kept[16].weights == kept[32].weights == 4 * rank_memory(run, 32).weights
    )
    assert kept[8].activations == 4 * kept[32].activations


def test_the_papers_dry_run_adds_up(storage):
    """6 N D of the printed tokens and our parameter counts; hours and dollars at the table's share
    of the rate."""
    words = ["--preset", "paper", "--machine", "h200", "--seeds", "1", "--methods", "baseline"]
    text = describe(plan_of(STUDY, ["--storage", str(storage), *words]))
    lines = [line.split() for line in text[: text.index("memory of one")].splitlines()]
    rows = {words[1]: words[2:] for words in lines if words[:1] == ["baseline"]}
    printed = {
        "50M": 0.96,
        "100M": 2.1,
        "200M": 4.0,
        "400M": 8.0,
        "800M": 16.1,
        "2B": 40.3,
        "5B": 99.4,
    }
    assert rows.keys() == printed.keys()
    for size, (num_runs, _, *cells) in rows.items():
        parameters, tokens, _, flops, hours, dollars = (
            float(cell.replace(",", "")) for cell in cells
        )
        run = paper_run(size)
        share = utilisation_of("h200", total_parameters(run.model)).share
        assert num_runs == "1"
        assert tokens == pytest.approx(printed[size] * 1.01e9, rel=5e-3)  # core, and 1% auxiliary
        # An embedding's look-up costs nothing.
        in_products = parameters - run.model.vocab_size * run.model.d_model
        attention = 12 * run.model.num_layers * run.model.d_model * run.model.seq_len
        assert flops == pytest.approx((6 * in_products + attention) * tokens, rel=0.01)
        expected = (flops + run_evaluation_flops(run)) / (989e12 * share) / 3600
        assert hours == pytest.approx(expected, rel=0.01, abs=0.01)
        assert dollars == pytest.approx(
            hours * MACHINES["h200"].dollars_per_hour, rel=0.01, abs=0.03
        )


def test_runs_are_placed_as_they_are_planned(storage):
    """On GPUs by the number asked for, or the planner's; on CPUs in one pass of one micro-batch."""
    words = [
        "--preset",
        "paper",
        "--sizes",
        "800M",
        "5B",
        "--seeds",
        "1",
        "--methods",
        "gram",
        "--machine",
        "h200",
    ]
    words += ["--storage", str(storage), "--num-workers", "800M=4", "5B=auto"]
    study = study_plan(STUDY, words)
    trained = [n for n in study.nodes if n.is_run and not n.is_attack]
    assert {node.size for node in trained} == {"800M", "5B"}
    for node in trained:
        num_ranks = 4 if node.size == "800M" else fewest_ranks(node.config, MACHINES["h200"])
        placed = placement_of(node, study.ranks, "cuda").fewest
        assert (placed.num_ranks, placed.num_passes) == (
            num_ranks,
            choose_num_passes(node.config, num_ranks, MACHINES["h200"]),
        )
        on_cpus = placement_of(node, study.ranks, "cpu").fewest
        assert (on_cpus.num_passes, on_cpus.num_merged) == (1, 1)


@pytest.mark.parametrize(
    ("words", "ranks"), [((), AUTO), (("1",), 1), (("50M=2",), AUTO), (("auto", "50M=2"), AUTO)]
)
def test_the_planner_chooses_the_ranks_on_gpus_unless_they_are_given(storage, words, ranks):
    given = ("--num-workers", *words) if words else ()
    study = study_plan(STUDY, ["--storage", str(storage), "--preset", "paper", *given])
    assert study.ranks.number_of("5B") == ranks
    assert study.on("cpu").ranks.number_of("5B") == (1 if "auto" not in words else AUTO)


def test_the_table_of_utilisation_marks_estimates():
    """The rows of H100s are counts of launches, bytes and products."""
    assert {row.machine for row in UTILISATIONS if row.is_measured} == {"cpu", "h200"}
    for row in UTILISATIONS:
        assert utilisation_of(row.machine, row.parameters) == row
        assert datetime.date.fromisoformat(row.date) <= datetime.date.today()


@pytest.mark.parametrize(
    ("machine", "parameters", "size", "of"),
    [
        ("h200", 10**9, "800M", "h200"),
        ("h200", 5 * 10**9, "5B", "h100"),
        ("a100", 10**6, "26M", "h100"),
    ],
)
def test_a_size_without_a_row_has_the_nearest_ones(machine, parameters, size, of):
    row = utilisation_of(machine, parameters)
    assert (row.size, row.machine) == (size, of)
