"""Experiments: make a failed run again, change one thing, and compare.

from mlxdoctor.api import diagnose
from mlxdoctor.reproduce import reproduce

confirmed = reproduce(diagnose([run]), Path("reports/run/reproduction"), minutes=10)
"""

from mlxdoctor.reproduce.reproduction import reproduce

__all__ = ["reproduce"]
