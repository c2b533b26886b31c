"""What a run takes from the machine that trains it: the device's name, and the memory of this process or device."""

import psutil
import torch


class Usage:
    """Watches one run on one rank. On a CPU the memory is the process's, looked at now and then."""

    def __init__(self, device: str):
        self.device = torch.device(device)
        self.peak_bytes = 0
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def look(self) -> None:
        """Takes the memory of this moment into account."""
        if self.device.type == "cuda":
            self.peak_bytes = torch.cuda.max_memory_allocated(self.device)
        else:
            self.peak_bytes = max(self.peak_bytes, psutil.Process().memory_info().rss)

    def facts(self) -> dict[str, str | int]:
        """`device` ("cpu", or the GPU's name) and `peak_memory_bytes`, for `timing.json`."""
        self.look()
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        return {"device": name, "peak_memory_bytes": self.peak_bytes}
