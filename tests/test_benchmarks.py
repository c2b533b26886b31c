"""Runs tiny forms of every benchmark, and checks the invariants that make a comparison fair."""

import dataclasses
import itertools
import json
import math
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import (
    corpus,
    driver,
    gpu_check,
    gpu_ranks,
    host,
    peers,
    study_overhead,
    training,
    workloads,
)
from benchmarks.results import Aim, BenchmarkResult, BenchmarkSettings
from benchmarks.timing import interleaved
from benchmarks.workloads import (
    DENSE,
    GRAM,
    GRAM_FROZEN,
    Workload,
    compared_runs,
    loop_arguments,
    random_tokens,
)
from gram_platform.config.flops import hardware_flops, total_parameters
from gram_platform.config.ladder import STORIES_SIZES
from gram_platform.config.routing import CORE_MLP, SHARED, module_set
from gram_platform.model import cpu
from gram_platform.model.transformer import build
from gram_platform.release.stock_tensors import foreign_weights
from gram_platform.studies.library.stories import STORIES_SMOKE_SIZES
from gram_platform.train.objectives import cross_entropy
from tests import tiny
from tests.test_architecture import NOT_IN_CORE

ROOT = Path(__file__).resolve().parents[1]
TINY = dataclasses.replace(STORIES_SMOKE_SIZES["tiny"], precision="bfloat16")
WORKLOAD = Workload(TINY, num_micro_batches=2, num_rounds=2)


def test_ratios_are_of_neighbouring_rounds():
    """A machine that becomes three times slower leaves the ratio alone; a ratio of medians or means
    would not."""
    measured = BenchmarkResult(
        "m", "s", (2.0, 2.5, 6.0), (1.0, 2.5, 3.0), "other", Aim("at least", 2.0)
    )
    assert (measured.ratio, measured.spread, measured.holds) == (2.0, (1.0, 2.0), True)
    alone = BenchmarkResult("alone", "s", (4.0,), (), "nothing", Aim("at most", 3.0, "value"))
    assert (alone.ratio, alone.spread, alone.holds) == (None, None, False)
    plain = json.loads(measured.line())
    assert (plain["name"], plain["value"], plain["unit"], plain["reference"]) == (
        "m",
        2.5,
        "s",
        2.5,
    )


def test_rounds_are_interleaved():
    order = []
    seconds = interleaved({name: lambda name=name: order.append(name) for name in "ab"}, 3)
    assert "".join(order) == "ab" + "ab" + "ba" + "ab"
    assert {name: len(spent) for name, spent in seconds.items()} == {"a": 3, "b": 3}


def test_compared_runs_are_what_they_are_called():
    """The stories model of the table: equal FLOPs with a module, and what each trains."""
    workload = dataclasses.replace(WORKLOAD, size=STORIES_SIZES["26M"])
    dense, gram = compared_runs(workload)[DENSE].model, compared_runs(workload)[GRAM].model
    assert (dense.d_mlp, gram.d_mlp, gram.modules[0].width) == (2048, 1856, 192)
    assert hardware_flops(dense, 16) == hardware_flops(gram, 16, ("aux",), modules_trained=("aux",))
    core = {SHARED, CORE_MLP}
    trained = {DENSE: core, GRAM: core | {module_set("aux")}, GRAM_FROZEN: {module_set("aux")}}
    for name, run in compared_runs(WORKLOAD).items():
        _, plan, _ = loop_arguments(run, WORKLOAD)
        routes = {plan[index].route for index in range(20)}
        assert [route.trained for route in routes] == [trained[name]]
        assert [dict(route.active) for route in routes] == [{} if name == DENSE else {"aux": 1.0}]


def test_the_peer_is_our_model():
    """With our weights Hugging Face's model has our loss, and our parameters but for its attention
    biases."""
    pytest.importorskip("transformers")
    config = dataclasses.replace(TINY.dense(), num_heads=4, num_kv_heads=2)
    weights = dict(tiny.initial_weights(config, 0))
    weights = {
        n: w + 0.02 * torch.randn(w.shape, generator=torch.Generator().manual_seed(1))
        for n, w in weights.items()
    }
    peer = peers.starcoder2(config).eval()
    peer.load_state_dict(dict(foreign_weights(config, weights, {})))
    tokens_BT = torch.from_numpy(
        random_tokens(compared_runs(WORKLOAD)[DENSE])["core"][:4].astype(np.int64)
    )
    with torch.no_grad():
        ours = cross_entropy(build(config, weights.items())(tokens_BT[:, :-1]), tokens_BT[:, 1:])
        assert float(peers.peer_loss(peer, tokens_BT)) == pytest.approx(float(ours), rel=1e-5)
    biases = sum(
        p.numel()
        for name, p in peer.named_parameters()
        if name.endswith("_proj.bias") and "attn" in name
    )
    assert sum(p.numel() for p in peer.parameters()) - biases == total_parameters(config)


@pytest.mark.slow
def test_training():
    measured = {m.name: m for m in training.compare(WORKLOAD, with_peer=not peers.why_no_peer())}
    ours = {f"{GRAM} tiny", f"{GRAM_FROZEN} tiny"} | (
        {"CPU code tiny"} if cpu.has_fast_code() else set()
    )
    assert len(measured) == len(ours) + 2 * (not peers.why_no_peer())
    assert ours <= measured.keys()
    assert all(min(m.values) > 0 for m in measured.values())


