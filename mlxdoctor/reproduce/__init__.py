"""Experiments: make a failed run again, change one thing, and compare.

from mlxdoctor.api import diagnose
from mlxdoctor.reproduce import Options, reproduce

report = diagnose([run])
confirmed = reproduce(report, [run], Path("reports/run/reproduction"), Options())
"""

from mlxdoctor.reproduce.reproduction import Options, reproduce

__all__ = ["Options", "reproduce"]
