"""Run: a folder, or loose files, and the evidence in it, read on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mlxdoctor.discovery import RunFiles, discover, resolve
from mlxdoctor.errors import InputError
from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.base_model import BaseModel
from mlxdoctor.evidence.checkpoints import CheckpointHistory
from mlxdoctor.evidence.config import TrainingConfig
from mlxdoctor.evidence.dataset import Dataset
from mlxdoctor.evidence.environment import Environment
from mlxdoctor.evidence.generations import Generations
from mlxdoctor.evidence.metrics import ReportedMetrics
from mlxdoctor.evidence.reference import ReferenceRun
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.supervision import build as build_supervised_rows
from mlxdoctor.evidence.token_losses import TokenLosses
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.evidence.tuned_model import TunedModel

if TYPE_CHECKING:
    from mlxdoctor.models import LoadedModels

T = TypeVar("T")
#: Called with what is being done, a count done and a total; draws progress.
Progress = Callable[[str, int, int], None]


class Missing(Exception):  # noqa: N818 - an answer, not an error
    """Raised by a reader when the run left no such evidence; the reason is a clause."""


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
        progress: Progress | None = None,
    ) -> None:
        self.files = files
        self.against = against
        self.score = score
        self.allow_model = allow_model
        self.progress = progress
        self._evidence: dict[type[Any], Any] = {}
        self._reasons: dict[type[Any], str] = {}
        self._errors: dict[type[Any], InputError] = {}

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
        progress: Progress | None = None,
    ) -> Run:
        """The run in `paths`; options name evidence that lies elsewhere.

        Raises:
            InputError: a path does not exist, or nothing in it is evidence.
        """
        files = discover(
            paths, base=base, adapter=adapter, log=log, data=data, generations=generations
        )
        run = cls(files, against=against, allow_model=allow_model, score=score, progress=progress)
        return run._followed()

    def _followed(self) -> Run:
        """The run with base and data looked up where the configuration names them."""
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
        return self

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
            if one is not None and one.sources
        )

    @property
    def missing(self) -> tuple[tuple[str, str], ...]:
        """Kind and reason of the evidence that was asked for and not there."""
        return tuple((kind.kind, reason) for kind, reason in self._reasons.items())

    @property
    def unreadable(self) -> tuple[InputError, ...]:
        """Files that should have been evidence and could not be read."""
        unique = {str(error): error for error in self._errors.values()}
        return tuple(unique.values())

    def get(self, kind: type[T]) -> T | None:
        """The evidence of that kind, read on first use; None where there is none."""
        if kind not in self._evidence:
            self._evidence[kind] = self._read(kind)
        value: T | None = self._evidence[kind]
        return value

    def why_missing(self, kind: type[Any]) -> str:
        """Why `get(kind)` gave None."""
        return self._reasons.get(kind, "it was not asked for")

    def _read(self, kind: type[Any]) -> Any:
        reader = _READERS.get(kind)
        if reader is None:
            raise TypeError(f"{kind.__name__} is not a kind of evidence")
        try:
            return reader(self)
        except Missing as reason:
            self._reasons[kind] = str(reason)
        except InputError as error:
            self._reasons[kind] = str(error)
            self._errors[kind] = error
        return None

    @cached_property
    def models(self) -> LoadedModels:
        """The base and the tuned model, loaded into memory with MLX.

        Raises:
            Missing: models may not be run, or there is no pair of them.
            InputError: a model can't be loaded.
        """
        if not self.allow_model:
            raise Missing("no model was run, because of --no-generate")
        base = self.need(BaseModel)
        tuned = self.files.tuned or self.files.adapter
        if tuned is None:
            raise Missing("there is no adapter and no tuned model to compare with the base")
        from mlxdoctor.models import load

        if self.progress is not None:
            self.progress("loading the models", 0, 1)
        return load(base, tuned)

    def need(self, kind: type[T]) -> T:
        """As `get`, for a reader that builds on other evidence.

        Raises:
            Missing: there is none; the reason is passed on.
        """
        value = self.get(kind)
        if value is None:
            raise Missing(self.why_missing(kind))
        return value


def _config(run: Run) -> TrainingConfig:
    if run.files.config is None:
        raise Missing("no adapter_config.json and no training configuration was found")
    return TrainingConfig.read(run.files.config)


def _log(run: Run) -> TrainingLog:
    if not run.files.logs:
        raise Missing("no training log was found; name it with --log")
    return TrainingLog.read(run.files.logs)


def _adapter(run: Run) -> Adapter:
    if run.files.adapter is None:
        raise Missing("no adapter file was found; name it with --adapter")
    return Adapter.read(run.files.adapter)


def _checkpoints(run: Run) -> CheckpointHistory:
    if not run.files.checkpoints:
        raise Missing("no numbered checkpoints were found")
    return CheckpointHistory.read(run.files.checkpoints[0].parent)


def _base(run: Run) -> BaseModel:
    if run.files.base is not None:
        return BaseModel.read(run.files.base)
    if run.files.base_named is not None:
        raise Missing(
            f"the base model {run.files.base_named!r} is not on this machine; "
            "name its folder with --base"
        )
    raise Missing("nothing names the base model; name its folder with --base")


def _tuned(run: Run) -> TunedModel:
    if run.files.tuned is not None:
        return TunedModel.read(run.files.tuned)
    adapter = run.need(Adapter)
    if adapter.modules or not adapter.others:
        raise Missing("no fused model and no full fine-tune was found")
    return TunedModel.read(adapter.path)


def _tokenizer(run: Run) -> Tokenizer:
    folder = run.files.base or run.files.tuned
    if folder is None:
        raise Missing(f"no tokenizer: {_reason(run, BaseModel)}")
    return Tokenizer.read(folder)


def _dataset(run: Run) -> Dataset:
    if run.files.data is not None:
        return Dataset.read(run.files.data)
    if run.files.data_named is not None:
        raise Missing(
            f"the data {run.files.data_named!r} is not on this machine; name its folder with --data"
        )
    raise Missing("nothing names the training data; name its folder with --data")


def _supervised_rows(run: Run) -> SupervisedRows:
    dataset = run.need(Dataset)
    split = "train" if "train" in dataset.splits else next(iter(dataset.splits))
    return build_supervised_rows(dataset, run.need(Tokenizer), run.get(TrainingConfig), split=split)


def _generations(run: Run) -> Generations:
    recorded = run.files.generations
    if recorded is not None and (run.files.generations_named or not run.allow_model):
        return Generations.read(recorded)
    try:
        return _produced(run)
    except (Missing, InputError):
        # What the user recorded is second best: it may have been made in another way.
        if recorded is None:
            raise
        return Generations.read(recorded)


def _produced(run: Run) -> Generations:
    from mlxdoctor.generate import produce, prompts_for

    tokenizer, models = run.need(Tokenizer), run.models
    prompts = prompts_for(run.get(Dataset), tokenizer)
    return produce(models, tokenizer, prompts, progress=run.progress)


def _token_losses(run: Run) -> TokenLosses:
    from mlxdoctor.forward import measure

    tokenizer, models = run.need(Tokenizer), run.models
    splits = [run.need(SupervisedRows)]
    dataset = run.need(Dataset)
    if "valid" in dataset.splits and splits[0].split != "valid":
        config = run.get(TrainingConfig)
        splits.append(build_supervised_rows(dataset, tokenizer, config, split="valid"))
    return measure(models, tokenizer, splits, progress=run.progress)


def _metrics(run: Run) -> ReportedMetrics:
    if not run.files.metrics:
        raise Missing("no evaluation result was found")
    return ReportedMetrics.read(run.files.metrics)


def _reference(run: Run) -> ReferenceRun:
    if run.against is None:
        raise Missing("no healthy run was named; name one with --against")
    other = Run.discover([run.against], allow_model=False)
    reference = ReferenceRun(
        other.name, other.get(TrainingConfig), other.get(TrainingLog), other.get(Adapter)
    )
    if not reference.sources:
        raise InputError(run.against, "holds no configuration, log or adapter to compare with")
    return reference


def _environment(run: Run) -> Environment:
    del run
    return Environment.read()


def _reason(run: Run, kind: type[Any]) -> str:
    run.get(kind)
    return run.why_missing(kind)


_READERS: dict[type[Any], Callable[[Run], Any]] = {
    TrainingConfig: _config,
    TrainingLog: _log,
    Adapter: _adapter,
    CheckpointHistory: _checkpoints,
    BaseModel: _base,
    TunedModel: _tuned,
    Tokenizer: _tokenizer,
    Dataset: _dataset,
    SupervisedRows: _supervised_rows,
    Generations: _generations,
    TokenLosses: _token_losses,
    ReportedMetrics: _metrics,
    ReferenceRun: _reference,
    Environment: _environment,
}
