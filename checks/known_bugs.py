"""Known bugs of mlx and mlx-lm, by what they leave behind.

What it finds. What a bug of mlx or mlx-lm that is known in public does to a run: layers trained
that were not asked for, a resumed adapter that was dropped, settings of the YAML file that were
ignored, gradients that were never applied, padding that was trained on.

Why it matters. Settings, data and code can all be right, and the run fails all the same. Then
only another version helps, and looking for the mistake in one's own files is time lost.

How it is measured. Each bug has a trace that is computed from the run's files: names and shapes
of tensors, the YAML file against the adapter_config.json, tokens of answers, the message that a
log ends with. The versions are those that the log names, else bounds from the keys that
mlx_lm.lora wrote and the form of the log. A trace counts unless the run's versions are known not
to have the bug; where it could mean many other things, only if they are known to have it. A
version alone is no finding.

When it is wrong. Another trainer can leave the same trace for reasons of its own. The files
must be those of the run: data and YAML files that were changed later give another trace.

What to do. `mlxdoctor explain` with the bug's name tells what it does, where it is reported and
which version has it no longer.
"""

from collections.abc import Iterator

from mlxdoctor.bugs.known import load_known_bugs
from mlxdoctor.bugs.traces import TRACES, Artifacts, BugLimits, Trace, error_message
from mlxdoctor.bugs.versions import known_versions
from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import StatedConfig, TrainingConfig
from mlxdoctor.evidence.resumed import ResumedAdapter
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Sign, Symptom
from mlxdoctor.models.generations import Generations

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
    stated: StatedConfig | None,
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
        stated=stated,
        log=log,
        adapter=adapter,
        resumed=resumed,
        base=base,
        rows=rows,
        generations=generations,
    )
    versions = known_versions(config, log)
    for bug in _BUGS:
        version = versions.get(bug.affected.package)
        is_affected = bug.affected.holds(version)
        if is_affected is False or (bug.needs_version and not is_affected):
            continue
        trace: Trace | None = TRACES[bug.trace](run) if bug.trace else None
        if trace is None and bug.error is not None:
            trace = error_message(run, bug.error)
        if trace is not None:
            shown = f"{version} ({version.source})" if version is not None else None
            measured = {**trace.measured, "versions": str(bug.affected), "version": shown}
            yield Sign(bug.id, measured, where=trace.where, severity=trace.severity)
