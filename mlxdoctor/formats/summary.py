"""What a report says in one breath: headline, reasons, change, and how to confirm it."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from mlxdoctor.exhibits import LossCurve
from mlxdoctor.finding import ADVISED, Finding, Severity
from mlxdoctor.report import Planned, Report
from mlxdoctor.verdict import CauseStatus, Readiness, Verdict

#: By how much the first cause has to lead the second one to be called the root cause (log-odds).
#: Of 856 runs of ward and real where it does, the first is right in 97%; of the others in 79%.
CLEAR_MARGIN = 1.5
#: Characters of an answer that are shown on the first screen.
SAMPLE_CHARACTERS = 36
#: Iterations of a confirming run that are always enough to see a loss fall or rise.
CONFIRM_ITERATIONS = 50
#: A confirming run goes this many times past the iteration at which the failure began.
CONFIRM_PAST_ONSET = 2

#: A word of a language, and not the name of a file or of an option.
_BEGINS_WITH_A_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*(?=[\s,;!?]|\.\s|\.?$)")

# Options of `mlx_lm.lora` (0.32.2) that override a key of its configuration file.
_FLAGS = frozenset(
    (
        *("batch_size", "data", "fine_tune_type", "grad_accumulation_steps", "iters"),
        *("learning_rate", "max_seq_length", "model", "num_layers", "optimizer"),
        *("resume_adapter_file", "seed", "val_batches"),
    )
)

#: Findings that carry the verdict, named on the first page.
FIRST_REASONS = 4
#: Things seen that the first screen tells.
SEEN = 3
#: Pieces of advice for a run that has not begun.
MOST_ADVICE = 3
#: Open causes that are named there.
OPEN = 4


@dataclass(frozen=True)
class ChangedKey:
    """One configuration key before and after the fix; None where it is absent."""

    key: str
    before: Any
    after: Any


def is_clear(report: Report) -> bool:
    """Whether the first cause is confirmed, or far enough ahead of the second."""
    first = report.diagnosis[0]
    if first.confirmation is not None:
        return first.confirmation == "confirmed"
    return len(report.diagnosis) == 1 or first.score - report.diagnosis[1].score >= CLEAR_MARGIN


def headline(report: Report) -> str:
    """The title: the root cause, or what else there is to say first."""
    if report.planned is not None:
        return _readiness(report, report.planned)
    if report.root is not None:
        title = lowered(report.root.cause.title)
        return f"{'Root cause' if is_clear(report) else 'Probable cause'}: {title}"
    if report.suspected is not None:
        return f"Suspect: perhaps {lowered(report.suspected.cause.title)}"
    if report.verdict is Verdict.HEALTHY:
        learned = next((one.message for one in report.seen), "nothing points to a failure")
        return f"Healthy: {lowered(learned.rstrip('.'))}"
    if report.verdict is Verdict.UNHEALTHY:
        return "Unhealthy, and no known cause explains it"
    if report.unreadable:
        return "Inconclusive: not every file could be read"
    if any(one.learned for one in report.seen):
        if report.next is not None and report.next.command:
            return "Inconclusive: it learned and nothing speaks against it, but no model was run"
        return "Inconclusive: it learned, and too little is known to call it healthy"
    if {one.kind for one in report.evidence} == {"dataset"}:
        return "Inconclusive: these are training data, and nothing that a run left is with them"
    return "Inconclusive: nothing shows that the model learned"


def _readiness(report: Report, planned: Planned) -> str:
    """The title of a run that has not begun."""
    readiness = planned.readiness
    if readiness is Readiness.NOT_READY:
        if report.root is None:
            return "Not ready, and no known cause explains it"
        return f"Not ready: {lowered(report.root.cause.title)}"
    if readiness is Readiness.UNKNOWN:
        return f"Unknown: {planned.open_because}"
    if readiness is Readiness.READY:
        return "Ready: nothing was found that would make it fail"
    if report.suspected is not None:
        return f"Ready, but perhaps {lowered(report.suspected.cause.title)}"
    return "Ready, but see what was found"


def coverage(report: Report) -> str:
    """How many causes are ruled out and which are open, for want of what; "" where not known."""
    if not report.coverage:
        return ""
    ruled_out = len(report.causes(CauseStatus.RULED_OUT))
    counted = f"{ruled_out} of {len(report.coverage)} known causes are ruled out"
    by_reason: dict[str, list[str]] = {}
    for entry in report.causes(CauseStatus.OPEN):
        by_reason.setdefault(entry.why, []).append(entry.cause.replace("-", " "))
    named: list[str] = []
    room = OPEN
    for why, causes in sorted(by_reason.items(), key=lambda item: -len(item[1])):
        if shown := causes[:room]:
            named.append(f"{', '.join(shown)} ({why})")
            room -= len(shown)
    more = sum(map(len, by_reason.values())) - (OPEN - room)
    named += [f"and {more} more"] if more else []
    return f"{counted}; open: {'; '.join(named)}." if named else f"{counted}."


def advice(report: Report) -> list[str]:
    """What to do before a run where no key of its configuration cures it, a sentence each.

    A cause's own remedy speaks of a run that was made; what its findings advise does not.
    """
    if changes(report):
        return []
    fixes = [sentence(one.fix) for one in reasons(report, MOST_ADVICE) if one.fix]
    return list(dict.fromkeys(fixes))


def to_know_more(report: Report) -> str:
    """What would let more be looked at before a run; "" for nothing."""
    lacking = {missing.kind for missing in report.missing}
    options = {"base model": "--model", "dataset": "--data"}
    named = [option for kind, option in options.items() if kind in lacking]
    return f"Name what is elsewhere with {' and '.join(named)}." if named else ""


def most_useful(report: Report) -> str:
    """The one thing that would say most, in a person's words; "" for nothing.

    Where it ends with a colon, `next_command` is to follow.
    """
    wanted = report.next
    if wanted is None or not wanted.how or (report.root is not None and is_clear(report)):
        return ""
    settles = len(wanted.settles)
    if any(one.startswith(wanted.why) for one in report.unreadable):
        # The sentence stands at the top, with what would be read.
        file = wanted.why.split(": ", 1)[0]
        return f"Most useful next: {file} in a form that can be read; see above."
    if wanted.command:
        count = len(report.causes(CauseStatus.OPEN))
        of_them = f"all {count}" if settles == count else f"{settles} of {count}"
        about = f", which would settle {of_them} open causes" if settles > 1 else ""
        return f"Run the models to know more{about}:"
    about = f" That would settle {settles} of the open causes." if settles > 1 else ""
    return f"Most useful next: {wanted.why}; {wanted.how}.{about}"


def next_command(report: Report) -> str:
    """The command that would say most; "" where `most_useful` asks for something else."""
    if report.next is None or not most_useful(report).endswith(":"):
        return ""
    return report.next.command


def remedy(report: Report, prose: Callable[[str], str] = str) -> str:
    """What to do about the first cause, in one or two sentences.

    It repeats no number of `changes`, and gives none that differs.

    Args:
        report: the report.
        prose: called with a cause's own remedy, which is ours and may be Markdown; what a finding
            says may hold text of the run.
    """
    first = report.root or report.suspected
    if first is None:
        return ""
    cause = first.cause
    says = {one.code: one for one in reversed(report.findings) if one.fix.strip()}
    heaviest = sorted(first.supporting, key=lambda code: -cause.weights.get(code, 0.0))
    speaking = [says[code] for code in heaviest if code in says]
    if cause.finding_says and speaking:
        return sentence(speaking[0].fix)
    beside = prose(cause.beside_change)
    if changes(report) and beside:
        return beside
    # Where there is no configuration to change, the value is said in words.
    advising = [one for one in speaking if any(name.startswith(ADVISED) for name in one.measured)]
    if advising and beside:
        return f"{sentence(advising[0].fix)} {beside}"
    return prose(cause.remedy)


def lowered(title: str) -> str:
    """`title` as it stands after a colon; "LoRA", "NaN" and "B" keep their capitals."""
    first = title.split(" ", 1)[0]
    is_name = any(one.isupper() for one in first[1:]) or (len(first) == 1 and first != "A")
    return title if is_name else title[:1].lower() + title[1:]


def sentence(text: str) -> str:
    """`text` with a stop at its end and a capital at its start, where that is no file's name."""
    text = text.strip()
    start = text[:1].upper() if _BEGINS_WITH_A_WORD.match(text) else text[:1]
    return start + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def reasons(report: Report, limit: int) -> list[Finding]:
    """The findings that carry the verdict, each code once.

    With a root cause, those that count in its score, the weightiest first;
    otherwise the worst, without notes.
    """
    # The first of a code is the worst of it.
    first_of_code: dict[str, Finding] = {}
    for finding in report.findings:
        first_of_code.setdefault(finding.code, finding)
    found = list(first_of_code.values())
    if (first := report.root or report.suspected) is not None:
        weights = {term.code: term.weight for term in first.arithmetic}
        counting = [finding for finding in found if weights.get(finding.code, 0) > 0]
        return sorted(counting, key=lambda finding: -weights[finding.code])[:limit]
    return [finding for finding in found if finding.severity is not Severity.INFO][:limit]


