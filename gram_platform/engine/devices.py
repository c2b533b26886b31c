"""Tells errors of a device from all others, and probes a device in a fresh process.

A process is useless after an error of its device, because later calls fail too. Only a fresh
process can tell whether the device works. `python -m gram_platform.engine.devices cuda` is such a
process; its exit code is 1 if the device does not work.
"""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from gram_platform.config.provenance import PACKAGE
from gram_platform.config.terminal import one_line, say
from gram_platform.engine.execution import Execution
from gram_platform.engine.machine import safe_path
from gram_platform.engine.process import is_out_of_memory, set_up_torch
from gram_platform.train.data import start_thread

# In the messages of RuntimeErrors: of CUDA's runtime, cuBLAS and cuSPARSE ("CUDA error"), CUDA's
# driver, cuDNN ("Frontend" in attention) and NCCL (ATen/cuda/Exceptions.h and NCCLUtils.hpp of
# torch 2.13), Triton's kernels, and of a machine without a driver or GPU.
DEVICE_ERRORS = (
    "CUDA error",
    "CUDA driver error",
    "CUDA unknown error",
    "Unexpected error from cudaGetDeviceCount",
    "CUBLAS_STATUS",
    "CUDNN_STATUS",
    "cuDNN error",
    "cuDNN Frontend error",
    "ncclUnhandledCudaError",
    "unhandled cuda error",
    "Triton Error [CUDA]",
    "NVIDIA driver",
    "No CUDA GPUs are available",
    "Torch not compiled with CUDA enabled",
)
# The side of a probe's matrices; all sums are exact in every precision.
SIDE = 128
# A device that does not answer within this time has failed.
PRODUCT_S = 120.0


@dataclass(frozen=True)
class ProbeReport:
    # Ray's id of the machine, new after each start of Ray there; "" without Ray.
    machine: str
    host: str
    address: str
    # "cpu", or "cuda" and the numbers of the GPUs that the process sees.
    device: str
    failure: str = ""

    def __str__(self) -> str:
        where = f"machine {self.host} ({self.address})"
        return f"{where}: a product on {self.device} failed ({self.failure})"


class DeviceError(RuntimeError):
    """A task's device failed; `probe` is the outcome of a product on it afterwards."""

    def __init__(self, message: str, probe: ProbeReport):
        # Pickling needs both arguments.
        super().__init__(message, probe)
        self.probe = probe

    def __str__(self) -> str:
        outcome = f"failed ({self.probe.failure})" if self.probe.failure else "worked"
        product = f"afterwards a product on {self.probe.device} in a fresh process"
        return f"{self.args[0]}; {product} {outcome}"


def is_device_error(error: BaseException | None) -> bool:
    """Returns whether a device failed, directly or as the cause; not for a lack of memory."""
    while error is not None:
        if is_out_of_memory(error):
            return False
        if isinstance(error, torch.AcceleratorError | DeviceError):
            return True
        if isinstance(error, RuntimeError | AssertionError) and any(
            words in str(error) for words in DEVICE_ERRORS
        ):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextlib.contextmanager
def probe_after_error(device: str) -> Iterator[None]:
    """Probes the device after an error of it in the block, and raises DeviceError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DeviceError) or not is_device_error(error):
            raise
        raise DeviceError(_summarise(error), probe_afresh(device)) from error


def probe_here(execution: Execution) -> ProbeReport:
    """Probes the execution's device in this process, which has not used it yet.

    A fresh process tries a GPU first, because a driver's library may abort, and this process, which
    names the machine, shall outlive it. torch decides at the first product on a GPU whether its
    products can be deterministic, so `set_up_torch` comes before.
    """
    set_up_torch(execution)
    if execution.device.startswith("cuda") and (apart := probe_afresh(execution.device)).failure:
        return apart
    return _report(execution.device, _failure_of_product(execution.device))


def probe_afresh(device: str) -> ProbeReport:
    """Probes the device, the very same GPU, in a new process.

    Full memory is no failure, because this process still holds it.
    """
    command = [sys.executable, "-m", "gram_platform.engine.devices", device]
    environment = os.environ | safe_path(*sys.path, str(PACKAGE.parent))
    probe = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        said, _ = probe.communicate(timeout=2 * PRODUCT_S)
    except subprocess.TimeoutExpired:
        # Its end is not awaited, because a process inside a broken driver may never end.
        probe.kill()
        return _report(device, f"no answer in {2 * PRODUCT_S:.0f} s")
    lines = said.strip().splitlines() or [f"the probe ended with code {probe.returncode}"]
    return _report(device, lines[-1] if probe.returncode else "")


def _report(device: str, failure: str) -> ProbeReport:
    ray, machine, address = sys.modules.get("ray"), "", ""
    if ray is not None and ray.is_initialized():
        machine, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "") if device.startswith("cuda") else ""
    return ProbeReport(machine, socket.gethostname(), address, f"{device} {seen}".strip(), failure)


def _failure_of_product(device: str, may_be_full: bool = False) -> str:
    """Multiplies two matrices on the device; returns what failed, or "".

    `may_be_full`: a lack of memory is no failure.
    """
    said = [f"no answer in {PRODUCT_S:.0f} s"]

    def work() -> None:
        try:
            _multiply(device)
        except Exception as error:
            said[0] = "" if may_be_full and is_out_of_memory(error) else _summarise(error)
        else:
            said[0] = ""

    start_thread("probe", work).join(PRODUCT_S)
    return said[0]


def _multiply(device: str) -> None:
    ones = torch.ones(SIDE, SIDE, device=device)
    found = (ones @ ones).sum().item()
    if found != SIDE**3:
        raise RuntimeError(f"the product's sum is {found:g}, expected {SIDE**3}")


def _summarise(error: BaseException) -> str:
    """Returns the error's class and its first line; the lines below it are CUDA's advice."""
    return one_line(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")


if __name__ == "__main__":
    failed = _failure_of_product(sys.argv[1], may_be_full=True)
    if failed:
        say(failed)
    # Exits even while the thread waits for the device.
    os._exit(1 if failed else 0)
