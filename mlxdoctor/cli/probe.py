"""`mlxdoctor probe`: what one training step of a user's own trainer does."""

from __future__ import annotations

import sys
import textwrap
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any

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
@click.option("--steps", type=click.IntRange(min=1), help="Training steps to make; 5 by default.")
@click.option(
    "--expect",
    type=click.Choice(["lora", "dora", "full"]),
    help="What is meant to be trained; an adapter where the model has one.",
)
@options.printed("text", "json")
@options.fails_on()
def command(
    function: str, steps: int | None, expect: str | None, output_format: str, fail_on: str
) -> int:
    """Make training steps with your own model, loss and batch, and measure them.

    FUNCTION takes no arguments and returns (model, loss_fn, batch), then, if you like,
    an optimizer, a tokenizer and your own step function; or a dict with the names
    model, loss_fn, batch, optimizer, tokenizer, step, and expect ("lora", "dora" or
    "full"), rewards (their name in the batch), pairs (the names of chosen and rejected
    tokens). This runs code from FILE.

    \b
    Examples:
      mlxdoctor probe trainer.py:parts
      mlxdoctor probe trainer.py:parts --expect lora
      mlxdoctor probe trainer.py:parts --format json | jq .findings
      mlxdoctor diagnose RUN --trainer trainer.py:parts
    """
    import faulthandler

    from mlxdoctor.measure.training_step.measurement import STEPS, measure
    from mlxdoctor.measure.training_step.trainer import load_trainer
    from mlxdoctor.probe.probing import cost_of, judge

    # A signal out of the user's code says at least in which line it came.
    if not faulthandler.is_enabled() and _has_descriptor(sys.stderr):
        faulthandler.enable(all_threads=False)
    steps = STEPS if steps is None else steps
    trainer, sources = load_trainer(function)
    if expect is not None:
        trainer = replace(trainer, expect=expect)
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


def _has_descriptor(stream: IO[str]) -> bool:
    try:
        stream.fileno()
    except (OSError, ValueError):
        return False
    return True


def _exit_code(result: ProbeResult, fail_on: str) -> int:
    if options.fails(result.findings, fail_on):
        return EXIT_FOUND
    return EXIT_INCONCLUSIVE if result.unjudged else EXIT_CLEAN


def _text(name: str, result: ProbeResult) -> str:
    columns = min(max(output.width(), 40), 100)
    colour = "green" if result.sound else "red" if result.counts["error"] else "yellow"
    lines = [output.style(f"{terminal(name)}: {result.headline}", colour, True), ""]
    for outcome in result.asked:
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
    lines = [f"{head} {facts if facts and not outcome.reason else terminal(outcome.reason)}"]
    if outcome.check == "step-state":
        lines += _components(measured)
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
        frames = finding.measured.get("frames")
        if isinstance(frames, tuple):
            lines += [f"      {terminal(str(one))}" for one in frames]
    return lines


def _components(measured: TrainingStep) -> list[str]:
    """Trainable parameters by component."""
    return [
        f"  {name:<12} {of:>15,} of {every:>15,} trainable"
        for name, (of, every) in measured.state.components.items()
    ]


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
    passes = len(set(alignment.forwards.tolist()))
    trained, less = int(alignment.trained.sum()), int((alignment.weights < 0).sum())
    text = f"{trained} of {alignment.places} positions trained"
    if trained:
        text += f", {alignment.hard:.0%} on one token each"
    if less:
        text += f", {less} made less likely"
    return text + (f"; {passes} forward passes" if passes > 1 else "")


def _inputs(measured: TrainingStep) -> str:
    alignment = measured.alignment
    if alignment is None:
        return ""
    packed = sum(bool(one) for one in alignment.starts)
    return f"{len(alignment.inputs)} rows, {packed} of them packed"


def _pairs(measured: TrainingStep) -> str:
    pairs, alignment = measured.pairs, measured.alignment
    if pairs is None or alignment is None:
        return ""
    up, down = (int((alignment.pushes[pairs.roles == role] * role > 0).sum()) for role in (1, -1))
    of_up, of_down = (int((pairs.roles == role).sum()) for role in (1, -1))
    return (
        f"{up} of {of_up} rows of {terminal(pairs.names[0])} made more likely, "
        f"{down} of {of_down} of {terminal(pairs.names[1])} less"
    )


def _rewards(measured: TrainingStep) -> str:
    policy = measured.policy
    if policy is None:
        return ""
    turned = int((policy.pushes * policy.reversed < 0).sum())
    rows, name = len(policy.pushes), terminal(policy.name)
    return f"{turned} of {rows} rows turn round when {name} are reversed"


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
    "step-inputs": _inputs,
    "step-alignment": _alignment,
    "step-pairs": _pairs,
    "step-rewards": _rewards,
    "step-gradients": _gradients,
    "step-update": _update,
}
