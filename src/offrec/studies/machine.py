"""Describe the machine of a run and measure its peak memory."""

import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch


@cache
def describe_machine(device: str) -> dict[str, Any]:
    """Return versions, commit, processor and device, as stored with every result."""
    return {
        "offrec": _version(),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else device,
    }


def _version() -> str | None:
    try:
        return version("offrec")
    except PackageNotFoundError:  # offrec runs from a source tree and is not installed
        return None


def _commit() -> str | None:
    """Return the commit of the source tree, or None if it has none; a + marks uncommitted changes."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changes = git("status", "--porcelain", "--untracked-files=no", ".")
        return git("rev-parse", "--short", "HEAD") + ("+" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(names)} × {names[0]}" if names else platform.processor()


class PeakMemory:
    """Measure the peak memory of the GPU, or of the process on a CPU, since this object was created."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        else:
            try:
                Path("/proc/self/clear_refs").write_text("5")  # resets the peak
                self.supported = True
            except OSError:
                self.supported = False

    def bytes(self) -> int | None:
        """Return the peak in bytes, or None if the system does not report it."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        try:
            lines = Path("/proc/self/status").read_text().splitlines() if self.supported else []
        except OSError:
            return None
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), None)
