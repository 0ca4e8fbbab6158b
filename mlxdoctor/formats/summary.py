"""What a report says first: headline, facts, change, what is open, and how to confirm it."""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from mlxdoctor.diagnosis import CROSSES
from mlxdoctor.exhibits import LossCurve
from mlxdoctor.finding import ADVISED, Finding, Severity
from mlxdoctor.report import Fix, Planned, Report
from mlxdoctor.verdict import CauseStatus, Readiness, Verdict

#: By how much the first cause has to lead the second one to be called the root cause (log-odds).
#: Of 856 runs of ward and real where it does, the first is right in 97%; of the others in 79%.
CLEAR_MARGIN = 1.5
#: Signs that what was recorded was computed again, and agrees.
AGREEING = frozenset({"replay.as-computed", "end-state.as-logged"})
#: The check of what models answer.
OF_ANSWERS = "token-collapse."
#: The sign that a validation loss rose while the training loss fell.
OVERFITTING = "loss-trend.overfitting"
#: What to do where the training is sound and the answers are not.
MORE = "Train for longer or on more rows, or take a larger base model."
#: Characters of an answer that are shown on the first screen.
SAMPLE_CHARACTERS = 36

#: A word of a language, and not the name of a file or of an option.
_BEGINS_WITH_A_WORD = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*(?=[\s,;!?]|\.\s|\.?$)")

#: On the first screen: findings that carry the verdict, with what the model answers; things seen;
#: sentences on a log alone; pieces of advice for a run that has not begun; open causes by name.
REASONS, SEEN, TOLD_OF_A_LOG, MOST_ADVICE, OPEN = 4, 3, 8, 3, 4
#: What an experiment takes: evidence of these kinds.
_OF_AN_EXPERIMENT = frozenset({"training configuration", "base model", "dataset"})
_LOG = "training log"
#: What to add to a log, of which no single file would tell most.
_WITH_A_LOG = (
    "Most useful next: the run's folder with its adapter and configuration, --base and --data. "
    "Then both models can be asked, and what was logged can be computed again."
)


@dataclass(frozen=True)
class Screen:
    """What a reader sees first, in every format.

    Attributes:
        is_certain: whether what is to be changed is, or only perhaps.
        fix: the change of the configuration; None for none.
        leads: whether the advice is what cures it, and stands before the changes.
        advice, remarks: what else to do, which may be Markdown; what is not known, what would tell.
        command: that would tell most; "" for none.
        confirm: the command that shows by experiment whether it is the cause; "" for none.
    """

    headline: str
    facts: tuple[str, ...]
    is_certain: bool
    fix: Fix | None
    leads: bool
    advice: tuple[str, ...]
    remarks: tuple[str, ...]
    command: str
    confirm: str


def screen(report: Report, prose: Callable[[str], str] = str) -> Screen:
    """The first screen; `prose` is called with what the knowledge base says in Markdown."""
    plan = report.planned
    first = report.root or report.suspected
    if plan is not None:
        is_open = plan.open_because and plan.readiness is not Readiness.UNKNOWN
        remarks = [sentence(plan.open_because) if is_open else ""]
        lacking = {absent.kind for absent in report.missing}
        options = {"base model": "--model", "dataset": "--data"}
        if named := [option for kind, option in options.items() if kind in lacking]:
            remarks.append(f"Name what is elsewhere with {' and '.join(named)}.")
    else:
        agrees = not AGREEING.isdisjoint(finding.code for finding in report.findings)
        known = "was computed again, and agrees" if agrees else "shows no fault"
        remarks = [
            f"What the training recorded {known}. {MORE}" if is_poor(report) else "",
            coverage(report) if report.root is None else "",
            left_out(report),
            most_useful(report),
        ]
    return Screen(
        headline(report),
        tuple(_facts(report)),
        is_certain=report.root is not None or plan is not None,
        fix=report.fix if first is not None or plan is not None else None,
        # A finding says what cures the cause, and it is no change of a key.
        leads=first is not None
        and first.cause.finding_says
        and not any(_is_advised(one) for one in report.findings if one.code in first.supporting),
        advice=tuple(filter(None, advice(report) if plan else [remedy(report, prose)])),
        remarks=tuple(filter(None, remarks)),
        command=report.next.command if report.next and remarks[-1].endswith(":") else "",
        confirm=confirm_command(report),
    )


def _facts(report: Report) -> list[str]:
    """What speaks for the verdict, and what else was seen."""
    sample = sample_sentence(report)
    answers = [sample] if sample is not None else []
    carrying = reasons(report, REASONS - len(answers))
    facts = [*report.unreadable, *answers, *(finding.message for finding in carrying)]
    if report.planned is not None:
        return [*facts, *report.planned.facts]
    if _is_log_alone(report):
        return [*facts, *(seen.message for seen in report.seen)][: max(TOLD_OF_A_LOG, len(facts))]
    if report.root is not None:
        return facts
    # The headline of a healthy run is the first of what was seen; a suspicion comes first.
    first = 1 if report.verdict is Verdict.HEALTHY and not is_poor(report) else 0
    last = 1 if report.suspected is not None else max(SEEN - len(carrying), first + 1)
    return [*facts, *(seen.message for seen in report.seen[first:last])]


