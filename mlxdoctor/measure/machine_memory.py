"""How much memory this machine has for a model, and on which device MLX would compute."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class MachineMemory:
    """What training may take here.

    Attributes:
        bytes: how much; None where the machine does not say.
        device: where MLX computes.
        source: what says so, as a clause.
    """

    bytes: int | None
    device: Literal["cpu", "metal", "cuda"]
    source: str


def machine_memory() -> MachineMemory:
    """What MLX's device says of itself; the machine's memory where MLX computes on the CPU."""
    import mlx.core as mx

    if mx.default_device() == mx.gpu:
        told = mx.device_info()
        device: Literal["metal", "cuda"] = "metal" if mx.metal.is_available() else "cuda"
        keys = ("max_recommended_working_set_size", "total_memory", "memory_size")
        for key in keys:
            if told.get(key):
                return MachineMemory(int(told[key]), device, f"mx.device_info() says {key}")
        return MachineMemory(None, device, "mx.device_info() says nothing of memory")
    try:
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return MachineMemory(None, "cpu", "the system does not say")
    return MachineMemory(pages, "cpu", "the system says so of the machine")
