"""`mlxdoctor checks`: what can be found."""

import click

from mlxdoctor.cli import EXIT_CLEAN, options, output


@click.command(name="checks")
@options.printed("text", "json")
def command(printed: str) -> int:
    """List what can be found: every check, its codes, and what each means.

    The cost says what a check reads: files alone (instant), or what a running
    model answers as well (forward).

    \b
    Examples:
      mlxdoctor checks
      mlxdoctor checks --stdout json | jq -r '.[].code'
      mlxdoctor explain CODE
    """
    from mlxdoctor.check import discover

    rows = [
        {"check": one.name, "code": code, "meaning": symptom.meaning, "cost": one.cost}
        for one in discover()
        for code, symptom in one.symptoms.items()
    ]
    cells = [[row["code"], row["meaning"], row["cost"]] for row in rows]
    output.show(rows, output.table(["code", "meaning", "cost"], cells, 1), printed)
    return EXIT_CLEAN
