"""A small causes.toml."""

from collections.abc import Mapping


def knowledge(tiers: Mapping[str, float], **signs: str) -> str:
    """The text of a file with these tiers, and of each cause its lines on signs."""
    stated = "\n".join(f"{name} = {value}" for name, value in tiers.items())
    causes = (
        f'[causes.{name}]\ntitle = "T"\nsummary = "s"\nexplanation = "e"\nremedy = "r"\n'
        f"prior = 0.0\n{lines}\n"
        for name, lines in signs.items()
    )
    return "\n".join((f"[tiers]\n{stated}\n", *causes))
