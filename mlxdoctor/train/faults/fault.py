"""A fault: one thing that goes wrong with a training run, as a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from mlxdoctor.train.parts import Parts, parts_of
from mlxdoctor.train.settings import Settings

#: (settings, parts, severity) -> the settings and parts of the run that goes wrong.
Apply = Callable[[Settings, Parts, Any], tuple[Settings, Parts]]
#: (the folder the run wrote, its settings, severity): what goes wrong once it is over.
Afterwards = Callable[[Path, Settings, Any], None]


@dataclass(frozen=True)
class Fault:
    """One fault, to be put into a sound run.

    A fault of the settings or of the data changes the settings, so that the run's
    configuration shows it as its owner's would; a fault of the trainer changes the parts,
    and the configuration goes on saying what was meant.

    Attributes:
        id: its name.
        cause: the id of the root cause in `causes.toml`.
        summary: what it does, in one sentence.
        severities: mild to severe; what they mean is said in the summary.
        apply: changes the settings or the parts; writes at most altered data or an altered
            base model, to a folder beside `settings.adapter_path`. None leaves the run as it is.
        afterwards: changes the files that a run wrote; None where nothing is to be done.
        harms: the tuned model; or only what is reported of it, the model being sound.
    """

    id: str
    cause: str
    summary: str
    severities: tuple[Any, ...]
    apply: Apply | None = None
    afterwards: Afterwards | None = None
    harms: Literal["model", "report"] = "model"

    def inject(
        self, settings: Settings, severity: Any = None, parts: Parts | None = None
    ) -> tuple[Settings, Parts]:
        """Settings and parts of a run with this fault, for `train(settings, parts=parts)`.

        Args:
            settings: of a sound run.
            severity: one of `severities`, or another value of their kind; the most severe
                by default.
            parts: of the sound run, where they are not the mode's own.
        """
        parts = parts or parts_of(settings)
        if self.apply is None:
            return settings, parts
        return self.apply(settings, parts, self.severities[-1] if severity is None else severity)

    def finish(self, folder: Path, settings: Settings, severity: Any = None) -> None:
        """Do to the files of a finished run what this fault does, if it does."""
        if self.afterwards is not None:
            chosen = self.severities[-1] if severity is None else severity
            self.afterwards(folder, settings, chosen)


def fault(
    id: str, cause: str, *severities: Any, harms: Literal["model", "report"] = "model"
) -> Callable[[Apply], Fault]:
    """Makes a fault of the function that puts it in, whose docstring is the summary."""

    def made(apply: Apply) -> Fault:
        return Fault(id, cause, summary_of(apply), severities, apply, harms=harms)

    return made


def summary_of(function: Callable[..., Any]) -> str:
    """What a function's docstring says, on one line."""
    return " ".join((function.__doc__ or "").split())


def faults_in(*modules: ModuleType) -> Mapping[str, Fault]:
    """Every fault that stands in one of these modules, by its id."""
    return {
        value.id: value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, Fault)
    }
