"""Known bugs of mlx and mlx-lm, by what they leave behind.

What it finds. What a public bug of mlx or mlx-lm does to a run: gradients that were never applied,
a command that ends with the message of the bug. Other checks find adapters that were dropped
silently, batches without a target, and fewer iterations than an update takes.

Why it matters. Settings, data and code can all be right, and the run fails all the same. Then
only another version helps, and looking for the mistake in one's own files is time lost.

How it is measured. Each bug has a trace that is computed from the run's files: iterations, bits of
the base, the message that a log ends with. A trace counts unless the log or the configuration
shows a version without the bug. A version alone is no finding.

When it is wrong. Another trainer can leave the same trace for reasons of its own. The files
must be those of the run.

What to do. `mlxdoctor explain` with the bug's name tells what it does, where it is reported and
which version no longer has it.
"""

import re
from collections.abc import Iterator
from dataclasses import replace

from packaging.version import Version

from mlxdoctor.bugs.known import load_known_bugs, parse_version
from mlxdoctor.check import Inconclusive, check
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.finding import Measurement, Severity, Sign, Symptom
from mlxdoctor.measure.weights.lora_targets import by_mlx_lm
from mlxdoctor.safety.quoting import MAX_LINE, quoted

#: The first mlx-lm that writes trust_remote_code into adapter_config.json, and can print a table.
_RECENT = Version("0.32.0")
_BUGS = [bug for bug in load_known_bugs().values() if bug.says]
#: Bits of a word of a quantised weight: DoRA computes the number of inputs as if codes filled it.
_WORD_BITS = 32
_SHAPES = re.compile("shape|matmul")
#: Least share of the iterations that make no update; none of 131 sound runs loses any.
_LEFT_OVER = 0.1


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
)
def known_bugs(
    config: TrainingConfig | None,
    log: TrainingLog | None,
    base: BaseModel | None,
) -> Iterator[Sign]:
    if config is None and log is None:
        raise Inconclusive("there is no configuration or log to look for traces in")
    traces = {
        "leftover-accumulation": _leftover_accumulation(config),
        "dora-odd-bits": _dora_odd_bits(config, base, log),
    }
    for bug in _BUGS:
        version, source = _version(config, log, bug.package)
        if version is not None and not bug.affects(version):
            continue
        sign = _message(bug.id, bug.error, log) if bug.error else traces[bug.id]
        if sign is not None:
            shown = f"{version} ({source})" if version is not None else None
            versions = {"versions": bug.versions, "version": shown}
            yield replace(sign, measured={**sign.measured, **versions})


def _version(
    config: TrainingConfig | None, log: TrainingLog | None, package: str
) -> tuple[Version | None, str]:
    """The version of a package, or its lower bound, and the source of that."""
    stated = log.notes.versions.get(package) if log is not None else None
    if stated is not None and (version := parse_version(stated)) is not None:
        return version, "named in the log"
    is_table = log is not None and log.format.startswith("table")
    is_recent = config is not None and by_mlx_lm(config) and "trust_remote_code" in config.values
    if package == "mlx-lm" and (is_table or is_recent):
        return _RECENT, "or later, by its log or its configuration"
    return None, ""


def _leftover_accumulation(config: TrainingConfig | None) -> Sign | None:
    """The last iterations, if they are fewer than the accumulation steps: they make no update."""
    if config is None or not config.describes_training or not config.iters:
        return None
    steps = config.grad_accumulation_steps or 1
    left_over = config.iters % steps
    share = left_over / config.iters
    # A run without any update is a finding of the check `schedule`.
    if config.iters < steps or share < _LEFT_OVER:
        return None
    made = {"iters": config.iters, "updates": config.iters // steps, "left_over": left_over}
    return Sign("leftover-accumulation", {**made, "grad_accumulation_steps": steps, "share": share})


def _dora_odd_bits(
    config: TrainingConfig | None, base: BaseModel | None, log: TrainingLog | None
) -> Sign | None:
    """DoRA on a base of 3, 5 or 6 bits, in a run that ended with an error about shapes."""
    if base is None or config is None or config.fine_tune_type != "dora":
        return None
    odd = sorted({part.bits for part in base.quantized.values() if _WORD_BITS % part.bits})
    return _message("dora-odd-bits", _SHAPES, log, bits=tuple(odd)) if odd else None


def _message(
    bug: str, pattern: re.Pattern[str], log: TrainingLog | None, **measured: Measurement
) -> Sign | None:
    """The error message of a bug at the end of the log."""
    for failure in log.notes.failures if log is not None else ():
        line, text = failure.line_number, failure.text
        if log is not None and line > log.main.last_line and pattern.search(text):
            figures = {**measured, "line": line, "text": quoted(text, MAX_LINE)}
            return Sign(bug, figures, f"line {line} of the log", severity=Severity.ERROR)
    return None
