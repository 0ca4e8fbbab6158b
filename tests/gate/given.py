"""Reports, policies and workers for tests of the gate."""

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from mlxdoctor.gate.baseline import Known
from mlxdoctor.gate.examine import Examined
from mlxdoctor.gate.policy import Policy
from mlxdoctor.gate.policy_file import read_policy
from mlxdoctor.gate.weigh import Weighed, judge
from mlxdoctor.safety.stages import Kind, Stage
from tests.formats import sample

TODAY = date(2026, 6, 15)


def policy(folder: Path, text: str) -> Policy:
    """The policy of an mlxdoctor.toml with that text."""
    path = folder / "mlxdoctor.toml"
    path.write_text(text or 'fail-on = "error"')
    return read_policy(path)


def found(code: str, severity: str = "error", **fields: Any) -> dict[str, Any]:
    """The outcome of a check that found one thing."""
    fingerprint = f"{code:>16}"[-16:]
    one = sample.finding(code, severity, f"{code} was seen", **fields)
    return sample.outcome(code.partition(".")[0], "found", {**one, "fingerprint": fingerprint})


def report(*outcomes: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A report with these outcomes, healthy but for what `changes` says."""
    return sample.healthy() | {"outcomes": list(outcomes)} | changes


def report_of(
    files: Sequence[Mapping[str, Any]],
    *outcomes: Mapping[str, Any],
    missing: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The same, of other files."""
    run = {**sample.healthy()["run"], "evidence": list(files), "missing": list(missing)}
    return report(*outcomes, run=run)


def judged(
    policy: Policy, path: str, data: Mapping[str, Any], known: frozenset[Known] = frozenset()
) -> Weighed:
    own = frozenset(one for one in known if one.path == policy.key(path))
    return judge(path, Examined(sample.made(data), "", 0.1), policy, own, TODAY)


def by_name(item: str, seconds: float = 60.0) -> Examined:
    """A worker whose item says what becomes of it; "slow-name" sleeps a little first."""
    if item.startswith("killer"):
        os._exit(9)
    if item.startswith("endless"):
        with Stage(f"examining {item}", Kind.ITEM, limit="", wall=seconds):
            time.sleep(600)
    if item.startswith("slow"):
        time.sleep(0.3)
    if item.startswith("broken"):
        raise RuntimeError("a bug")
    told = {"pid": os.getpid(), "path": item}
    return Examined(replace(sample.made(sample.healthy()), name=json.dumps(told)), "", 0.0)


def told(examined: Examined) -> dict[str, Any]:
    """What `by_name` said."""
    said: dict[str, Any] = json.loads(examined.report.name)
    return said
