"""discode methods, scales, models: what there is."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from discode.backends.local.catalog import CATALOG
from discode.cli.output import stdout
from discode.decoders import METHODS, Discode
from discode.scales import SCALES
from discode.signature import option_text

_OPTIONS = {
    "sigma2": "variance σ² in α = N(s_raw; μ, σ²)",
    "alpha": "adaptive, or a number from 0 to 1",
    "alpha_scale": "α on the answers' values (digit) or on 0-1 (unit)",
    "alpha_clip": "bounds of α as low:high, or none",
    "tau": "weight of the entropy: alpha as printed, or a number",
    "prior_variance": "variance of the prior around the raw answer",
    "cross_entropy": "false drops H(p, L)",
    "divergence": "weighted-kl, kl, jensen-shannon, beta, renyi, none",
    "order": "order of beta (2) and renyi (0.5)",
    "solver": "closed, exact, or adam (needs hidden states)",
    "steps": "Adam steps",
    "learning_rate": "Adam's learning rate",
    "reading": "greedy, or joint: both stems of scale unit, 1.0 an ordinary value",
}


def _table(*columns: str) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def methods() -> None:
    """List the decoders, and the options that a method takes behind a colon."""
    table = _table("method", "what it is", "its options")
    for name, method in METHODS.items():
        options = ",".join(f"{key}={option_text(value)}" for key, value in method.options.items())
        table.add_row(name, escape(method.about), escape(options))
    stdout.print(table)
    stdout.print(
        "\nOptions of discode and every method below it, e.g. -m discode:tau=alpha,sigma2=1"
        "\n(raw and smoothing take `reading`, too)\n"
    )
    table = _table("option", "default", "what it is")
    for name, about in _OPTIONS.items():
        table.add_row(name, option_text(getattr(Discode(), name)), escape(about))
    stdout.print(table)


def scales() -> None:
    """List the rating scales."""
    table = _table("scale", "stems", "answers, lowest first", "scores")
    for name, scale in SCALES.items():
        table.add_row(
            name,
            " ".join(repr(stem) for stem in scale.stems if stem) or "none",
            " ".join(scale.answers),
            f"{scale.minimum:g} to {scale.maximum:g}",
        )
    table.add_row("LOW-HIGH", "none", "any range: 1-7, 0-100, A-D; E-A if A is best", "its own")
    stdout.print(table)


def models() -> None:
    """List vision-language models to judge with."""
    widest = max(len(row.hub) for row in CATALOG)
    stdout.print("GB: of the weights in bfloat16, and in 4 bit\n", highlight=False)
    notes = _table("", "")
    for title, paper in (("the paper's models", True), ("others", False)):
        table = _table(title, "GB", "4 bit", "captions", "tried")
        # Names are to be copied whole: a narrow terminal may break lines, but no cell is cut.
        table.width, table.columns[0].min_width = widest + 32, widest
        table.columns[1].justify = table.columns[2].justify = "right"
        for row in (row for row in CATALOG if bool(row.paper) == paper):
            table.add_row(
                row.hub,
                f"{row.memory:.0f}",
                f"{row.memory_4bit:.0f}",
                "packed" if row.packed else "plain",
                row.tested or "nothing",
            )
            code = "code of its own (--trust-remote-code)" if row.remote else ""
            if row.note or code:
                notes.add_row(row.hub.split("/")[1], "; ".join(filter(None, (code, row.note))))
        stdout.print(table, "", crop=False)
    notes.columns[0].no_wrap = True
    stdout.print(notes)
