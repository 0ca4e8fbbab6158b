"""The picture of a range test: what a few updates at each rate do to the loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mlxdoctor.exhibits import RateCurve
from mlxdoctor.formats.figures.canvas import BLUE, ORANGE, figure_and_axes
from mlxdoctor.formats.figures.picture import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def caption(curve: RateCurve) -> str:
    """The rates, and which is the largest that learns."""
    said = (
        f"The loss on fixed rows after {curve.updates} updates at each of {len(curve.rates)} "
        f"rates, {curve.rates[0]:.2g} to {curve.rates[-1]:.2g}; {curve.untouched:.2f} before any"
    )
    if curve.largest is not None and curve.advised is not None:
        said += (
            f". The largest that learns is {curve.largest:.2g}, the one to use {curve.advised:.2g}"
        )
    return f"{said}."


def draw(curve: RateCurve) -> Figure:
    figure, axes = figure_and_axes(6.4, 3.2)
    finite = [
        (rate, loss, noise)
        for rate, loss, noise in zip(curve.rates, curve.losses, curve.noise, strict=True)
        if math.isfinite(loss)
    ]
    # A loss that rose a hundredfold would press the rest into one line.
    top = curve.untouched * 1.5
    shown = [(rate, min(loss, top), noise) for rate, loss, noise in finite]
    if shown:
        rates, losses, noise = zip(*shown, strict=True)
        axes.errorbar(
            rates,
            losses,
            yerr=[0.0 if not math.isfinite(one) else one for one in noise],
            color=BLUE,
            marker="o",
            markersize=4,
            label="after the updates",
        )
    both = zip(curve.rates, curve.losses, strict=True)
    lost = [rate for rate, loss in both if not math.isfinite(loss)]
    if lost:
        axes.plot(lost, [top] * len(lost), "x", color=ORANGE, label="lost")
    axes.axhline(curve.untouched, color="#777777", linestyle=":", label="before any update")
    for rate, name, style in (
        (curve.configured, "configured", "--"),
        (curve.advised, "advised", "-"),
    ):
        if rate is not None and rate > 0:
            axes.axvline(rate, color=ORANGE, linestyle=style, linewidth=1, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("loss, nats a token")
    axes.set_title(f"A few updates at each rate ({curve.updates})")
    figure.legend(loc="outside lower center", ncols=3)
    return figure


PICTURE = Picture(RateCurve, "What a few updates at each rate do to the loss", caption, draw)
