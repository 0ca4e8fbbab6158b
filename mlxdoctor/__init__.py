"""mlxdoctor tells a person why an MLX LoRA fine-tune failed, and proves it.

    from mlxdoctor import diagnose

    report = diagnose([Path("adapters")]).to_dict()
    report["verdict"], report["diagnosis"]

What is listed in `__all__` is loaded on first use, so that `mlxdoctor --help` and the
readers of single files cost nothing more.
"""

from typing import TYPE_CHECKING, Any

# The functions outrank the packages of those names.
from mlxdoctor.preflight import preflight
from mlxdoctor.probe import assert_training_step_sound, probe

if TYPE_CHECKING:
    from mlxdoctor.api import diagnose
    from mlxdoctor.run import Run
    from mlxdoctor.safety.errors import InputError
    from mlxdoctor.watch.callback import TrainingStopped, WatchCallback

__all__ = [
    "InputError",
    "Run",
    "TrainingStopped",
    "WatchCallback",
    "assert_training_step_sound",
    "diagnose",
    "preflight",
    "probe",
]

_HOMES = {
    "InputError": "mlxdoctor.safety.errors",
    "Run": "mlxdoctor.run",
    "TrainingStopped": "mlxdoctor.watch.callback",
    "WatchCallback": "mlxdoctor.watch.callback",
    "diagnose": "mlxdoctor.api",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mlxdoctor' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
