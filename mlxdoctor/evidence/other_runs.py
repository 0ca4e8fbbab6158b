"""Runs that the examined one has to do with: the plan, the one resumed from."""

from dataclasses import dataclass
from typing import ClassVar, Self

from mlxdoctor.evidence.adapter import Adapter
from mlxdoctor.evidence.config import CONFIG_NAME, TrainingConfig
from mlxdoctor.evidence.kind import Missing, NoSuchThing, NotThere, RunView
from mlxdoctor.evidence.logs.series import Segment
from mlxdoctor.evidence.run_files import iteration_in, resolve_file
from mlxdoctor.evidence.source import Source
from mlxdoctor.evidence.training_log import TrainingLog


@dataclass(frozen=True)
class PlannedRun:
    """A run that has not begun. Only a preflight has one: it is known by that.

    Attributes:
        config: the configuration, options of the command line included.
    """

    kind: ClassVar[str] = ""

    config: TrainingConfig
    #: None of its own: the configuration is listed as that.
    sources: tuple[Source, ...] = ()

    @classmethod
    def find(cls, run: RunView) -> "PlannedRun":
        raise NoSuchThing(f"the run {run.name} was made, and not only planned")


class ResumedAdapter(Adapter):
    """The file that `resume_adapter_file` named, as it is now."""

    kind: ClassVar[str] = "adapter resumed from"

    @classmethod
    def find(cls, run: RunView) -> Self:
        named = run.need(TrainingConfig).resume_adapter_file
        if named is None:
            raise NotThere("the run was not resumed")
        path = resolve_file(named, run.files.roots)
        if path is None:
            raise Missing(f"{named}, which it was resumed from, is not here")
        return cls.read(path)


class ResumedConfig(TrainingConfig):
    """The configuration beside the file that was resumed from."""

    kind: ClassVar[str] = "configuration resumed from"

    @classmethod
    def find(cls, run: RunView) -> Self:
        path = run.need(ResumedAdapter).path.parent / CONFIG_NAME
        own = run.files.config
        if not path.is_file() or (own is not None and path.resolve() == own.resolve()):
            raise Missing("the configuration of the run that was resumed from is not here")
        return cls.read(path)


@dataclass(frozen=True)
class EarlierRun:
    """What the earlier run logged, from the folder of its adapter or from the same log.

    Attributes:
        sources: its log, where that is a file of its own, and its configuration.
        iteration: the checkpoint that was resumed from; None for the final file.
    """

    kind: ClassVar[str] = "run resumed from"

    sources: tuple[Source, ...]
    segment: Segment
    config: TrainingConfig | None
    iteration: int | None

    @classmethod
    def find(cls, run: RunView) -> "EarlierRun":
        path = run.need(ResumedAdapter).path
        iteration = iteration_in(path.name)
        log = run.need(TrainingLog)
        own = {file.parent.resolve() for file in (run.files.config, run.files.adapter) if file}
        other = None if path.parent.resolve() in own else run.other(path.parent)
        beside = other and all(file.parent.samefile(path.parent) for file in other.files.logs)
        earlier = other.get(TrainingLog) if other is not None and beside else None
        config = other.get(TrainingConfig) if other is not None else None
        if earlier is None:
            trained = [segment for segment in log.segments if segment.get("train_loss") is not None]
            if len(trained) < 2:
                raise Missing(f"there is no log of the run that saved {path.name}")
            # Another log that lies here may be that of a run of its own.
            last = int(trained[-2].finite("train_loss").iterations[-1:].max(initial=0))
            most = config.iters if config is not None else None
            if not (iteration or 0) <= last <= (most or last):
                raise Missing(f"no log here has the length of the run that saved {path.name}")
            sources = config.sources if config is not None else ()
            return cls(sources, trained[-2], config, iteration)
        sources = (*earlier.sources, *(config.sources if config is not None else ()))
        return cls(sources, earlier.main, config, iteration)
