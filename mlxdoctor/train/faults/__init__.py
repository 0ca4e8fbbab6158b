"""Faults to put into a sound run: what the ward is made of, and what an experiment injects.

    from mlxdoctor.train import train
    from mlxdoctor.train.faults import FAULTS

    fault = FAULTS["labels-shifted-twice"]
    faulty, parts = fault.inject(settings, fault.severities[0])
    train(faulty, parts=parts)
    fault.finish(Path(faulty.adapter_path), faulty, fault.severities[0])

Inject into settings in parity mode where a run is to fail as it did under mlx-lm: exact
mode refuses or skips some of what goes wrong. `fault.py` says what a fault is; the others
hold the operators, by what they change: every `Fault` that stands in one of them is found.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from mlxdoctor.train.faults import of_data, of_files, of_trainer
from mlxdoctor.train.faults.fault import Fault
from mlxdoctor.train.faults.of_trainer import wrong_base

__all__ = ["FAULTS", "Fault", "wrong_base"]

#: Every fault by its id. `wrong_base` makes one more: it needs to be told of another model.
FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        one.id: one
        for module in (of_trainer, of_data, of_files)
        for one in vars(module).values()
        if isinstance(one, Fault)
    }
)