def is_clear(report: Report) -> bool:
    """Whether the first cause is confirmed; or far ahead of the second, and no mere warning's."""
    first = report.diagnosis[0]
    if first.confirmation is not None:
        return first.confirmation == "confirmed"
    errors = {finding.code for finding in report.findings if finding.severity is Severity.ERROR}
    is_shown = first.score >= CROSSES or not errors.isdisjoint(first.supporting)
    return is_shown and is_ahead(report)


def is_ahead(report: Report) -> bool:
    """Whether no second cause comes close to the first one."""
    first, *others = report.diagnosis
    return not others or first.score - others[0].score >= CLEAR_MARGIN


def is_poor(report: Report) -> bool:
    """Whether answers show an error that no fault of the training explains."""
    errors = (finding.code for finding in report.findings if finding.severity is Severity.ERROR)
    is_of_answers = any(code.startswith(OF_ANSWERS) for code in errors)
    return report.verdict is Verdict.HEALTHY and is_of_answers


def headline(report: Report) -> str:
    """The title: the root cause, or what else there is to say first."""
    if report.planned is not None:
        return _readiness(report, report.planned)
    if report.root is not None:
        title = lowered(report.root.cause.title)
        return f"{'Root cause' if is_clear(report) else 'Probable cause'}: {title}"
    if report.suspected is not None:
        return f"Suspect: perhaps {lowered(report.suspected.cause.title)}"
    if is_poor(report):
        return "Healthy training, but the tuned model's answers are poor"
    if report.verdict is Verdict.HEALTHY:
        learned = next((one.message for one in report.seen), "nothing points to a failure")
        return f"Healthy: {lowered(learned.split('. ')[0].rstrip('.'))}"
    if report.verdict is Verdict.UNHEALTHY:
        return f"Unhealthy, and {unexplained(report)}"
    return _inconclusive(report)


def _inconclusive(report: Report) -> str:
    """The title of a run of which it is not known whether it is sound."""
    if report.unreadable:
        return "Inconclusive: not every file could be read"
    if any(one.learned for one in report.seen):
        if report.next is not None and report.next.command:
            return "Inconclusive: it learned and nothing speaks against it, but no model was run"
        return "Inconclusive: it learned, and too little is known to call it healthy"
    if any(one.code == OVERFITTING for one in report.findings):
        what = "the validation loss rose while the training loss fell"
        return f"Inconclusive: {what}, and too little shows what that cost"
    if {one.kind for one in report.evidence} == {"dataset"}:
        return "Inconclusive: these are training data, and nothing that a run left is with them"
    if any(one.stood for one in report.seen):
        return "Inconclusive: the reward hardly rose, if at all, and too little shows why"
    if any(one.fell for one in report.seen):
        return "Inconclusive: the training loss fell, and too little shows what else was learned"
    return "Inconclusive: too little shows whether the model learned"


def unexplained(report: Report) -> str:
    """Why no root cause is named, as a clause."""
    is_open = any(one.confirmation != "refuted" for one in report.diagnosis)
    return "no cause is clear" if is_open else "no known cause explains it"


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
    """How many causes are ruled out, and which are open, for want of what."""
    ruled_out = len(report.causes(CauseStatus.RULED_OUT))
    counted = f"{ruled_out} of {len(report.coverage)} known causes "
    # A part of the rows and prompts rules nothing out.
    counted += "show no sign in what was measured" if report.left_out else "are ruled out"
    entries = report.causes(CauseStatus.OPEN)
    unseen = len(report.causes(CauseStatus.NO_SIGN))
    if entries and _is_log_alone(report):
        return f"By the log alone {counted}, {unseen} show no sign, and {len(entries)} are open."
    if unseen and not report.left_out:
        counted += f", and of {unseen} there is no sign"
    ordered = [why for why, _ in Counter(entry.why for entry in entries).most_common()]
    entries.sort(key=lambda entry: ordered.index(entry.why))
    named = [
        f"{', '.join(entry.cause.replace('-', ' ') for entry in group)} ({why})"
        for why, group in groupby(entries[:OPEN], lambda entry: entry.why)
    ]
    named += [f"and {len(entries) - OPEN} more"] if len(entries) > OPEN else []
    return f"{counted}; open: {'; '.join(named)}." if named else f"{counted}."


def _is_log_alone(report: Report) -> bool:
    return {file.kind for file in report.evidence} == {_LOG}


def advice(report: Report) -> list[str]:
    """What to do before a run beside what changes in its configuration, a sentence each."""
    first, changed = report.root or report.suspected, report.fix is not None
    if changed and not (first is not None and first.cause.finding_says):
        return []
    speaking = [one for one in reasons(report, MOST_ADVICE) if one.fix]
    fixes = [sentence(one.fix) for one in speaking if not (changed and _is_advised(one))]
    return list(dict.fromkeys(fixes))


