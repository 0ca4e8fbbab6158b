"""Options that several commands have mean and accept the same in all of them."""

import click

from mlxdoctor.cli import COMMANDS, group


def commands_with(flag: str) -> dict[str, click.Option]:
    context = click.Context(group)
    found = {}
    for name in COMMANDS:
        command = group.get_command(context, name)
        for one in command.params:
            if isinstance(one, click.Option) and flag in one.opts:
                found[name] = one
    return found


def choices(option: click.Option) -> set[str]:
    assert isinstance(option.type, click.Choice)
    return set(option.type.choices)


def test_fail_on_accepts_the_same_everywhere() -> None:
    accepted = {frozenset(choices(one)) for one in commands_with("--fail-on").values()}
    assert accepted == {frozenset({"error", "warning", "info", "never"})}


def test_the_plain_format_is_text_wherever_something_is_printed() -> None:
    printing = commands_with("--stdout")
    assert {"diagnose", "gate", "reproduce", "lint", "probe", "labels", "inspect", "checks"} <= set(
        printing
    )
    for name, one in printing.items():
        assert "text" in choices(one), name
        assert choices(one).isdisjoint({"terminal", "table", "plain"}), name


def test_every_command_with_a_format_can_print_it() -> None:
    assert set(commands_with("--format")) <= set(commands_with("--stdout"))


def test_the_base_model_is_named_alike() -> None:
    assert set(commands_with("--base")) == set(commands_with("--model"))
