"""Where the experiments of one run are made: the failure in question, and what was seen so far."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from mlxdoctor.causes import Cause
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.exhibits import Curve
from mlxdoctor.finding import Finding, Outcome, Severity, onset_of
from mlxdoctor.judge.remedy import fix_for, needed_values
from mlxdoctor.report import Fix
from mlxdoctor.reproduce.observe import Change, Laboratory, symptom_checks
from mlxdoctor.reproduce.rules import Observation, Question, Signs, Trials, needed, signs_of
from mlxdoctor.verdict import Coverage, Rerun

#: Iterations of a rerun. In seed 000, 20 to 50 decide; a loss that never moves is not judged
#: before 100 (loss-trend); 200 are minutes, not hours, on a laptop.
SHORTEST, USUAL, LONGEST = 50, 100, 200
#: Iterations at the most where the run overfits: a validation loss has to fall before it can rise.
LONGEST_OVERFITTING = 600
#: Times the onset, which is the first report that shows it, to go on for.
PAST_ONSET = 3
#: The same where the run overfits: loss-trend wants four validations and a clear rise.
PAST_MINIMUM = 4


@dataclass(frozen=True)
class Failure:
    """What is known of the recorded run before the first experiment.

    Attributes:
        seeds: those that are tried, the run's own first.
        usual: key -> the range of values that is usual for the run's model.
        coverage: by the cause's id.
    """

    outcomes: tuple[Outcome, ...]
    seeds: tuple[int, ...]
    iterations: int
    usual: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    coverage: Mapping[str, Coverage] = field(default_factory=dict)

    @property
    def findings(self) -> list[Finding]:
        """What the checks found."""
        return [finding for outcome in self.outcomes for finding in outcome.findings]

    @cached_property
    def recorded(self) -> Signs:
        """Its symptoms."""
        names = {check.name for check in symptom_checks()}
        return signs_of([outcome for outcome in self.outcomes if outcome.check in names])

    @property
    def everything(self) -> Question:
        """Whether a rerun shows any symptom of the run: an error, if it has one."""
        wanted = self.recorded.errors or self.recorded.all
        return Question(wanted, frozenset(), self.recorded, len(self.seeds))

    @property
    def onset(self) -> int | None:
        """When the recorded loss went wrong."""
        return onset_of(self.outcomes, Severity.ERROR)

    def question(self, cause: Cause) -> Question:
        """Whether a rerun shows the symptoms of one cause."""
        wanted = self.recorded.of(cause)
        if not wanted and cause.leave_out:
            # Bad rows can have any symptom.
            return self.everything
        return Question(wanted, self.recorded.keys(cause), self.recorded, len(self.seeds))

    def fixes(self, config: TrainingConfig, cause: Cause) -> list[Fix]:
        """The change: as the report advises it, as it stands, to the usual range, well into it."""
        speaking = [each for each in self.findings if cause.weights.get(each.code, 0.0) > 0]
        factor = cause.change.value if cause.change is not None else 1
        inner = {
            key: (min(low * factor, high), max(high / factor, low))
            for key, (low, high) in self.usual.items()
            if isinstance(factor, int | float) and factor > 0
        }
        fixes: dict[str, Fix] = {}
        for ranges in (needed_values(speaking), {}, self.usual, inner):
            fix = fix_for(cause.change, config, ranges)
            if fix is not None:
                fixes.setdefault(str(fix.after), fix)
        return list(fixes.values())


def length_of(onset: int | None, leading: Cause | None, recorded: int) -> int:
    """Iterations that decide: past the onset, within the limits, no more than were recorded."""
    if leading is not None and leading.change is not None and leading.change.key == "iters":
        wanted = PAST_MINIMUM * onset if onset else LONGEST_OVERFITTING
        return max(1, min(recorded, wanted, LONGEST_OVERFITTING))
    wanted = USUAL if onset is None else PAST_ONSET * onset
    return max(1, min(recorded, LONGEST, max(SHORTEST, wanted)))


@dataclass(frozen=True)
class Bench:
    """Where reruns are made and listed, each once.

    Attributes:
        trials: every rerun, in the order in which it was asked for: it grows, so that what was seen
            survives an experiment that is cut short.
    """

    lab: Laboratory
    failure: Failure
    trials: list[Rerun] = field(default_factory=list)

    def observe(
        self, change: Change, seed: int, question: Question, cause: str | None = None
    ) -> Observation:
        """Make one rerun, or recall it, and list it as the report shows it; raises as `rerun`."""
        seen = self.lab.rerun(change, seed)
        rerun = Rerun(
            experiment=change.kind,
            cause=cause,
            label=change.label,
            seed=seed,
            symptom=question.shows(seen),
            errors=seen.signs.error_codes,
            base_loss=seen.base_loss,
            loss=seen.loss,
            iterations=len(seen.iterations),
            seconds=seen.seconds,
            curve=Curve(seen.iterations, seen.losses),
            samples=seen.samples,
        )
        if not any((trial.label, trial.seed) == (rerun.label, seed) for trial in self.trials):
            self.trials.append(rerun)
        return seen

    def plain(self) -> dict[int, Observation]:
        """Rerun as recorded, with as many seeds as it takes for enough of them to agree."""
        change = Change("as recorded", "rerun as recorded", self.failure.iterations)
        question, enough = self.failure.everything, needed(len(self.failure.seeds))
        seen: dict[int, Observation] = {}
        for seed in self.failure.seeds:
            seen[seed] = self.observe(change, seed, question)
            shown = sum(map(question.shows, seen.values()))
            if shown >= enough or len(seen) - shown >= enough:
                break
        return seen

    def until_decided(
        self,
        change: Change,
        seeds: Sequence[int],
        question: Question,
        cause: str,
        is_success: Callable[[int, Observation], bool],
        *,
        screen: bool = False,
    ) -> Trials:
        """Rerun seeds until enough have succeeded, or enough can't any more.

        With `screen` it gives up after a first failure: there are other forms of the change.
        """
        seeds_in_all = len(self.failure.seeds)
        enough = needed(seeds_in_all)
        seen: dict[int, Observation] = {}
        succeeded = 0
        for seed in seeds:
            seen[seed] = self.observe(change, seed, question, cause)
            succeeded += is_success(seed, seen[seed])
            failed = len(seen) - succeeded
            if succeeded >= enough or failed > seeds_in_all - enough or (screen and not succeeded):
                break
        return seen
