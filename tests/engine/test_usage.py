"""What a run measures of its machine beside training: no metric's error ends a run."""

import psutil
import pytest
import torch

from gram_platform.engine import process
from gram_platform.engine.process import ResourceUsage


@pytest.fixture
def on_gpu(monkeypatch):
    """A pretended GPU, half of whose memory is in use, measured at once."""
    monkeypatch.setattr(process, "SYSTEM_EVERY_S", 0.0)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10_000_000, 20_000_000))
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 75)


GPU = {"system/gpu_0_memory_usage_megabytes": 10.0, "system/gpu_0_memory_usage_percentage": 50.0}
USE = {"system/gpu_0_utilization_percentage": 75.0}


def of_gpu(found):
    return {name: value for name, value in found.items() if "gpu" in name}


def raising(error):
    def measure(*_):
        raise error

    return measure


def test_a_gpu_is_measured(on_gpu):
    assert of_gpu(ResourceUsage("cuda").system()) == GPU | USE


def test_utilisation_that_cannot_be_measured_is_left_out(on_gpu, monkeypatch):
    """As where NVIDIA's library is not installed; on a slice of a GPU it raises another error."""
    monkeypatch.setattr(torch.cuda, "utilization", raising(ModuleNotFoundError("pynvml")))
    found = ResourceUsage("cuda").system()
    assert of_gpu(found) == GPU
    assert len(found) == len(GPU) + 3


def test_the_rest_is_measured_where_one_thing_cannot_be(on_gpu, monkeypatch):
    """Also in a container without /proc/stat, or with other limits."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", raising(RuntimeError("CUDA error")))
    monkeypatch.setattr(psutil, "cpu_percent", raising(FileNotFoundError("/proc/stat")))
    monkeypatch.setattr(psutil, "virtual_memory", raising(psutil.AccessDenied()))
    assert ResourceUsage("cuda").system() == USE


def test_a_machine_that_only_trains_measures_nothing(monkeypatch):
    monkeypatch.setattr(process, "SYSTEM_EVERY_S", 0.0)
    monkeypatch.setattr(process, "psutil", None)
    assert ResourceUsage("cpu").system() == {}