def unit(report: Report) -> str:
    """What the run's log counts, in a word: "iteration" where there is no other."""
    curve = report.exhibit(LossCurve)
    axis = curve.axis if curve is not None else "iteration"
    return "report" if axis == "row" else axis


def changes(report: Report) -> list[ChangedKey]:
    """The configuration keys that the fix changes."""
    if report.fix is None:
        return []
    before, after = report.fix.before, report.fix.after
    return [
        ChangedKey(key, before.get(key), after.get(key))
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]


def confirm_commands(report: Report) -> list[str]:
    """Shell lines for a short run with the fix, and its diagnosis; empty where none can be given.

    They need the run's own mlx-lm configuration, and a fix that is a change of it.
    """
    wanted = changes(report)
    config = _source(report, "training configuration")
    if report.fix is None or not wanted or config is None or report.root is None:
        return []
    if any("." in one.key and not one.key.startswith("lora_parameters.") for one in wanted):
        # Another trainer's: mlx-lm has one section.
        return []
    folder = f"{slug(report.name)}-fixed"
    lines: list[str] = []
    options: list[str] = []
    if _flags_suffice(wanted, report.fix.diff):
        # The number of iterations is an option of its own below.
        for one in (change for change in wanted if change.key != "iters"):
            options += [f"--{one.key.replace('_', '-')}", shlex.quote(plain(one.after))]
    else:
        copy = f"{folder}.yaml" if config.endswith((".yaml", ".yml")) else f"{folder}.json"
        lines.append(f"cp {_quoted(config)} {copy}  # then make the change below in {copy}")
        config = copy
    iterations = report.fix.after.get("iters")
    if not isinstance(iterations, int):
        # A failure shows a while after it began.
        iterations = max(CONFIRM_ITERATIONS, CONFIRM_PAST_ONSET * (report.onset or 0))
    return [
        *lines,
        f"mkdir -p {folder}",
        f"mlx_lm.lora --train --config {_quoted(config)} \\",
        *(f"  {' '.join(part)} \\" for part in (_places(report), options) if part),
        f"  --iters {iterations} --steps-per-report 5 \\",
        f"  --adapter-path {folder} 2>&1 | tee {folder}/train.log",
        f"mlxdoctor diagnose {folder}",
    ]


