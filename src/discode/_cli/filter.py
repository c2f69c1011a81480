"""discode filter: another threshold for a finished run, without a judge."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from discode._cli import flags, output
from discode.bulk._filtering import filter_run
from discode.errors import InputError


def filter_scores(
    folder: Annotated[Path, typer.Argument(help="Output folder of a finished `discode score`.")],
    min_score: Annotated[
        float, flags.output_flag(metavar="X", help="Write samples scoring at least this.")
    ],
    typed: Annotated[
        str, flags.output_option(help="New folder for the samples.", metavar="FOLDER")
    ],
) -> None:
    """Filter a finished run by another threshold, without judging again."""
    out = output.output_folder(typed)
    if out is None or (out.exists() and any(out.iterdir())):
        raise InputError(f"--output {typed} is not empty; give a new folder")
    output.make_folder(out)
    passed, rows = filter_run(folder, min_score, out)
    written = f"samples written to {out}" if passed else "nothing was written"
    output.note(f"{passed:,} of {rows:,} rows reach {min_score:g}; {written}")
