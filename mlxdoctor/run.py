"""A run: its paths, what the user said of it, and the evidence in it, read on first use."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.discovery import discover
from mlxdoctor.evidence.kind import Missing, NoSuchThing, NotThere, Progress
from mlxdoctor.evidence.options import Options
from mlxdoctor.evidence.other_runs import PlannedRun
from mlxdoctor.evidence.run_files import RunFiles, resolve, resolve_file
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.evidence.tuned_model import TunedModel
from mlxdoctor.measure.weights.changed_tensors import may_be_fused
from mlxdoctor.report import FileRead, MissingEvidence
from mlxdoctor.safety.errors import InputError, is_out_of_memory
from mlxdoctor.safety.limits import TimeLimitExceeded
from mlxdoctor.safety.stages import Stage
from mlxdoctor.safety.time_budget import TimeBudget

T = TypeVar("T")
#: Names that trainers and their users give to the folder of every run.
EVERYBODYS = frozenset({"adapters", "adapter", "output", "outputs", "checkpoints"})
#: What reading one kind of evidence came to: the evidence, or why there is none.
_Read = tuple[Any, Missing | InputError | None]


@dataclass(frozen=True)
class Run:
    """What one fine-tune left behind.

    Every kind of evidence is read once, when a check first asks for it, and remembered. A file
    that can't be read is listed in `unreadable` and counts as missing.

    Attributes:
        files: which file is which kind of evidence.
        options: what the user said.
        progress: to be told about work that takes seconds.
        budget: how long models may run.
    """

    files: RunFiles
    options: Options = field(default_factory=Options)
    progress: Progress | None = None
    budget: TimeBudget = field(default_factory=TimeBudget)
    _cache: dict[type[Any], _Read] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def discover(
        cls,
        paths: Iterable[Path],
        options: Options | None = None,
        *,
        progress: Progress | None = None,
        **changes: Any,
    ) -> "Run":
        """The run in `paths`, its folder or any of its files; `changes` are fields of `options`.

        Raises:
            InputError: a path does not exist, or nothing in it is evidence.
        """
        options = replace(options or Options(), **changes)
        files = discover(paths, options)
        return cls(files, options, progress, budget=TimeBudget(options.budget))._followed()

    @classmethod
    def planned(
        cls,
        config: TrainingConfig,
        options: Options | None = None,
        progress: Progress | None = None,
    ) -> "Run":
        """The run that a configuration describes and that was not begun."""
        options = options or Options(allow_model=False)
        files = RunFiles((config.path,), config=config.path, base=options.base, data=options.data)
        run = cls(files, options, progress, budget=TimeBudget(options.budget))
        return run.having(config, PlannedRun(config))._followed()

    def _followed(self) -> "Run":
        """The run with base and data looked up where its configuration or log names them."""
        config = self.get(TrainingConfig)
        log = self.get(TrainingLog) if config is None else None
        header = log.notes.header if log is not None else {}
        stated = resolve_file(header.get("configuration", ""), self.files.roots)
        if stated is not None and self.files.config is None:
            read = {TrainingLog: self._cache[TrainingLog]}
            files = replace(self.files, config=stated)
            return replace(self, files=files, _cache=read)._followed()
        model = config.model if config is not None else header.get("model")
        data = config.data if config is not None else header.get("dataset")
        files, roots = self.files, self.files.roots
        if files.base is None and model:
            files = replace(files, base=resolve(model, roots, model=True), base_named=model)
        if files.tuned and not self._may_be_fused(files.tuned, files):
            files = replace(files, tuned=None)
        if data and self.options.data is None:
            named = resolve(data, roots, model=False)
            # Of several data folders of a run, the one that it was made with.
            folders = [root.resolve() for root in roots]
            is_own = named is not None and any(map(named.resolve().is_relative_to, folders))
            if files.data is None or is_own:
                files = replace(files, data=named, data_named=data)
        return replace(self, files=files)

    def _may_be_fused(self, tuned: Path, files: RunFiles) -> bool:
        """Whether a model in the run's folder may be this run's, and not that of a teacher, say."""
        # A base that lies in the run's own folder is no model that the run left.
        if files.base and tuned.resolve() == files.base.resolve():
            return False
        run = replace(self, files=files)
        adapter, config, base = run.get(Adapter), run.get(TrainingConfig), run.get(BaseModel)
        if adapter is None or config is None or base is None or tuned in files.roots:
            return True
        try:
            return may_be_fused(adapter, config, base, TunedModel.read(tuned))
        except InputError:
            # What can't be read is told where it is asked for.
            return True

    def having(self, *evidence: Any) -> "Run":
        """The run with these pieces of evidence, each in place of what would be found of its kind.

        What was read before stays read.
        """
        pieces: dict[type[Any], _Read] = {type(piece): (piece, None) for piece in evidence}
        return replace(self, _cache=self._cache | pieces)

    @property
    def is_planned(self) -> bool:
        """Whether the run has not begun."""
        return self.get(PlannedRun) is not None

    @property
    def name(self) -> str:
        """What the report calls this run: the name of its first path.

        Where trainers call all of theirs so, with that of the folder that it lies in.
        """
        if not self.files.roots:
            return "run"
        first = self.files.roots[0].resolve()
        if first.is_dir() and first.name in EVERYBODYS and first.parent.name:
            return f"{first.parent.name}-{first.name}"
        return first.name if first.is_dir() else first.stem

    @property
    def evidence(self) -> tuple[FileRead, ...]:
        """The files that have been read so far, in the order in which they were asked for."""
        return tuple(
            FileRead(value.kind, str(source.path), source.sha256, source.note)
            for value in self._values
            for source in (value.sources if value.kind else ())
        )

    @property
    def left_out(self) -> tuple[str, ...]:
        """What the time budget did not allow to be measured, as clauses."""
        clauses = (getattr(value, "left_out", "") for value in self._values)
        return tuple(dict.fromkeys(filter(None, clauses)))

    @property
    def missing(self) -> tuple[MissingEvidence, ...]:
        """The evidence that was asked for and is lacking."""
        return tuple(
            MissingEvidence(kind.kind, str(problem))
            for kind, (_, problem) in self._cache.items()
            if problem is not None and not isinstance(problem, NotThere) and kind.kind
        )

    @property
    def unreadable(self) -> tuple[InputError, ...]:
        """Files that should have been evidence and could not be read, or not to their end."""
        errors = [error for _, error in self._cache.values() if isinstance(error, InputError)]
        log, _ = self._cache.get(TrainingLog, (None, None))
        every = (*self.files.problems, *errors, *(log.notes.problems if log is not None else ()))
        return tuple({str(error): error for error in every}.values())

    @property
    def _values(self) -> list[Any]:
        return [value for value, _ in self._cache.values() if value is not None]

    def get(self, kind: type[T]) -> T | None:
        """The evidence of that kind, read on first use; None where there is none."""
        if kind not in self._cache:
            self._cache[kind] = self._read(kind)
        value: T | None = self._cache[kind][0]
        return value

    def need(self, kind: type[T]) -> T:
        """As `get`, for evidence that builds on other evidence.

        Raises:
            Missing: there is none; the reason is passed on.
        """
        value = self.get(kind)
        if value is None:
            # Of a run of its kind that has no such evidence nothing is lacking.
            problem = self._cache[kind][1]
            raise (NoSuchThing if isinstance(problem, NoSuchThing) else Missing)(str(problem))
        return value

    def other(self, path: Path) -> "Run":
        """The run in another folder, of which no model is run."""
        return Run.discover([path], allow_model=False)

    def _read(self, kind: type[Any]) -> _Read:
        find = getattr(kind, "find", None)
        if find is None:
            raise TypeError(f"{kind.__name__} is not a kind of evidence: it has no `find`")
        # `LoadedModels` as "loaded models".
        spelled = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.__name__).lower()
        try:
            with Stage(f"examining the {kind.kind or spelled}"):
                return find(self), None
        except (Missing, InputError) as problem:
            # Without the frames that it was raised in, which hold what was read.
            return None, problem.with_traceback(None)
        except (TimeLimitExceeded, MemoryError, RuntimeError) as error:
            out_of_memory = is_out_of_memory(error)
            if isinstance(error, RuntimeError) and not out_of_memory:
                raise
            # Remembered, so that the next check does not spend as much on it in vain.
            why = "needed more memory than there is" if out_of_memory else str(error)
            self._cache[kind] = None, Missing(f"reading it {why}")
            if out_of_memory:
                raise MemoryError(str(error)) from None
            raise
