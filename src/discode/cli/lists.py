"""discode methods, discode scales: what there is."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from discode.cli.output import stdout
from discode.decoders import METHODS, get_decoder
from discode.scales import SCALES
from discode.signature import describe


def methods() -> None:
    """List the decoders and their options."""
    table = Table("method", "what it is", "options", box=None, header_style="bold", pad_edge=False)
    for name, method in METHODS.items():
        options = describe(get_decoder(name)).replace(",", " ")
        table.add_row(name, escape(method.about), escape(options), style=None)
    stdout.print(table)


def scales() -> None:
    """List the rating scales."""
    table = Table(
        "scale", "stems", "answers", "scores", box=None, header_style="bold", pad_edge=False
    )
    for name, scale in SCALES.items():
        table.add_row(
            name,
            " ".join(repr(stem) for stem in scale.stems if stem) or "none",
            " ".join(scale.answers),
            f"{scale.minimum:g} to {scale.maximum:g}",
        )
    table.add_row("LOW-HIGH", "none", "any range, lowest first: 1-7, 0-100, A-D, E-A", "")
    stdout.print(table)
