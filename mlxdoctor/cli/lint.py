"""`mlxdoctor lint`: known MLX training mistakes in source code."""

from pathlib import Path

import click

from mlxdoctor.cli import EXIT_CLEAN, EXIT_FOUND, options, output


@click.command(name="lint")
@click.argument("paths", nargs=-1, type=options.PATH, metavar="FILE...")
@options.printed("text", "json", "sarif", "github")
@options.fails_on("warning")
@click.option("--rules", "list_rules", is_flag=True, help="List the rules and stop.")
def command(paths: tuple[Path, ...], printed: str, fail_on: str, list_rules: bool) -> int:
    """Look for known mistakes in training code, without importing or running it.

    Folders are searched for Python files. A hit is silenced by a comment on its
    line or above it, with a reason: `# mlxdoctor: ignore[CODE] reason`. What a rule means:
    `mlxdoctor explain CODE`. What the code really does: `mlxdoctor probe`.

    \b
    Examples:
      mlxdoctor lint train.py
      mlxdoctor lint src/ --stdout github
      mlxdoctor lint src/ --stdout sarif > lint.sarif
    """
    from mlxdoctor.lint.hit_formats import FORMATS
    from mlxdoctor.lint.linter import lint
    from mlxdoctor.lint.rule import rules

    if list_rules:
        rows = [(rule.code, rule.severity.value, rule.title) for rule in rules()]
        click.echo(output.table(["rule", "severity", "what"], rows, 2))
        return EXIT_CLEAN
    if not paths:
        raise click.UsageError("Missing argument 'FILE...'.")
    hits = lint(paths)
    click.echo(FORMATS[printed](hits), nl=False)
    fails = any(hit.severity.reaches(fail_on) for hit in hits)
    return EXIT_FOUND if fails else EXIT_CLEAN
