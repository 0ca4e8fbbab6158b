"""Run: a folder, or loose files, and the evidence in it, read on first use."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

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
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.supervision import SupervisedRows
from mlxdoctor.evidence.token_losses import TokenLosses
from mlxdoctor.evidence.tokenizer import Tokenizer
from mlxdoctor.evidence.training_log import TrainingLog
from mlxdoctor.evidence.tuned_model import TunedModel

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
        allow_model: bool = True,
        progress: Progress | None = None,
    ) -> None:
        self.files = files
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
        allow_model: bool = True,
        progress: Progress | None = None,
    ) -> Run:
        """The run in `paths`; options name evidence that lies elsewhere.

        Raises:
            InputError: a path does not exist, or nothing in it is evidence.
        """
        files = discover(
            paths, base=base, adapter=adapter, log=log, data=data, generations=generations
        )
        return cls(files, allow_model=allow_model, progress=progress)._followed()

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
    return CheckpointHistory.read(run.files.checkpoints)


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
    return SupervisedRows.build(
        run.need(Dataset), run.need(Tokenizer), run.get(TrainingConfig), split="train"
    )


def _generations(run: Run) -> Generations:
    if run.files.generations is not None:
        return Generations.read(run.files.generations)
    raise Missing("no recorded generations, and running models is not possible yet")


def _token_losses(run: Run) -> TokenLosses:
    raise Missing("no model was run")


def _metrics(run: Run) -> ReportedMetrics:
    if not run.files.metrics:
        raise Missing("no evaluation result was found")
    return ReportedMetrics.read(run.files.metrics)


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
    Environment: _environment,
}
