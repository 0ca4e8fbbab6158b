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
    allow: Collection[str] = (),
    warnings: bool = False,
    **more: Any,
) -> ProbeResult:
    """Make a training step and fail where something is wrong with it.

        def test_training_step():
            model, loss_fn, batch, optimizer = parts_of_my_trainer()
            assert_training_step_sound(model, loss_fn, batch, optimizer=optimizer)

    Args:
        allow: codes of findings that are meant, such as `step-state.outside-adapter`.
        warnings: whether a warning fails it as well.
        more: what `mlxdoctor.probe` takes besides: optimizer, tokenizer, step, expect,
            rewards, pairs, steps.

    Raises:
        AssertionError: there is such a finding; the message says what was measured and what
            to do.
    """
    result = probe(model, loss_fn, batch, **more)
    least = Severity.WARNING if warnings else Severity.ERROR
    lines = [
        f"[{finding.code}] {finding.message} Fix: {finding.fix}."
        for finding in result.findings
        if finding.severity.rank >= least.rank and finding.code not in allow
    ]
    if lines:
        raise AssertionError("the training step is not sound:\n" + "\n".join(lines))
    return result
