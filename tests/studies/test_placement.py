"""Where nodes are executed: decided once, for every number of ranks that a run may have."""

import dataclasses

from gram_platform.config.flops import GIB
from gram_platform.methods.budgets import dense_run
from gram_platform.methods.nodes import Node
from gram_platform.planner import MACHINES, choose_num_merged, choose_num_passes
from gram_platform.planner.memory import rank_memory
from gram_platform.planner.ranks import Ranks
from gram_platform.studies.library.scaling import STUDY
from gram_platform.studies.workplace import placement_of
from tests import tiny
from tests.planner.scene import DOMAINS
from tests.refused import refused

SMALL_GPU = dataclasses.replace(MACHINES["h100"], memory_bytes=GIB)


def run_on_gpus():
    """A run whose share of a micro-batch needs several passes on a small GPU."""
    run = tiny.run_config(draws=(1024, 512, 512), batch_size=512, micro_batch=256)
    return dataclasses.replace(
        run, model=dataclasses.replace(run.model, seq_len=2048, vocab_size=8192)
    )


def test_each_number_of_ranks_has_its_passes_and_memory():
    run, most = run_on_gpus(), (("", 8),)
    placement = placement_of(
        Node.of(run, {"size": "a size"}), Ranks(2, machine=SMALL_GPU, most=most), "cuda"
    )
    assert [division.num_ranks for division in placement.divisions] == [8, 4, 2]
    for division in placement.divisions:
        passes = division.num_passes, division.num_merged
        of = run, division.num_ranks, SMALL_GPU
        assert passes == (choose_num_passes(*of), choose_num_merged(*of))
        assert (
            division.memory_bytes
            == rank_memory(run, division.num_ranks, False, "cuda", *passes).total
        )
    assert len({division.num_passes for division in placement.divisions}) > 1


def test_a_process_that_shares_a_gpu_has_its_share_of_the_memory():
    node, ranks = Node.of(run_on_gpus(), {"size": "a size"}), Ranks(machine=SMALL_GPU)
    whole, half = (placement_of(node, ranks, "cuda", share).fewest for share in (1.0, 0.5))
    assert half.num_passes > whole.num_passes
    assert placement_of(node, ranks, "cpu").fewest.num_passes == 1


def test_long_runs_of_large_models_are_compiled_on_gpus():
    preset = STUDY.presets["paper"]

    def is_compiled(size: str, core_tokens: int, device: str = "cuda", given=None) -> bool:
        of_size = dataclasses.replace(preset.sizes[size], core_tokens=core_tokens)
        setting = preset.setting(of_size, 0, "data", DOMAINS, ((),))
        run = dense_run(setting, DOMAINS, preset.num_eval_points, "heterogeneous")
        node, ranks = Node.of(run, {"size": size}), Ranks(machine=MACHINES["h100"])
        return placement_of(node, ranks, device, compiled=given).compiled

    assert is_compiled("50M", 10**9)
    assert not is_compiled("50M", 10**7)
    assert not is_compiled("50M", 10**9, "cpu")
    assert not is_compiled("50M", 10**9, given=False)
    assert is_compiled("50M", 10**7, given=True)


def test_a_run_that_fits_no_number_of_ranks_is_refused_before_it_starts():
    machine = dataclasses.replace(SMALL_GPU, memory_bytes=1.0)
    with refused("machine", "h100"):
        placement_of(Node.of(run_on_gpus(), {"size": "a size"}), Ranks(0, machine=machine), "cuda")
