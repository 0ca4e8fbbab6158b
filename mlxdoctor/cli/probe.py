"""`mlxdoctor probe`: what one training step of a user's own trainer does."""

import faulthandler
import math
from contextlib import suppress
from dataclasses import replace

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, EXIT_INCONCLUSIVE, options, output
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.formats.escape import terminal
from mlxdoctor.formats.terminal import Page
from mlxdoctor.measure.training_step.calls import require_module
from mlxdoctor.measure.training_step.measurement import STEPS, TrainingStep, measure
from mlxdoctor.measure.training_step.trainer import load_trainer
from mlxdoctor.models.load import count_parameters
from mlxdoctor.probe.probing import ProbeResult, judge

#: So many of the modules with the most trainable parameters are shown.
MODULES = 8
_COLOURS = {"error": "red", "warning": "yellow", "info": "cyan"}


@click.command(name="probe")
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
    function: str, steps: int | None, expect: str | None, printed: str, fail_on: str
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
      mlxdoctor probe trainer.py:parts --stdout json | jq .findings
      mlxdoctor diagnose RUN --trainer trainer.py:parts
    """
    # A signal out of the user's code says at least in which line it came.
    with suppress(OSError, ValueError):
        if not faulthandler.is_enabled():
            faulthandler.enable(all_threads=False)
    steps = STEPS if steps is None else steps
    trainer, sources = load_trainer(function)
    if expect is not None:
        trainer = replace(trainer, expect=expect)
    require_module(trainer.model)
    parameters = sum(sum(part.values()) for part in count_parameters(trainer.model))
    click.echo(
        f"Probing {parameters / 1e6:,.1f}M parameters: {steps} training steps and what {steps + 1} "
        "more would cost (a further one where there are rewards; where the step is your own, one "
        "for each row, and calls up to an update), with the memory of training.",
        err=True,
    )
    with ProgressLine() as progress:
        measured = measure(trainer, steps=steps, sources=sources, progress=progress)
    result = judge(measured)
    output.show(result.to_dict(), _text(function, result), printed)
    if any(finding.severity.reaches(fail_on) for finding in result.findings):
        return EXIT_FOUND
    return EXIT_INCONCLUSIVE if result.unjudged else EXIT_CLEAN


def _text(name: str, result: ProbeResult) -> str:
    page = Page(output.width(), output.style)
    colour = "green" if result.sound else "red" if result.counts["error"] else "yellow"
    facts = _facts(result.measured)
    page.lines += [output.style(f"{terminal(name)}: {result.headline}", colour, True), ""]
    for outcome in result.asked:
        status = outcome.status.value
        mark, colour = ("ok", "green") if status == "passed" else (status, "yellow")
        if any(finding.severity.value == "error" for finding in outcome.findings):
            mark, colour = "wrong", "red"
        title = outcome.check.removeprefix("step-").capitalize()
        head = output.style(f"{title:<12} {mark:<12}", colour, True)
        measured = outcome.reason or facts.get(outcome.check, "")
        page.lines.append(f"{head} {terminal(measured)}")
        for finding in outcome.findings:
            message = f"{finding.message} [{finding.code}]"
            page.paragraph(message, "  - ", _COLOURS[finding.severity.value])
            page.paragraph(f"Fix: {finding.fix}.", "    ")
        if outcome.check == "step-state":
            modules = list(result.measured.state.trainable.items())[:MODULES]
            page.lines += [f"  {count:>15,} in {terminal(name)}" for name, count in modules]
    page.lines += ["", f"{result.measured.seconds:.1f} s; the model was put back as it was."]
    return page.ended()


def _facts(step: TrainingStep) -> dict[str, str]:
    """What was measured, in a line for each check of every training step."""
    state, forward, alignment, update = step.state, step.forward, step.alignment, step.update
    facts = {
        "step-state": f"{len(state.adapters)} adapters; {sum(state.trainable.values()):,} of "
        f"{state.parameters:,} parameters trainable ({state.ratio:.2%})"
    }
    if alignment is not None:
        passes = len(set(alignment.forwards.tolist()))
        facts["step-alignment"] = (
            f"{int(alignment.trained.sum())} of {int(alignment.widths.sum())} positions of "
            f"{len(alignment.inputs)} rows trained, {int((alignment.weights < 0).sum())} made less "
            f"likely, in {passes} forward pass{'es' if passes > 1 else ''}"
        )
    if forward is not None and update is not None:
        norm = math.hypot(*(each.gradient_norm or 0.0 for each in update.parameters))
        changed = sum(each.change != 0 for each in update.parameters)
        guess = "" if forward.uniform is None else f" (a uniform guess {forward.uniform:.3f})"
        facts["step-update"] = (
            f"gradient {norm:.3g}; {update.steps} step{'' if update.steps == 1 else 's'} "
            f"{'of your own' if update.own else f'of {update.optimizer}'}: {changed} of "
            f"{len(update.parameters)} parameters changed, loss "
            + " -> ".join(f"{loss:.3f}" for loss in update.losses)
            + guess
        )
        if update.shares:
            parts = "calls that make one update" if update.calls > 1 else "rows"
            facts["step-update"] += f"; {len(update.shares)} {parts} told apart"
    return facts
