"""The command line: one file a command, loaded when that command is called."""

import errno
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence

import click

from mlxdoctor.safety.errors import InputError, is_out_of_memory

#: Exit codes, the same for every command.
EXIT_CLEAN, EXIT_FOUND, EXIT_UNUSABLE, EXIT_INCONCLUSIVE, EXIT_INTERRUPTED = 0, 1, 2, 3, 130
#: As of a program that the system ended because nobody reads on.
EXIT_BROKEN_PIPE = 141
#: What writing fails with where the device, not the program, is at fault.
_OF_OUTPUT = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

#: Command -> its line in `mlxdoctor --help`, so that help loads no command. Each
#: is `command` in the module `mlxdoctor.cli.NAME`.
COMMANDS: Mapping[str, str] = {
    "preflight": "See whether a run would fail, before it is made.",
    "diagnose": "Find out why a fine-tune failed, and write a report.",
    "gate": "Judge many adapters or runs by a policy, for CI.",
    "inspect": "Show an adapter as a table.",
    "watch": "Follow a running log, and raise the alarm early.",
    "bisect": "Find the last good checkpoint, and the best.",
    "reproduce": "Make the failure again, and find the one change that cures it.",
    "train": "Train as mlx_lm.lora does, and record every step.",
    "labels": "Show every token of a row, and whether it is trained on.",
    "lint": "Find known MLX training mistakes in source code.",
    "convert": "Turn a PEFT adapter into an mlx-lm one, or back.",
    "probe": "See what one training step of your trainer really does.",
    "checks": "List what can be found.",
    "explain": "Explain a check, code, cause, known bug or lint rule.",
}


class LazyGroup(click.Group):
    """A group that imports a command's module only when that command runs."""

    def list_commands(self, _: click.Context) -> list[str]:
        """The commands in the order in which they are met."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, loaded; where there is none, the error names a similar one."""
        if cmd_name not in COMMANDS:
            if ctx.resilient_parsing:
                return None
            from difflib import get_close_matches

            close = get_close_matches(cmd_name, COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise click.UsageError(f"No such command {cmd_name!r}.{hint}", ctx)
        module = importlib.import_module(f"mlxdoctor.cli.{cmd_name}")
        from mlxdoctor.cli.options import with_limit

        return with_limit(module.command)

    def format_commands(self, _: click.Context, formatter: click.HelpFormatter) -> None:
        """The table of commands, without loading any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 nothing found, 1 found, 2 unusable input, 3 too little to judge by.",
)
@click.version_option(package_name="mlxdoctor", message="%(prog)s %(version)s")
def group() -> None:
    """Tells you why an MLX LoRA fine-tune failed, and proves it.

    \b
    Start with the folder the fine-tune wrote, or with its log alone:
      mlxdoctor diagnose adapters/
      mlxdoctor diagnose train.log

    Nothing in the folders that are inspected is written or executed.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: without the program's name; those of the process by default.
    """
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and stdout.errors == "strict":
        # Write `\u2192` where the terminal's encoding has no arrow, rather than fail.
        stdout.reconfigure(errors="backslashreplace")
    try:
        code = group.main(args=arguments, prog_name="mlxdoctor", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit:
        # click's answer to a closed pipe: it silences the output and exits with 1, which here
        # would mean that something was found.
        if sys.stdout is stdout:
            raise
        return EXIT_BROKEN_PIPE
    except OSError as error:
        return _output_failed(error)
    except InputError as error:
        return refuse(str(error))
    except click.ClickException as error:
        error.show()
        return EXIT_UNUSABLE
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return EXIT_INTERRUPTED
    except Exception as error:
        if is_out_of_memory(error):
            return refuse("there is not enough memory for what was to be read, or computed")
        return _apologise()
    except BaseException as error:
        # A Rust library's panic is no `Exception`, so that it comes through everything.
        from mlxdoctor.evidence.tokenizer import is_panic

        if not is_panic(error):
            raise
        return refuse(f"a library cannot take what it was given ({error})")
    return code if isinstance(code, int) else EXIT_CLEAN


def _output_failed(error: OSError) -> int:
    if error.filename is not None or error.errno not in _OF_OUTPUT:
        return _apologise()
    # What is still held back could not be written at exit either.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return EXIT_BROKEN_PIPE
    return refuse(f"standard output cannot be written ({error.strerror})")


def refuse(sentence: str) -> int:
    """Say in a sentence what cannot be used; returns the exit code."""
    from mlxdoctor.formats.escape import terminal

    click.echo(f"mlxdoctor: {terminal(sentence)}", err=True)
    return EXIT_UNUSABLE


def _apologise() -> int:
    import traceback

    click.echo(traceback.format_exc(), err=True)
    click.echo("mlxdoctor: this is a bug in mlxdoctor; please report the lines above", err=True)
    return EXIT_INCONCLUSIVE
