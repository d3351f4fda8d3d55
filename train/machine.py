"""What a figure must be read beside: processor, cores, device, versions, memory."""

from __future__ import annotations

import os
import platform
import resource
from contextlib import suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np


def device() -> str:
    """ "gpu" or "cpu": what jax computes on by default, and what ports are preferred by."""
    return "gpu" if jax.default_backend() == "gpu" else "cpu"


def machine() -> dict[str, Any]:
    """A JSON-able description of the machine at hand."""
    model = platform.processor() or platform.machine()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    return dict(
        processor=model,
        cores=os.cpu_count(),
        device=jax.devices()[0].device_kind,
        jax=jax.__version__,
        numpy=np.__version__,
        python=platform.python_version(),
    )


def peak_memory_gb() -> float:
    """Largest resident memory of this process so far, in gigabytes (1e9 bytes)."""
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * 1024 / 1e9
