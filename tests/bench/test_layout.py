"""Tables of cells in every format: the same numbers, wherever they are written."""

from __future__ import annotations

import csv
import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discode.bench._layout import TABLE_FORMATS, CellTable, write_table
from discode.errors import UnknownNameError
from discode.stats import Interval

TABLE = CellTable(
    ["metric", ("Flickr8k-Expert", "τ_b"), ("Flickr8k-Expert", "τ_c"), "ties %"],
    [
        ["a heading that is longer than every name"],
        ["  raw_50 & more", Interval(56.93, 54.85, 58.81, 0.95), 46.634, "33.8"],
        ["    paper", "55.7", None],
        ["  b|c", math.nan, Interval(1.0, math.nan, math.nan, 0.95)],
    ],
    title="A title",
    notes=["* a note"],
)


def test_text_is_aligned_and_bounds_have_a_line() -> None:
    lines = write_table(TABLE).splitlines()
    assert lines[0] == "A title"
    assert lines[1].split() == ["Flickr8k-Expert"]
    assert lines[2].split() == ["metric", "τ_b", "τ_c", "ties", "%"]
    assert lines[3] == "a heading that is longer than every name"
    assert lines[4].split()[-3:] == ["56.93", "46.63", "33.8"]
    assert lines[5].split() == ["95", "%", "54.9–58.8"]
    assert lines[6].split() == ["paper", "55.7"]
    assert lines[7].split() == ["b|c", "1.00"]
    assert lines[8:] == ["", "* a note"]
    ends = {line.index(number) + len(number) for line, number in zip(
        (lines[2], lines[4], lines[6]), ("τ_b", "56.93", "55.7"), strict=True)}  # fmt: skip
    assert len(ends) == 1


def test_markdown_has_one_line_per_row() -> None:
    text = write_table(TABLE, "markdown")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.replace("\\|", "").count("|") for line in rows}) == 1
    assert "**A title**" in text
    assert "| **a heading" in text
    assert "| &nbsp;&nbsp;b\\|c |" in text
    assert text.endswith("\n\n* a note")


def test_latex_escapes_and_comments() -> None:
    text = write_table(TABLE, "latex")
    assert text.startswith("% A title\n\\begin{tabular}{lrrr}")
    assert r"\quad raw\_50 \& more & 56.93 & 46.63 & 33.8 \\" in text
    assert r"$\tau_b$ & $\tau_c$ & ties \%" in text
    assert "54.9--58.8" in text
    assert text.endswith("% * a note")


def test_csv_has_bounds_as_columns_and_the_way_to_a_row() -> None:
    rows = list(csv.reader(io.StringIO(write_table(TABLE, "csv"))))
    above = "a heading that is longer than every name"
    assert rows == [
        ["metric", "Flickr8k-Expert τ_b", "Flickr8k-Expert τ_b low", "Flickr8k-Expert τ_b high",
         "Flickr8k-Expert τ_c", "Flickr8k-Expert τ_c low", "Flickr8k-Expert τ_c high", "ties %"],
        [f"{above} / raw_50 & more", "56.93", "54.85", "58.81", "46.634", "", "", "33.8"],
        [f"{above} / raw_50 & more / paper", "55.7", "", "", "", "", "", ""],
        [f"{above} / b|c", "", "", "", "1", "", "", ""],
    ]  # fmt: skip


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="html"):
        write_table(TABLE, "html")


_CELL = st.one_of(
    st.none(),
    st.floats(-1000, 1000),
    st.text(st.characters(blacklist_categories=["Cs", "Cc", "Zl", "Zp"]), max_size=8),
    st.builds(lambda v: Interval(v, v - 1, v + 1, 0.9), st.floats(-99, 99)),
)


@given(st.lists(st.tuples(st.sampled_from(["a", "  b", "    c"]), _CELL, _CELL), max_size=5))
def test_every_format_takes_any_cells(rows: list[tuple[str, object, object]]) -> None:
    table = CellTable(["", ("over", "x"), "y"], rows)  # type: ignore[arg-type]  # as drawn
    for form in TABLE_FORMATS:
        assert write_table(table, form)
    read = list(csv.reader(io.StringIO(write_table(table, "csv"))))
    assert len({len(row) for row in read}) == 1
