"""Options that several commands have: each means and accepts the same in all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from mlxdoctor.finding import Severity
from mlxdoctor.safety.reading_limits import using

F = TypeVar("F", bound=Callable[..., Any])

PATH = click.Path(path_type=Path)
no_text = click.option(
    "--no-text", is_flag=True, help="Show no training row and no output; figures stay."
)
no_generate = click.option(
    "--no-generate", is_flag=True, help="Run no model, even if base and adapter are here."
)
data = click.option("--data", type=PATH, help="Folder with train.jsonl and valid.jsonl.")
#: Commands that read no file of a user's.
WITHOUT_LIMIT = frozenset({"checks", "explain"})


def printed(*formats: str, default: str | None = "text") -> Callable[[F], F]:
    """`--stdout`: what is printed; `--format` says what is written into files."""
    return click.option(
        "--stdout",
        "printed",
        type=click.Choice(formats),
        default=default,
        show_default=default is not None,
        help="Print this format." if default else "Print this format and write nothing.",
    )


def written(names: Sequence[str], default: tuple[str, ...] = ()) -> Callable[[F], F]:
    """`--format` of a command that writes: what goes into the files below `--output`."""
    return click.option(
        "--format",
        "names",
        type=click.Choice(names),
        multiple=True,
        default=default,
        show_default=bool(default),
        help="What to write. Repeatable.",
    )


def fails_on(default: str = "error") -> Callable[[F], F]:
    """`--fail-on`: the least severity that makes the exit code 1."""
    return click.option(
        "--fail-on",
        type=click.Choice([*(severity.value for severity in reversed(Severity)), "never"]),
        default=default,
        show_default=True,
        help="The least finding that makes the exit code 1.",
    )


def reported(command: F) -> F:
    """`--format`, `--output`, `--stdout` and `--no-text` of a command that writes a report."""
    from mlxdoctor.formats.format import formats

    shown = [each for each in formats().values() if each.report is not None]
    for option in (
        no_text,
        printed(*(each.name for each in shown), default=None),
        output_folder("The report goes into a folder in here that has the run's name."),
        written([each.name for each in shown if each.suffix], ("markdown",)),
    ):
        command = option(command)
    return command


def base_model(
    text: str = "Folder of the base model, if the run does not name it.", **more: Any
) -> Callable[[F], F]:
    """`--base`, or `--model` as mlx-lm calls it."""
    return click.option("--base", "--model", "base", type=PATH, help=text, **more)


def output_folder(text: str, default: Path | None = Path("reports")) -> Callable[[F], F]:
    """`-o`: the folder that is written."""
    return click.option(
        "-o", "--output", "folder", type=PATH, default=default, show_default=True, help=text
    )


def with_limit(command: click.Command) -> click.Command:
    """The command with `--limit`, added once, as one process may load a command repeatedly."""
    if command.name not in WITHOUT_LIMIT and _LIMIT not in command.params:
        command.params.append(_LIMIT)
    return command


def _use(context: click.Context, _: click.Parameter, values: tuple[str, ...]) -> None:
    if values and not context.resilient_parsing:
        context.with_resource(using(values))


_LIMIT = click.Option(
    ["--limit"],
    multiple=True,
    expose_value=False,
    is_eager=True,
    callback=_use,
    metavar="NAME=VALUE",
    help="Raise a limit on what is read, such as text_bytes=1G. Errors name the limit; "
    "an unknown name lists them all.",
)
