"""Faults that an experiment puts into a sound run, to see the failure again.

    from mlxdoctor.train import train
    from mlxdoctor.train.faults import FAULTS

    fault = FAULTS["labels-shifted-twice"]
    faulty, parts = fault.inject(settings, fault.severities[0])
    train(faulty, parts=parts)
    fault.finish(Path(faulty.adapter_path), faulty, fault.severities[0])

Inject into settings in parity mode where a run is to fail as it did under mlx-lm: exact
mode refuses or skips some of what goes wrong.
"""

from __future__ import annotations

from mlxdoctor.train.faults import of_trainer
from mlxdoctor.train.faults.fault import Fault, faults_in

__all__ = ["FAULTS", "Fault"]

#: Every fault by its id.
FAULTS = faults_in(of_trainer)
