"""`mlxdoctor gate`: many adapters or runs under one policy."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_INTERRUPTED, EXIT_UNUSABLE, options, output
from mlxdoctor.cli.progress import ProgressLine
from mlxdoctor.formats.escape import terminal
from mlxdoctor.formats.format import files_of, formats, text_of
from mlxdoctor.formats.terminal import render_gate
from mlxdoctor.gate_result import GateResult
from mlxdoctor.safety.atomic import refuse_inside, write_files
from mlxdoctor.safety.errors import InputError


@click.command(
    name="gate",
    epilog="""\b
Exit codes, the first that holds: 1 an item failed, 2 one is unusable (or the
policy or an option is), 3 one is inconclusive, 0 all passed. 130 interrupted:
what was done is reported all the same.""",
)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option(
    "--policy",
    "policy_file",
    type=options.PATH,
    help="The policy. By default the nearest mlxdoctor.toml, or pyproject.toml with a "
    "[tool.mlxdoctor], from here upwards.",
)
@click.option(
    "--baseline", type=options.PATH, help="File of known findings, which do not fail an item."
)
@click.option(
    "--write-baseline", is_flag=True, help="Make what fails now known, and judge by that."
)
@click.option("--strict", is_flag=True, help="Exit with 2 where the policy holds what is stale.")
@click.option(
    "--generate",
    is_flag=True,
    help="Run the models too: an adapter passes where it is better than its base at its own rows.",
)
@options.base_model("Folder of the base model of the items that do not name theirs.")
@options.data
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="With --generate: the time that the models of an item may take, as for diagnose.",
)
@options.no_text
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    help="Processes. By default one a core; with --generate, one.",
)
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Use the workers of this Dask scheduler; they must see the same paths.",
)
@click.option(
    "--time-limit",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="SECONDS",
    help="An item that takes longer is unusable. On a cluster, this is looked at between checks.",
)
@options.printed(*(one.name for one in formats().values() if one.gate))
@options.written([one.name for one in formats().values() if one.suffix and one.gate])
@options.output_folder("Folder for gate.md, gate.json, gate.sarif, gate.junit.xml.")
@click.option(
    "--init",
    is_flag=True,
    help="Write mlxdoctor.toml (or --policy), for what these healthy runs show.",
)
def command(  # noqa: PLR0917 - click passes every option by name
    paths: tuple[str, ...],
    policy_file: Path | None,
    baseline: Path | None,
    write_baseline: bool,
    strict: bool,
    no_text: bool,
    printed: str,
    names: tuple[str, ...],
    folder: Path,
    init: bool,
    **given: Any,
) -> int:
    """Judge many adapters or runs by a policy, for CI.

    PATH is an adapter, a run, a file of one, or a glob of them. A glob in quotes
    is expanded here, ** too; end it with a slash to name folders only. A folder
    of several runs has to be named by a glob: then one that holds nothing is not
    passed over in silence. Without --generate no model is run.

    \b
    Examples:
      mlxdoctor gate adapters/
      mlxdoctor gate 'adapters/*/' --stdout github --format sarif
      mlxdoctor gate 'runs/*/' --baseline known.json --write-baseline
      mlxdoctor gate --init runs/good-1 runs/good-2
    """
    if init:
        return _init(paths, policy_file or Path("mlxdoctor.toml"), given["generate"])
    if given["jobs"] is not None and given["cluster"] is not None:
        raise click.UsageError("--jobs is for processes on this machine, --cluster for another")

    from mlxdoctor.gate.baseline import Known, baseline_text, read_baseline
    from mlxdoctor.gate.examine import Options
    from mlxdoctor.gate.gating import exit_code, run_gate
    from mlxdoctor.gate.policy import Policy
    from mlxdoctor.gate.policy_file import find_policy, read_policy

    found = None if policy_file else find_policy(Path.cwd())
    hidden = find_policy(found.parent.parent) if found else None
    policy_file = policy_file or found
    policy = Policy(Path.cwd()) if policy_file is None else read_policy(policy_file)
    for name in ("base", "data", "budget"):
        given[name] = getattr(policy, name) if given[name] is None else given[name]
    known_file = baseline or policy.baseline
    if write_baseline and known_file is None:
        remedy = "name it with --baseline, or as `baseline` in the policy"
        raise InputError(None, "--write-baseline has no file to write", remedy)
    new_file = known_file if write_baseline else None
    for place in ([folder] if names else []) + ([new_file.parent] if new_file else []):
        _refuse_inside(place, paths)
    known: frozenset[Known] = frozenset()
    if known_file is not None and not (new_file and not new_file.exists()):
        known = read_baseline(known_file)
    options = Options(**given, with_text=not no_text)
    with ProgressLine() as progress:
        result, known = run_gate(
            paths,
            policy,
            known=known,
            accept_all=write_baseline,
            options=options,
            progress=progress,
        )
    # What the policy extends holds too.
    is_hidden = hidden is not None and hidden.parent != policy.root
    result = replace(result, hidden=str(hidden) if is_hidden else None)
    if new_file is not None:
        content = baseline_text(known).encode()
        write_files(new_file.parent, {new_file.name: content})
    _deliver(result, printed, names, folder)
    code = exit_code(result.items)
    if left := result.unfinished:
        examined = f"{len(result.items)} of {len(result.items) + len(left)}"
        following = f"next would have been {terminal(left[0])}"
        click.echo(f"interrupted: {examined} were examined; {following}", err=True)
        return EXIT_INTERRUPTED
    return EXIT_UNUSABLE if strict and result.notices and code in (EXIT_CLEAN, 3) else code


def _refuse_inside(folder: Path, paths: tuple[str, ...]) -> None:
    from mlxdoctor.gate.targets import targets

    refuse_inside(folder, (Path(one.path) for one in targets(paths) if not one.problem))


def _deliver(result: GateResult, printed: str, names: tuple[str, ...], folder: Path) -> None:
    written: list[str] = []
    try:
        written = [str(path) for path in write_files(folder, files_of(result, *names))]
    finally:
        # What took so long to find out is not lost where a file can't be written.
        if printed == "text":
            text = render_gate(result, width=output.width(), style=output.style, written=written)
        else:
            text = text_of(result, printed)
        click.echo(text, nl=False)


def _init(paths: tuple[str, ...], file: Path, generate: bool) -> int:
    from mlxdoctor.gate.init import policy_text, required_checks

    if file.name == "pyproject.toml":
        remedy = "write mlxdoctor.toml and copy it below [tool.mlxdoctor]"
        raise InputError(file, "is not written by --init: it holds more than a policy", remedy)
    if file.exists():
        raise InputError(file, "is there already", "remove it, or name another with --policy")
    _refuse_inside(file.parent, paths)
    with ProgressLine() as progress:
        runs, require = required_checks(paths, generate=generate, progress=progress)
    write_files(file.parent, {file.name: policy_text(runs, require).encode()})
    learned_from = f"{len(runs)} healthy run{'s' * (len(runs) != 1)}"
    click.echo(terminal(f"{file}: requires {len(require)} checks, which ran on {learned_from}"))
    return EXIT_CLEAN
