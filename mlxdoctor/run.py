"""Run: a folder, or loose files, and the evidence in it, read on first use."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.discovery import discover
from mlxdoctor.evidence.kind import Missing, NoSuchThing, NotThere, Progress
from mlxdoctor.evidence.run_files import RunFiles, resolve
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.safety.errors import InputError
from mlxdoctor.safety.stages import Stage
from mlxdoctor.safety.time_budget import TimeBudget
from mlxdoctor.safety.time_limit import TimeLimitExceeded

if TYPE_CHECKING:
    from mlxdoctor.measure.kept.measured_file import MeasuredFile

T = TypeVar("T")


@dataclass(frozen=True)
class EvidenceRecord:
    """One piece of evidence that was read, for the report's list."""

    kind: str
    sources: tuple[Source, ...]


class Run:
    """What one fine-tune left behind.

    Every kind of evidence is read once, when a check first asks for it. A file
    that can't be read is remembered in `unreadable` and counts as missing.
    """

    def __init__(
        self,
        files: RunFiles,
        *,
        against: Path | None = None,
        allow_model: bool = True,
        score: str | None = None,
        trainer: str | None = None,
        progress: Progress | None = None,
        budget: TimeBudget | None = None,
        is_planned: bool = False,
    ) -> None:
        self.files = files
        self.against = against
        self.score = score
        self.trainer = trainer
        self._allow_model = allow_model
        self.progress = progress
        self.budget = budget or TimeBudget()
        self.is_planned = is_planned
        self.measured: MeasuredFile | None = None
        self._evidence: dict[type[Any], Any] = {}
        self._reasons: dict[type[Any], str] = {}
        self._errors: dict[type[Any], InputError] = {}
        self._lacking: set[type[Any]] = set()
        self._impossible: set[type[Any]] = set()
        self._withheld = False
        self._of_models: set[type[Any]] = set()
        self._finding: list[type[Any]] = []
        self._made_with: dict[type[Any], dict[type[Any], None]] = {}
        self._failures: dict[type[Any], Missing | InputError] = {}
        self._measured_now: dict[type[Any], None] = {}
        #: Whether anything has asked since this was last set if models may be run.
        self.asked_for_models = False

    @property
    def allow_model(self) -> bool:
        """Whether models may be run; who asks, and what is made from the answer, is noted."""
        self.asked_for_models = True
        return self._allow_model and not self._withheld

    @contextmanager
    def without_models(self) -> Iterator[None]:
        """Run no model meanwhile; what would have been made with one is made again afterwards."""
        self._withheld = True
        try:
            yield
        finally:
            self._withheld = False
            for kind in self._of_models:
                for known in (self._evidence, self._reasons, self._errors):
                    known.pop(kind, None)
                self._lacking.discard(kind)
                self._impossible.discard(kind)
            self._of_models.clear()

    def of_files_alone(self) -> Run:
        """The same run as one of which no model may be run; what was read is not read again."""
        again = Run(self.files, against=self.against, allow_model=False)
        if self.measured is None and self.score is None and self.trainer is None:
            of_models = self._of_models
            again._evidence.update(_without(self._evidence, of_models))
            again._reasons.update(_without(self._reasons, of_models))
            again._errors.update(_without(self._errors, of_models))
            again._lacking |= self._lacking - of_models
            again._impossible |= self._impossible - of_models
        return again

    @classmethod
    def discover(
        cls,
        paths: Iterable[Path],
        *,
        base: Path | None = None,
        adapter: Path | None = None,
        log: Iterable[Path] = (),
        data: Path | None = None,
        generations: Path | None = None,
        against: Path | None = None,
        allow_model: bool = True,
        score: str | None = None,
        trainer: str | None = None,
        progress: Progress | None = None,
        budget: TimeBudget | None = None,
        measured: Path | None = None,
    ) -> Run:
        """The run in `paths`; options name evidence that lies elsewhere.

        Raises:
            InputError: a path does not exist, or nothing in it is evidence; or `measured` is
                there and is no file of measurements.
        """
        files = discover(
            paths, base=base, adapter=adapter, log=log, data=data, generations=generations
        )
        run = cls(
            files,
            against=against,
            allow_model=allow_model,
            score=score,
            trainer=trainer,
            progress=progress,
            budget=budget,
        )
        run._followed()
        if measured is not None:
            from mlxdoctor.measure.kept.measured_file import MeasuredFile

            run.measured = MeasuredFile.open(measured, run.files, run._inspected())
        return run

    @classmethod
    def planned(
        cls,
        config: TrainingConfig,
        *,
        base: Path | None = None,
        data: Path | None = None,
        allow_model: bool = False,
        progress: Progress | None = None,
        budget: TimeBudget | None = None,
    ) -> Run:
        """The run that a configuration describes and that was not begun.

        Args:
            config: with the options that are to override its file.
            base: the base model's folder, where it is not where the configuration says.
            data: the data folder, likewise.
            allow_model: whether the base model may be run.
            progress: to be told about work that takes seconds.
            budget: how long models may run.
        """
        files = RunFiles((config.path,), config=config.path, base=base, data=data)
        run = cls(files, allow_model=allow_model, progress=progress, budget=budget, is_planned=True)
        run.give(config)
        run._followed()
        return run

    def _inspected(self) -> tuple[Path, ...]:
        """Every folder in which nothing may be written."""
        files = self.files
        named = (*files.roots, files.base, files.adapter, files.tuned, files.data, self.against)
        return tuple(one for one in named if one is not None)

    def _followed(self) -> None:
        """Look base and data up where the configuration names them."""
        config = self.get(TrainingConfig)
        log = self.get(TrainingLog) if config is None else None
        header = log.header if log is not None else {}
        model = config.model if config is not None else header.get("model")
        data = config.data if config is not None else header.get("dataset")
        files, roots = self.files, self.files.roots
        if files.base is None and model:
            found = resolve(model, roots, model=True)
            files = replace(files, base=found, base_named=model)
        if files.data is None and data:
            found = resolve(data, roots, model=False)
            files = replace(files, data=found, data_named=data)
        self.files = files

    @property
    def name(self) -> str:
        """What the report calls this run: the name of its first path."""
        if not self.files.roots:
            return "run"
        first = self.files.roots[0].resolve()
        return first.name if first.is_dir() else first.stem

    @property
    def evidence(self) -> tuple[EvidenceRecord, ...]:
        """What has been read so far, in the order it was asked for."""
        return tuple(
            EvidenceRecord(one.kind, one.sources)
            for one in self._evidence.values()
            if one is not None and one.kind and one.sources
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the time budget did not allow to be measured, as clauses."""
        said = (getattr(one, "left_out", "") for one in self._evidence.values())
        return tuple(dict.fromkeys(filter(None, said)))

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """Kind and reason of the evidence that was asked for and is lacking."""
        return tuple(
            (kind.kind, reason)
            for kind, reason in self._reasons.items()
            if kind.kind and kind in self._lacking
        )

    @property
    def unreadable(self) -> tuple[InputError, ...]:
        """Files that should have been evidence and could not be read, or not to their end."""
        log = self._evidence.get(TrainingLog)
        cut = log.problems if log is not None else ()
        kept = self.measured.problems if self.measured is not None else ()
        every = (*self.files.problems, *self._errors.values(), *cut, *kept)
        unique = {str(error): error for error in every}
        return tuple(unique.values())

    def get(self, kind: type[T]) -> T | None:
        """The evidence of that kind, read on first use; None where there is none."""
        if self._finding:
            self._made_with[self._finding[-1]][kind] = None
        if kind not in self._evidence:
            asked_before, self.asked_for_models = self.asked_for_models, False
            try:
                self._evidence[kind] = self._read(kind)
            finally:
                if self.asked_for_models:
                    self._of_models.add(kind)
                self.asked_for_models |= asked_before
        if kind in self._of_models:
            self.asked_for_models = True
        value: T | None = self._evidence[kind]
        return value

    def is_known(self, kind: type[Any]) -> bool:
        """Whether it was looked for before, so that `get` answers at once."""
        return kind in self._evidence

    def give(self, evidence: Any) -> None:
        """Have this as the run's evidence of its kind, in place of what would be found."""
        self._evidence[type(evidence)] = evidence

    def why_missing(self, kind: type[Any]) -> str:
        """Why `get(kind)` gave None."""
        return self._reasons.get(kind, "it was not asked for")

    def cannot_have(self, kind: type[Any]) -> bool:
        """Whether a run of its kind has no such evidence, so that nothing is lacking."""
        return kind in self._impossible

    def _read(self, kind: type[Any]) -> Any:
        find = getattr(kind, "find", None)
        if find is None:
            raise TypeError(f"{kind.__name__} is not a kind of evidence: it has no `find`")
        try:
            kept = self.measured.take(kind, self) if self.measured is not None else None
            return kept if kept is not None else self._found(kind)
        except Missing as reason:
            self._failures[kind] = reason
            self._reasons[kind] = str(reason)
            if isinstance(reason, NoSuchThing):
                self._impossible.add(kind)
            elif not isinstance(reason, NotThere):
                self._lacking.add(kind)
        except InputError as error:
            self._failures[kind] = error
            self._reasons[kind] = str(error)
            self._errors[kind] = error
            self._lacking.add(kind)
        except (TimeLimitExceeded, MemoryError) as error:
            # Remembered, so that the next check does not spend as much on it in vain.
            out_of_memory = isinstance(error, MemoryError)
            problem = "needed more memory than there is" if out_of_memory else str(error)
            self._evidence[kind] = None
            self._reasons[kind] = f"reading it {problem}"
            self._lacking.add(kind)
            raise
        return None

    def _found(self, kind: type[Any]) -> Any:
        """The evidence of a kind as it finds itself; what that is made with is noted."""
        self._finding.append(kind)
        self._made_with[kind] = {}
        try:
            with Stage(f"examining the {kind.kind or _spelled(kind.__name__)}"):
                value = kind.find(self)
        finally:
            self._finding.pop()
            is_measured = any(
                getattr(one, "is_models", False) and self._evidence.get(one) is not None
                for one in self._made_with[kind]
            )
            if is_measured:
                self._measured_now[kind] = None
        if is_measured and self.measured is not None:
            return self.measured.remembering(value, self)
        return value

    def made_with(self, kind: type[Any]) -> tuple[type[Any], ...]:
        """The other kinds of evidence that one was made with, near and far."""
        found: dict[type[Any], None] = {}
        waiting = [kind]
        while waiting:
            new = [one for one in self._made_with.get(waiting.pop(), ()) if one not in found]
            found |= dict.fromkeys(new)
            waiting += new
        return tuple(found)

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Write what models measure meanwhile into the file that was named for it, if one was.

        However it ends: what was measured until then is kept.
        """
        try:
            yield
        finally:
            if self.measured is not None:
                try:
                    self._keep(self.measured)
                except InputError as error:
                    # What took so long to measure is reported all the same.
                    self.measured.problems.append(error)

    def _keep(self, file: MeasuredFile) -> None:
        known = {
            kind: self._evidence.get(kind) or self._failures.get(kind)
            for kind in self._measured_now
        }
        file.write({kind: one for kind, one in known.items() if one is not None}, self)
        self._measured_now.clear()

    def need(self, kind: type[T]) -> T:
        """As `get`, for evidence that builds on other evidence.

        Raises:
            Missing: there is none; the reason is passed on.
        """
        value = self.get(kind)
        if value is None:
            why = self.why_missing(kind)
            raise NoSuchThing(why) if self.cannot_have(kind) else Missing(why)
        return value

    def other(self, path: Path) -> Run:
        """The run in another folder, of which no model is run."""
        return Run.discover([path], allow_model=False)


def _spelled(name: str) -> str:
    """`LoadedModels` as "loaded models"."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()


def _without(known: Mapping[type[Any], T], kinds: Collection[type[Any]]) -> dict[type[Any], T]:
    return {kind: one for kind, one in known.items() if kind not in kinds}
