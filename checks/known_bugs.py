"""Known bugs of mlx and mlx-lm, by what they leave behind.

What it finds. What a bug of mlx or mlx-lm that is known in public does to a run: a resumed adapter
that was dropped, gradients that were never applied, padding that was trained on, a command that
ends with the bug's message.

Why it matters. Settings, data and code can all be right, and the run fails all the same. Then
only another version helps, and looking for the mistake in one's own files is time lost.

How it is measured. Each bug has a trace that is computed from the run's files: names and shapes
of tensors, tokens of answers, the message that a log ends with. A trace counts unless the log
or the configuration shows a version without the bug. A version alone is no finding.

When it is wrong. Another trainer can leave the same trace for reasons of its own. The files
must be those of the run: data that were changed later give another trace.

What to do. `mlxdoctor explain` with the bug's name tells what it does, where it is reported and
which version has it no longer.
"""

from collections.abc import Iterator

from packaging.version import Version

from mlxdoctor.bugs.known import load_known_bugs, parse_version
from mlxdoctor.bugs.traces import TRACES, Artifacts, BugLimits, Trace, error_message
from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.resumed import ResumedAdapter
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.measure.weights.lora_targets import by_mlx_lm
from mlxdoctor.models.generations import Generations

#: The first mlx-lm that writes trust_remote_code into adapter_config.json, and can print a table.
_RECENT = Version("0.32.0")
_BUGS = [bug for bug in load_known_bugs().values() if bug.says]


@check(
    codes={
        bug.id: Symptom.warning(
            bug.title,
            says=bug.says,
            expected=f"no trace of it; see {bug.references[0]}",
            fix=bug.remedy,
        )
        for bug in _BUGS
    },
    limits=BugLimits(),
)
def known_bugs(
    *,
    config: TrainingConfig | None,
    log: TrainingLog | None,
    adapter: Adapter | None,
    resumed: ResumedAdapter | None,
    base: BaseModel | None,
    rows: SupervisedRows | None,
    generations: Generations | None,
    limits: BugLimits,
) -> Iterator[Sign]:
    """Look for the trace of every bug that the versions may have."""
    if config is None and log is None and adapter is None:
        raise Inconclusive("there is no configuration, log or adapter to look for traces in")
    run = Artifacts(
        limits=limits,
        config=config,
        log=log,
        adapter=adapter,
        resumed=resumed,
        base=base,
        rows=rows,
        generations=generations,
    )
    for bug in _BUGS:
        version, source = _version(config, log, bug.affected.package)
        if version is not None and not bug.affected.holds(version):
            continue
        trace: Trace | None = TRACES[bug.trace](run) if bug.trace else None
        if trace is None and bug.error is not None:
            trace = error_message(run, bug.error)
        if trace is not None:
            shown = f"{version} ({source})" if version is not None else None
            measured = {**trace.measured, "versions": str(bug.affected), "version": shown}
            yield Sign(bug.id, measured, where=trace.where, severity=trace.severity)


def _version(
    config: TrainingConfig | None, log: TrainingLog | None, package: str
) -> tuple[Version | None, str]:
    """The version of a package, or the least that it can be, and where that is from."""
    named = log.versions.get(package) if log is not None else None
    if named is not None and (version := parse_version(named)) is not None:
        return version, "named in the log"
    is_table = log is not None and log.format.startswith("table")
    is_recent = config is not None and by_mlx_lm(config) and "trust_remote_code" in config.values
    if package == "mlx-lm" and (is_table or is_recent):
        return _RECENT, "or later, by its log or its configuration"
    return None, ""
