"""The probe as an assertion, for a trainer's own test suite."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from mlxdoctor.finding import Severity
from mlxdoctor.probe import probe
from mlxdoctor.probe.probing import ProbeResult


def assert_training_step_sound(
    model: Any,
    loss_fn: Callable[..., Any],
    batch: Any,
    *,
    optimizer: Any | None = None,
    tokenizer: Any | None = None,
    step: Callable[..., Any] | None = None,
    expect: str | None = None,
    rewards: str | int | Callable[[float], Any] | None = None,
    pairs: tuple[str | int, str | int] | str | None = None,
    allow: Collection[str] = (),
    warnings: bool = False,
) -> ProbeResult:
    """Make a training step and fail where something is wrong with it; see `mlxdoctor.probe`.

        def test_training_step():
            model, loss_fn, batch, optimizer = parts_of_my_trainer()
            assert_training_step_sound(model, loss_fn, batch, optimizer=optimizer)

    Args:
        allow: codes of findings that are meant, such as `step-state.outside-adapter`.
        warnings: whether a warning fails it as well.

    Raises:
        AssertionError: there is a finding, or a phase could not be judged for an error of
            the trainer's; the message says what was measured and what to do.
    """
    result = probe(
        model,
        loss_fn,
        batch,
        optimizer,
        tokenizer,
        step=step,
        expect=expect,
        rewards=rewards,
        pairs=pairs,
    )
    least = Severity.WARNING if warnings else Severity.ERROR
    wrong = [
        one for one in result.findings if one.severity.rank >= least.rank and one.code not in allow
    ]
    if wrong:
        lines = [f"[{one.code}] {one.message} Fix: {one.fix}." for one in wrong]
        raise AssertionError("the training step is not sound:\n" + "\n".join(lines))
    return result
