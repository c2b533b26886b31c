"""Recognises device errors, and probes whether a device works.

After a device error, all later CUDA calls of the process fail. So the device is probed in a new
process, `python -m gram_platform.engine.devices cuda`, whose exit code is 1 on failure.
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

# Texts in device errors, which torch raises as RuntimeErrors. They come from CUDA, its libraries,
# NCCL (ATen/cuda/Exceptions.h and NCCLUtils.hpp of torch 2.13), Triton, and machines without a GPU.
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
# The side of a probe's square matrices. All sums are exact in every precision.
SIDE = 128
PRODUCT_S = 120.0


@dataclass(frozen=True)
class ProbeReport:
    """The outcome of a matrix product on a device. `failure` is its error, or "" after success."""

    # Ray's id of the machine, which changes whenever Ray starts there; "" without Ray.
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
    """A device failed. `probe` is the report of the device's last probe."""

    def __init__(self, message: str, probe: ProbeReport):
        # Pickling needs both arguments.
        super().__init__(message, probe)
        self.probe = probe

    def __str__(self) -> str:
        outcome = f"failed ({self.probe.failure})" if self.probe.failure else "worked"
        product = f"afterwards a product on {self.probe.device} in a fresh process"
        return f"{self.args[0]}; {product} {outcome}"


def is_device_error(error: BaseException | None) -> bool:
    """Returns True if a device caused the error. Out-of-memory errors are excluded."""
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
    """Context manager that probes the device after a device error, then raises a DeviceError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, DeviceError) or not is_device_error(error):
            raise
        raise DeviceError(_summarise(error), probe_afresh(device)) from error


def probe_here(execution: Execution) -> ProbeReport:
    """Probes the execution's device in this process, before its first use.

    A GPU is first probed in a new process, so that this process survives if a broken GPU driver
    aborts the probe. Calls `set_up_torch`, which must precede the first matrix product on a GPU.
    """
    set_up_torch(execution)
    if execution.device.startswith("cuda") and (report := probe_afresh(execution.device)).failure:
        return report
    return _report(execution.device, _failure_of_product(execution.device))


def probe_afresh(device: str) -> ProbeReport:
    """Probes a device in a new process.

    An out-of-memory error is not a failure, because this process may be using the device's memory.
    """
    probe = subprocess.Popen(
        [sys.executable, "-m", "gram_platform.engine.devices", device],
        env=os.environ | safe_path(*sys.path, str(PACKAGE.parent)),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        output, _ = probe.communicate(timeout=2 * PRODUCT_S)
    except subprocess.TimeoutExpired:
        # Does not wait for the process, which may never exit inside a broken driver.
        probe.kill()
        return _report(device, f"no answer in {2 * PRODUCT_S:.0f} s")
    lines = output.strip().splitlines() or [f"the probe ended with code {probe.returncode}"]
    return _report(device, lines[-1] if probe.returncode else "")


def _report(device: str, failure: str) -> ProbeReport:
    ray, machine, address = sys.modules.get("ray"), "", ""
    if ray is not None and ray.is_initialized():
        machine, address = ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()
    seen = os.environ.get("CUDA_VISIBLE_DEVICES", "") if device.startswith("cuda") else ""
    return ProbeReport(machine, socket.gethostname(), address, f"{device} {seen}".strip(), failure)


def _failure_of_product(device: str, may_be_full: bool = False) -> str:
    failure = f"no answer in {PRODUCT_S:.0f} s"

    def work() -> None:
        nonlocal failure
        try:
            _multiply(device)
            failure = ""
        except Exception as error:
            failure = "" if may_be_full and is_out_of_memory(error) else _summarise(error)

    start_thread("probe", work).join(PRODUCT_S)
    return failure


def _multiply(device: str) -> None:
    ones = torch.ones(SIDE, SIDE, device=device)
    total = (ones @ ones).sum().item()
    if total != SIDE**3:
        raise RuntimeError(f"the product's sum is {total:g}, expected {SIDE**3}")


def _summarise(error: BaseException) -> str:
    return one_line(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}")


if __name__ == "__main__":
    if failure := _failure_of_product(sys.argv[1], may_be_full=True):
        say(failure)
    # Exits even if the thread is still waiting for the device.
    os._exit(1 if failure else 0)
