"""The code that is fast on some CPUs, and plain torch in its place where what it rests on is
missing, as on macOS."""

import json
import os
import subprocess
import sys

import pytest
import torch

from gram_platform.model import cpu

# Hides what macOS lacks: /proc, glibc's mallopt and boot clock, and torch's operator that is not
# public.
HIDE = """
import builtins, ctypes, os, time, torch
def without_proc(function):
    def call(path, *args, **kwargs):
        if str(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", str(path))
        return function(path, *args, **kwargs)
    return call
builtins.open, os.readlink = without_proc(open), without_proc(os.readlink)
ctypes.CDLL = lambda name: object()
del time.CLOCK_BOOTTIME
class Public:
    def __init__(self, operators):
        self.operators = operators
    def __getattr__(self, name):
        if name == "_scaled_dot_product_flash_attention_for_cpu":
            raise AttributeError(name)
        return getattr(self.operators, name)
torch.ops.aten = Public(torch.ops.aten)
"""
TRAIN = """
import dataclasses, itertools, json, sys
import torch
from benchmarks.workloads import GRAM, Workload, compared_runs, loop_arguments
from gram_platform.config.layout import (model_kernel)
from gram_platform.config.ladder import SMOKE_SIZES
from gram_platform.model.cpu import keep_freed_memory, has_fast_code
from gram_platform.model.kernels import kernel_in_use
from gram_platform.store import Store
from gram_platform.train.loop import training_steps

torch.set_num_threads(1)
losses = {}
for precision in ("float32", "bfloat16"):
    size = dataclasses.replace(SMOKE_SIZES["tiny"], precision=precision, vocab_size=64)
    workload = Workload(size, 4, 1)
    for end in (-1, 3):
        run = compared_runs(workload)[GRAM]
        run = dataclasses.replace(run, model=dataclasses.replace(run.model, document_end=end))
        run_directory = Store(sys.argv[1]).open_for_writing().run(run.run_id)
        run_directory.ensure_config(run)
        with run_directory.start_attempt("a test") as attempt, keep_freed_memory():
            records = itertools.islice(training_steps(*loop_arguments(run, workload)), 3)
            losses[f"{precision} {end}"] = [float(record.losses[0]) for record in records]
            attempt.complete({"num_steps": 3}, {"weights": torch.zeros(2)})
kernel = kernel_in_use(run.model, torch.bfloat16, "cpu")
facts = {"fast": has_fast_code(), "kernel": kernel, "status": run_directory.status()}
print(json.dumps({"losses": losses, **facts}))
"""


def trained(storage, before: str = "", **variables: str) -> dict:
    """Three steps of GRAM at each precision, with and without a mask of documents, in a new
    process."""
    command = [sys.executable, "-W", "ignore", "-c", before + TRAIN, str(storage)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow  # the others compare the operators
def test_without_proc_and_private_operator_the_same_run_trains_in_plain_torch(tmp_path):
    fast, plain = trained(tmp_path / "fast"), trained(tmp_path / "plain", before=HIDE)
    assert (fast["fast"], plain["fast"]) == (True, False)
    assert plain["kernel"] == cpu.PLAIN_ON_CPU != fast["kernel"]
    assert plain["status"] == fast["status"] == "complete"
    assert plain["losses"].keys() == fast["losses"].keys()
    for name, losses in fast["losses"].items():
        assert plain["losses"][name] == pytest.approx(
            losses, rel=1e-5 if "float32" in name else 1e-2
        ), name


def test_the_variable_chooses_plain_torch(monkeypatch):
    monkeypatch.setenv(cpu.VARIABLE, cpu.PLAIN)
    cpu.has_fast_code.cache_clear()
    assert not cpu.has_fast_code()
    monkeypatch.delenv(cpu.VARIABLE)
    cpu.has_fast_code.cache_clear()
    assert cpu.has_fast_code()


@pytest.mark.parametrize(
    "wrong", [lambda *_, **__: torch.zeros(1), lambda *_, **__: (torch.zeros(1, 2, 4, 8),) * 2]
)
def test_an_operator_that_answers_something_else_is_not_used(monkeypatch, wrong):
    class Others:
        def __getattr__(self, name):
            return wrong

    monkeypatch.setattr(torch.ops, "aten", Others())
    cpu.has_fast_code.cache_clear()
    assert not cpu.has_fast_code()
    monkeypatch.undo()
    cpu.has_fast_code.cache_clear()
