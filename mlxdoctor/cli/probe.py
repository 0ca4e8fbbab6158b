"""`mlxdoctor probe`: what one training step of a user's own trainer does."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, EXIT_INCONCLUSIVE, options, output
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.formats.escape import terminal

if TYPE_CHECKING:
    from mlxdoctor.finding import Outcome
    from mlxdoctor.measure.training_step.measurement import TrainingStep
    from mlxdoctor.probe.probing import ProbeResult

_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


@click.command(name="probe", short_help="See what one training step of your trainer really does.")
@click.argument("function", metavar="FILE:FUNCTION")
@click.option("--steps", type=click.IntRange(min=1), default=2, show_default=True)
@options.printed("text", "json")
@options.fails_on()
def command(function: str, steps: int, output_format: str, fail_on: str) -> int:
    """Make a training step with your own model, loss and batch, and measure it.

    FUNCTION takes no arguments and returns (model, loss_fn, batch), then, if you like,
    an optimizer, a tokenizer and your own step function; or a dict with the names
    model, loss_fn, batch, optimizer, tokenizer, step. This runs code from FILE.

    \b
    Examples:
      mlxdoctor probe trainer.py:parts
      mlxdoctor probe trainer.py:parts --format json | jq .findings
      mlxdoctor diagnose RUN --trainer trainer.py:parts
    """
    from mlxdoctor.measure.training_step.measurement import measure
    from mlxdoctor.measure.training_step.trainer import load_trainer
    from mlxdoctor.probe.probing import cost_of, judge

    trainer, sources = load_trainer(function)
    click.echo(cost_of(trainer.model, steps), err=True)
    with ProgressLine() as progress:
        measured = measure(trainer, steps=steps, sources=sources, progress=progress)
    result = judge(measured)
    if output_format == "json":
        from mlxdoctor.formats import json_format

        click.echo(json_format.render(result.to_dict()), nl=False)
    else:
        click.echo(_text(function, result), nl=False)
    return _exit_code(result, fail_on)


def _exit_code(result: ProbeResult, fail_on: str) -> int:
    if options.fails(result.findings, fail_on):
        return EXIT_FOUND
    looked = all(one.status.value in {"passed", "found"} for one in result.outcomes)
    return EXIT_CLEAN if looked else EXIT_INCONCLUSIVE


def _text(name: str, result: ProbeResult) -> str:
    columns = min(max(output.width(), 40), 100)
    errors = sum(one.severity.value == "error" for one in result.findings)
    title = f"{terminal(name)}: " + (
        "the training step is sound"
        if not errors
        else f"{errors} thing{'s' if errors > 1 else ''} wrong with the training step"
    )
    lines = [output.style(title, "red" if errors else "green", True), ""]
    for outcome in result.outcomes:
        lines += _phase(outcome, result.measured, columns)
    lines += ["", f"{result.measured.seconds:.1f} s; the model was put back as it was."]
    return "\n".join(lines) + "\n"


def _phase(outcome: Outcome, measured: TrainingStep, columns: int) -> list[str]:
    status = outcome.status.value
    mark, colour = {"passed": ("ok", "green"), "found": ("found", "yellow")}.get(
        status, (status, "yellow")
    )
    if any(one.severity.value == "error" for one in outcome.findings):
        mark, colour = "wrong", "red"
    facts = _FACTS[outcome.check](measured) if outcome.check in _FACTS else ""
    title = outcome.check.removeprefix("step-").capitalize()
    head = output.style(f"{title:<10} {mark:<12}", colour, True)
    lines = [f"{head} {facts if facts else terminal(outcome.reason)}"]
    for finding in outcome.findings:
        for text, first in (
            (f"{finding.message} [{finding.code}]", "  - "),
            (f"Fix: {finding.fix}.", "    "),
        ):
            wrapped = textwrap.wrap(
                terminal(text), columns, initial_indent=first, subsequent_indent="    "
            )
            colour = _COLOURS[finding.severity.value]
            lines += [
                output.style(one, colour, False) if first == "  - " else one for one in wrapped
            ]
    return lines


def _state(measured: TrainingStep) -> str:
    state = measured.state
    few = sum(state.trainable.values())
    return (
        f"{len(state.adapters)} adapters; {few:,} of {few + sum(state.frozen.values()):,} "
        f"parameters trainable ({state.ratio:.2%})"
    )


def _forward(measured: TrainingStep) -> str:
    forward = measured.forward
    if forward is None:
        return ""
    parts = [f"loss {forward.loss:.3f}"]
    if forward.without_adapter is not None:
        parts.append(f"base {forward.without_adapter:.3f}")
    if forward.uniform is not None:
        parts.append(f"uniform guess {forward.uniform:.3f}")
    return ", ".join(parts) + (f"; {forward.dtype} logits" if forward.dtype else "")


def _alignment(measured: TrainingStep) -> str:
    alignment = measured.alignment
    if alignment is None:
        return ""
    rows, places = alignment.inputs.shape
    return f"{int(alignment.trained.sum())} of {rows} x {places} positions trained" + (
        f", {alignment.hard:.0%} on one token each" if alignment.trained.any() else ""
    )


def _gradients(measured: TrainingStep) -> str:
    update = measured.update
    if update is None:
        return ""
    known = [one.gradient_norm for one in update.parameters if one.gradient_norm is not None]
    total = sum(norm**2 for norm in known) ** 0.5
    return f"norm {total:.3g} over {len(known)} parameters"


def _update(measured: TrainingStep) -> str:
    update = measured.update
    if update is None:
        return ""
    changed = sum(one.change != 0 for one in update.parameters)
    losses = " -> ".join(f"{one:.3f}" for one in update.losses)
    whose = "of your own" if update.own else f"of {update.optimizer}"
    return (
        f"{update.steps} steps {whose}: {changed} of {len(update.parameters)} parameters changed, "
        f"loss {losses}"
    )


_FACTS: dict[str, Any] = {
    "step-state": _state,
    "step-forward": _forward,
    "step-alignment": _alignment,
    "step-gradients": _gradients,
    "step-update": _update,
}
