"""The option `--limit`, which every command that reads files has."""

from __future__ import annotations

import click

from mlxdoctor.safety.reading_limits import using

#: Commands that read no file of a user's.
WITHOUT = frozenset({"checks", "explain"})


def with_limit(command: click.Command) -> click.Command:
    """The command, with the option that raises a limit on what is read."""
    if command.name not in WITHOUT and all(one.name != "limit" for one in command.params):
        command.params.append(_OPTION)
    return command


def _set(context: click.Context, _: click.Parameter, values: tuple[str, ...]) -> None:
    if values and not context.resilient_parsing:
        context.with_resource(using(values))


_OPTION = click.Option(
    ["--limit"],
    multiple=True,
    expose_value=False,
    is_eager=True,
    callback=_set,
    metavar="NAME=VALUE",
    help="Raise a limit on what is read, such as text_bytes=1G. Errors name the limit; "
    "an unknown name lists them all.",
)