def _is_advised(finding: Finding) -> bool:
    """Whether a finding advises a value of a key."""
    return any(name.startswith(ADVISED) for name in finding.measured)


def most_useful(report: Report) -> str:
    """The one thing that would say most, or ""; the command of `report.next` follows a colon."""
    wanted = report.next
    if wanted is None or not wanted.how or (report.root is not None and is_clear(report)):
        return ""
    settles = len(wanted.settles)
    if _is_log_alone(report):
        return _WITH_A_LOG
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


def remedy(report: Report, prose: Callable[[str], str] = str) -> str:
    """What to do about the first cause, in one or two sentences; no number of the fix again.

    `prose` is called with a cause's own remedy, which may be Markdown.
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
    if report.fix is not None and beside:
        return beside
    # Where there is no configuration to change, the value is said in words.
    advising = [one for one in speaking if _is_advised(one)]
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

    With a root cause, those that count in its score, the weightiest first; otherwise the worst.
    Notes that ask for something follow where little is known of a run: nothing, or its log alone.
    """
    # The first of a code is the worst of it.
    first_of_code: dict[str, Finding] = {}
    for finding in report.findings:
        first_of_code.setdefault(finding.code, finding)
    found = list(first_of_code.values())
    worse = [finding for finding in found if finding.severity is not Severity.INFO]
    if (first := report.root or report.suspected) is not None:
        weights = {term.code: term.weight for term in first.arithmetic}
        worse = [finding for finding in found if weights.get(finding.code, 0) > 0]
        worse.sort(key=lambda finding: -weights[finding.code])
        if _is_log_alone(report):
            others = [
                one for one in found if one.severity is not Severity.INFO and one not in worse
            ]
            worse += sorted(others, key=lambda one: -one.severity.rank)
    # A fix "nothing, …" is of a note that a sound run shows, too.
    asking = (note for note in found if note.fix and not note.fix.startswith("nothing"))
    notes = [note for note in asking if note.severity is Severity.INFO and note not in worse]
    notes.sort(key=lambda note: math.inf if note.onset is None else note.onset)
    is_open = report.verdict is Verdict.INCONCLUSIVE and report.planned is None
    return [*worse, *(notes if is_open or _is_log_alone(report) else ())][:limit]


def unit(report: Report) -> str:
    """What the run's log counts, in a word: "iteration" where there is no other."""
    curve = report.exhibit(LossCurve)
    axis = curve.axis if curve is not None else "iteration"
    return "report" if axis == "row" else axis


def confirm_command(report: Report) -> str:
    """The command that shows by experiment whether it is the cause; "" where none can be made."""
    root = report.root
    if root is None or report.experiments or report.planned:
        return ""
    if root.cause.no_experiment or root.cause.shown_by_diagnosis:
        return ""
    kinds = {file.kind for file in report.evidence}
    if not kinds >= _OF_AN_EXPERIMENT:
        return ""
    # Many symptoms of the run, with which reruns are compared, show only where models run.
    return f"{report.commands[0].removesuffix(' --no-generate')} --confirm"


def left_out(report: Report) -> str:
    """What the time for running models did not allow; "" where it allowed all, or all is clear."""
    root = report.root
    # Of a broad cause, such as an unknown loss, a known one may have been left out.
    if not report.left_out or (root is not None and is_clear(report) and not root.cause.broad):
        return ""
    return f"Not all was measured: {'; '.join(report.left_out)}. A larger --budget measures more."


def missing(report: Report) -> dict[str, list[str]]:
    """Why evidence was not there -> the kinds of it."""
    by_reason: dict[str, list[str]] = {}
    for one in report.missing:
        by_reason.setdefault(one.why, []).append(one.kind)
    return by_reason


def some(texts: Sequence[str], most: int) -> list[str]:
    """The first texts, and how many more there are."""
    more = [f"and {len(texts) - most:,} more"] if len(texts) > most else []
    return [*texts[:most], *more]


def slug(name: str) -> str:
    """`name` as a folder name that needs no quoting and can't leave its parent folder."""
    return re.sub(r"[^\w.-]", "-", name, flags=re.ASCII).strip(".-")[:80] or "run"


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


def plain(value: Any) -> str:
    """A configuration value as it is typed into a command or a file."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "not set"}[value]
    return str(value)


def sample_sentence(report: Report) -> str | None:
    """What the failed model answers, beside the base model; None without a recorded answer."""
    sample = report.sample
    if sample is None or report.root is None:
        return None

    def shortened(text: str) -> str:
        line = " ".join(text.split())
        return line if len(line) <= SAMPLE_CHARACTERS else f"{line[:SAMPLE_CHARACTERS].rstrip()}…"

    asked = f"Asked {shortened(sample.prompt)!r}, it " if sample.prompt else "It "
    answers = f"{asked}answers {shortened(sample.tuned)!r}"
    if sample.base is None:
        return f"{answers}."
    if sample.base == sample.tuned:
        return f"{answers}, as the base model does."
    return f"{answers}; the base model, {shortened(sample.base)!r}."
