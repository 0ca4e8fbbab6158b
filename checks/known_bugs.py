"""Known bugs of mlx and mlx-lm, by what they leave behind.

What it finds. What a bug of mlx or mlx-lm that is known in public does to a run: layers trained
that were not asked for, a resumed adapter that was dropped, settings of the YAML file that were
ignored, gradients that were never applied, padding that was trained on. One note collects the
bugs that were at work and harm no run by themselves, another those that the versions have and
that left no trace.

Why it matters. Settings, data and code can all be right, and the run fails all the same. Then
only another version helps, and looking for the mistake in one's own files is time lost.

How it is measured. Each bug has a signature that is computed from the run's files: names and
shapes of tensors, the log's count of trained tokens against the counts of the rows, the YAML
file against the adapter_config.json, the message that a log ends with. Counts are compared with
bounds that hold whatever the order of the batches was. The versions are those that the log
names, else bounds from the keys that mlx_lm.lora wrote and the form of the log, else those
installed here. A signature counts unless the run's versions are known not to have the bug;
where it could mean many other things, only if they are known to have it. A version alone is
never more than a note.

When it is wrong. Another trainer can leave the same trace for reasons of its own. The files
must be those of the run: data and YAML files that were changed later give another count.

What to do. `mlxdoctor explain` with the bug's name tells what it does, where it is reported and
which version has it no longer.
"""

from collections.abc import Iterator, Mapping

from mlxdoctor.bugs.known import KnownBug, load_known_bugs
from mlxdoctor.bugs.sightings import Artifacts, BugLimits, Sighting
from mlxdoctor.bugs.signatures import SIGNATURES, error_message
from mlxdoctor.bugs.versions import KnownVersion, known_versions
from mlxdoctor.check import Cost, Inconclusive, check
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import StatedConfig, TrainingConfig
from mlxdoctor.evidence.environment import Environment
from mlxdoctor.evidence.resumed import ResumedAdapter
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.models.generations import Generations

_BUGS = load_known_bugs()


def _has_code(bug: KnownBug) -> bool:
    signature = SIGNATURES[bug.signature]
    return bug.error is not None or (signature.find is not None and not signature.harmless)


@check(
    codes={
        **{
            bug.id: Symptom.warning(
                bug.title, expected=f"no trace of it; see {bug.references[0]}", fix=bug.remedy
            )
            for bug in _BUGS.values()
            if _has_code(bug)
        },
        "at-work": Symptom.info("known bugs were at work that harm no run by themselves"),
        "affected-version": Symptom.info(
            "the versions have a known bug that left no trace",
            expected="versions in which they are fixed",
        ),
    },
    cost=Cost.WEIGHTS,
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
    tokenizer: Tokenizer | None,
    generations: Generations | None,
    environment: Environment | None,
    limits: BugLimits,
) -> Iterator[Sign]:
    """Look for the signature of every bug that the versions may have."""
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
        tokenizer=tokenizer,
        generations=generations,
    )
    versions = known_versions(config, log, environment)
    untraced: list[KnownBug] = []
    harmless: list[tuple[KnownBug, Sighting]] = []
    for bug in _BUGS.values():
        known = versions.get(bug.affected.package)
        affected = bug.affected.holds(known)
        trained_with = affected if known is not None and known.of_the_run else None
        signature, sighting = SIGNATURES[bug.signature], None
        counts = trained_with is not False and (trained_with or not bug.needs_version)
        if counts and signature.find is not None:
            sighting = signature.find(run)
        if counts and sighting is None and bug.error is not None:
            sighting = error_message(run, bug.error)
        if sighting is not None and sighting.severity is Severity.INFO:
            harmless.append((bug, sighting))
        elif sighting is not None:
            yield _seen(bug, sighting, known)
        elif affected and bug.affected.fixed is not None and signature.arises(run):
            untraced.append(bug)
    if harmless:
        yield _at_work(harmless)
    if untraced:
        yield _note(untraced, versions)


def _seen(bug: KnownBug, sighting: Sighting, known: KnownVersion | None) -> Sign:
    version = f"{known} ({known.source})" if known is not None and known.of_the_run else None
    return Sign(
        bug.id,
        sighting.message,
        {**sighting.measured, "versions": str(bug.affected), "version": version},
        where=sighting.where,
        severity=sighting.severity,
    )


def _at_work(seen: list[tuple[KnownBug, Sighting]]) -> Sign:
    measured: dict[str, Measurement] = {"bugs": tuple(bug.id for bug, _ in seen)}
    for bug, sighting in seen:
        measured |= {f"{bug.id}.{name}": value for name, value in sighting.measured.items()}
    return Sign(
        "at-work",
        " ".join(sighting.message for _, sighting in seen),
        measured,
        expected="no trace of " + ", ".join(bug.id for bug, _ in seen),
        fix=" ".join(bug.remedy for bug, _ in seen),
    )


def _note(bugs: list[KnownBug], versions: Mapping[str, KnownVersion]) -> Sign:
    packages = sorted({bug.affected.package for bug in bugs})
    stated = ", ".join(f"{one} {versions[one]} ({versions[one].source})" for one in packages)
    names = ", ".join(bug.id for bug in bugs)
    return Sign(
        "affected-version",
        f"{stated}: of the known bugs of {'that version' if len(packages) == 1 else 'those'}, "
        f"{names} could have met this run, and left no trace in it.",
        {"bugs": tuple(bug.id for bug in bugs), **{one: str(versions[one]) for one in packages}},
        fix=" ".join(dict.fromkeys(bug.remedy for bug in bugs)),
    )
