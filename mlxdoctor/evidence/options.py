"""What a user may say of a run beside its paths: one value, from the command line to the checks."""

from dataclasses import dataclass
from pathlib import Path

#: Why nothing of the models is known where nobody wanted them run.
NOT_ASKED = "no model was run, because of --no-generate"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a user may say of a run beside its paths.

    Attributes:
        base: the base model's folder, where the run does not name it.
        adapter: the adapter, where it lies elsewhere.
        log: training logs, where they lie elsewhere.
        data: the data folder, where the run does not name it.
        generations: recorded answers; none are produced then.
        allow_model: run base and tuned model where both are at hand.
        replay: compute again what the run recorded, and train a few steps, where its models are
            run; None does so where the cause is not clear without.
        budget: seconds after which no more rows and prompts are given to models; the report
            says what was left out. None measures all of them.
        score: `FILE:FUNCTION`, a user's own score of an answer. Runs that code.
        trainer: `FILE:FUNCTION` that returns the parts of a user's own trainer, for a
            training step to be measured. Runs that code.
        select: names or codes of checks: only these.
        ignore: names or codes of checks: not these.
        with_text: let the report quote training rows and outputs.
    """

    base: Path | None = None
    adapter: Path | None = None
    log: tuple[Path, ...] = ()
    data: Path | None = None
    generations: Path | None = None
    allow_model: bool = True
    replay: bool | None = None
    budget: float | None = None
    score: str | None = None
    trainer: str | None = None
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    with_text: bool = True

    def __post_init__(self) -> None:
        # People write paths as text, and several of a thing as a list.
        for name in ("base", "adapter", "data", "generations"):
            if (path := getattr(self, name)) is not None:
                object.__setattr__(self, name, Path(path))
        object.__setattr__(self, "log", tuple(map(Path, self.log)))
        object.__setattr__(self, "select", tuple(self.select))
        object.__setattr__(self, "ignore", tuple(self.ignore))

    @property
    def paths(self) -> dict[str, Path]:
        """The evidence that was named by an option: option -> path."""
        names = ("base", "adapter", "data", "generations")
        return {name: path for name in names if (path := getattr(self, name)) is not None}
