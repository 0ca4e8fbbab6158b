"""What a planned run would take: memory at its peak, and time to its end."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from mlxdoctor.evidence.kind import Missing, NoSuchThing, RunView
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.source import Source

#: Of the memory: a peak is predicted within 15% (reports/preflight-memory.md), and 1 / 1.15.
SAFE_SHARE = 0.87


@dataclass(frozen=True)
class RunCost:
    """What a planned run would take.

    Attributes:
        peak: bytes at the highest.
        memory: bytes that there are; None where it is to run on another machine.
        batch_size: rows of the largest batch that is trained on.
        tokens: its inputs a row.
        is_rough: the model has layers of a kind that is not counted.
        checkpointed: the peak that is predicted with grad_checkpoint; None where it is set.
        seconds: low, likeliest and high, to its end; None where no step was timed.
    """

    kind: ClassVar[str] = "what the run takes"
    sources: ClassVar[tuple[Source, ...]] = ()

    peak: int
    memory: int | None
    batch_size: int
    tokens: int
    is_rough: bool = False
    checkpointed: int | None = None
    seconds: tuple[float, float, float] | None = None

    @classmethod
    def find(cls, run: RunView) -> Self:
        """What a preflight gives the run."""
        if run.get(PlannedRun) is None:
            raise NoSuchThing("the run was made, and not only planned")
        raise Missing("the rows or the shape of the base model are not known")


def machine_memory() -> tuple[Literal["cpu", "metal", "cuda"], int | None]:
    """Where MLX computes here, and the bytes that training may take; None where nothing says so."""
    import mlx.core as mx

    if mx.default_device() == mx.gpu:
        device_info = mx.device_info()
        keys = ("max_recommended_working_set_size", "total_memory", "memory_size")
        sizes = (int(device_info[key]) for key in keys if device_info.get(key))
        return "metal" if mx.metal.is_available() else "cuda", next(sizes, None)
    import psutil

    return "cpu", int(psutil.virtual_memory().total)