@pytest.mark.slow
def test_what_a_step_costs_the_host():
    """Exactly, in operations: mixed passes cost GRAM twice the baseline's; a pass a route cost
    3.7."""
    with host.operations_of_a_gpu():
        spent, operations = host.compare("26M", num_rounds=1)
    assert spent.ratio > 0
    assert 1.5 < operations.ratio < 2.5


def test_corpus(tmp_path):
    tokenizer = corpus.write_tokenizer(tmp_path / "tokenizer.json")
    num_bytes = corpus.write_corpus(tmp_path / "stories", 500_000)
    rate = corpus.rate(tmp_path, tmp_path / "stories", tokenizer, num_bytes, num_rounds=1)
    assert 0 < rate.ratio < 2
    assert 50 < corpus.peak_mb(tmp_path / "stories", tokenizer, tmp_path / "apart") < 1000


@pytest.mark.slow
@pytest.mark.ray
def test_study_overhead(tmp_path, ray_cluster):
    (measured,) = study_overhead.measure(
        BenchmarkSettings(str(tmp_path)), num_runs=8, num_tokens=64 * 160
    )
    # Runs of a tenth of a second: what was ahead of the clock is not known exactly.
    assert measured.ratio > 0.9


@pytest.mark.slow
@pytest.mark.ray
def test_the_drivers_time_for_a_node_does_not_grow_with_the_study(tmp_path, ray_cluster):
    (measured,) = driver.measure(BenchmarkSettings(str(tmp_path)))
    assert measured.ratio < 1.8  # 2.6 while each end looked at all nodes


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_the_gpu_form_needs_torch_and_numpy_alone(tmp_path):
    """On the CPU at the smallest size; every other library is absent, also from the processes that
    it starts."""
    missing = sorted(NOT_IN_CORE | {"transformers"})
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    flags = "--gpu --device cpu --sizes tiny --rounds 1 --eager"
    command = [sys.executable, "experiments/bench.py", *flags.split()]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in itertools.takewhile(str.strip, done.stdout.splitlines())]
    # Of micro-batches and of runs.
    assert [re.sub(r"\D", "", line["name"]) for line in lines] == ["", "8", "4"]
    assert all(line["name"].endswith(" cpu") for line in lines)
    assert all(line["value"] > 0 and line["reference"] > 0 for line in lines)
    assert lines[1]["losses apart, nats"] < 0.05


def test_a_rank_whose_losses_are_others_misses():
    """Of the losses of six steps those of the last three are compared after a checkpoint."""
    whole = [6.0, 5.5, 5.0, 4.5, 4.0, 3.5]
    right = {"whole": whole, "recomputed": whole, "own": whole[3:], "other": whole[3:]}
    workload = dataclasses.replace(WORKLOAD, size=STORIES_SMOKE_SIZES["tiny"])

    def missed(alone=right, **ranks) -> list[str]:
        losses = {gpu_ranks.ALONE: alone, gpu_ranks.RANKS: right | ranks}
        return [row.name for row in gpu_ranks.rows(workload, 2, losses) if not row.holds]

    name = "2 ranks tiny, float32 on cpu"
    assert missed() == []
    assert missed(whole=[*whole[:5], 3.6])[:1] == [name]
    assert missed(recomputed=[*whole[:5], 3.500001]) == [f"{name}, activation checkpointing"]
    assert missed(own=[4.5, 4.0, 3.500001]) == [f"{name}, resumed"]
    (from_one,) = missed(other=[4.5, 4.0, 3.6])
    (to_one,) = missed(right | {"other": [4.6, 4.0, 3.5]})
    assert from_one.startswith(f"{name}, resumed ")
    assert to_one.endswith(f"resumed from {name}")


NO_GPU = pytest.param(
    "--check --device cuda", marks=pytest.mark.skipif(torch.cuda.is_available(), reason="has a GPU")
)


@pytest.mark.parametrize(
    "flags", ["--device gpu", "--rounds 0", "--check --ranks 0", "--check --ranks 3", NO_GPU]
)
def test_flags_that_would_measure_nothing_are_refused(flags, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["bench.py", "--gpu", "--device", "cpu", "--sizes", "tiny", *flags.split()]
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "experiments/bench.py"), run_name="__main__")
    assert ended.value.code == 2


def test_a_difference_that_is_not_a_number_misses():
    """Python's `max` may pass over it."""
    assert math.isnan(gpu_check.largest(torch.tensor([0.0, torch.nan, 1.0])))


def test_a_cpu_without_units_for_bfloat16_is_measured_in_float32(monkeypatch):
    """There nobody trains in bfloat16, and the bench did not end in ten minutes."""
    assert 0.0 < workloads.bfloat16_share() < 100.0
    monkeypatch.setattr(workloads, "bfloat16_share", lambda: 1.5)
    assert workloads.stories_26m() == STORIES_SIZES["26M"]
    monkeypatch.setattr(workloads, "bfloat16_share", lambda: 0.004)
    size = STORIES_SIZES["26M"]
    assert workloads.stories_26m() == dataclasses.replace(
        size, precision="float32", micro_batch=size.micro_batch // 2
    )