def _places(report: Report) -> list[str]:
    """Options for base model and data where they were found: the configuration may be relative."""
    options = []
    for kind, option in (("base model", "--model"), ("dataset", "--data")):
        source = _source(report, kind)
        # What lies in a cache is found by the name in the configuration.
        if source is not None and not source.startswith("~/.cache/"):
            options += [option, _quoted(str(PurePosixPath(source).parent))]
    return options


def _quoted(path: str) -> str:
    """`path` for a shell, which expands a "~" only where it is not quoted."""
    return f"~/{shlex.quote(path[2:])}" if path.startswith("~/") else shlex.quote(path)


def _source(report: Report, kind: str) -> str | None:
    sources = (one.source for one in report.evidence if one.kind == kind)
    return next(sources, None)


def _flags_suffice(wanted: Sequence[ChangedKey], diff: str) -> bool:
    """Whether options make the whole change: a learning-rate schedule, say, outranks its option."""
    added = [
        line for line in diff.splitlines() if line.startswith("+") and not line.startswith("+++")
    ]
    return len(added) == len(wanted) and all(
        one.key in _FLAGS and one.after is not None for one in wanted
    )


def left_out(report: Report) -> str:
    """What the time for running models did not allow; "" where it allowed all."""
    if not report.left_out:
        return ""
    return f"Not all was measured: {'; '.join(report.left_out)}. A larger --budget measures more."


def missing(report: Report) -> dict[str, list[str]]:
    """Why evidence was not there -> the kinds of it."""
    by_reason: dict[str, list[str]] = {}
    for one in report.missing:
        by_reason.setdefault(one.why, []).append(one.kind)
    return by_reason


def slug(name: str) -> str:
    """`name` as a folder name that needs no quoting and can't leave its parent folder."""
    kept = "".join(
        one if one.isascii() and (one.isalnum() or one in "._-") else "-" for one in name
    )
    return kept.strip(".-")[:80] or "run"


def number(value: Any) -> str:
    """A measured value as people read it: four significant digits, thousands separated."""
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, str):
        return value
    if isinstance(value, Sequence):
        return ", ".join(number(one) for one in value)
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("infinity" if value > 0 else "-infinity")
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        digits = max(0, 3 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def is_finite(value: Any) -> bool:
    """Whether `value` is a number that is neither NaN nor infinite."""
    return isinstance(value, int | float) and math.isfinite(value)


def plain(value: Any) -> str:
    """A configuration value as it is typed into a command or a file."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "not set"}[value]
    return str(value)


def sample_sentence(report: Report, with_base: bool = True) -> str | None:
    """What the failed model answers, beside the base model; None without a recorded answer."""
    sample = report.sample
    if sample is None or report.root is None:
        return None
    asked = f"Asked {shortened(sample.prompt)!r}, it " if sample.prompt else "It "
    sentence = f"{asked}answers {shortened(sample.tuned)!r}"
    if sample.base is None or not with_base:
        return f"{sentence}."
    if sample.base == sample.tuned:
        return f"{sentence}, as the base model does."
    return f"{sentence}; the base model, {shortened(sample.base)!r}."


def shortened(text: str) -> str:
    """`text` in one line of at most `SAMPLE_CHARACTERS`."""
    line = " ".join(text.split())
    return line if len(line) <= SAMPLE_CHARACTERS else f"{line[:SAMPLE_CHARACTERS].rstrip()}…"
