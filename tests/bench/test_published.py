"""The paper's numbers: counts, cells picked by hand, and where the paper contradicts itself."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from discode.bench._published import PAPER_TABLES, published_cells
from discode.bench._tables import published_table
from discode.benchmarks import BENCHMARKS
from discode.errors import UnknownNameError

# Rows times columns, less the cells printed as "--".
COUNTS = {
    "dataset_statistics": 5 * 2,
    "rice": 12 * 7,
    "sota_main": 23 * 7 - 26,
    "refdisode": 23 * 11 - 54,
    "ablation": 4 * 5,
    "ablation_appendix": 4 * 11,
    "sigma": 5 * 11,
    "rating": 4 * 5,
    "rating_appendix": 12 * 11,
    "divergence": 6 * 5,
    "divergence_appendix": 6 * 11,
    "llms": 12 * 5,
    "llms_appendix": 12 * 11,
    "mdce_llm_full": 12 * 7,
    "lmms": 18 * 5,
    "lmms_appendix": 18 * 11,
    "mdce_lmm_full": 18 * 7,
    "cost": 16 * 3,
    "foil": 6 * 2,
}

# Read from the page by eye.
PICKED = [
    ("sota_main", "bleu-4", "", "", "flickr8k-expert tau_b", 30.6),
    ("sota_main", "spice", "", "", "flickr8k-expert tau_c", 44.9),
    ("sota_main", "g-veval", "GPT-4o", "", "flickr8k-expert tau_b", 61.5),
    ("sota_main", "discode", "LLaVA-NeXT-72B", "", "composite tau_c", 66.0),
    ("sota_main", "discode", "InternVL-2.5-78B", "", "pascal50s mean", 83.5),
    ("sota_main", "fleur", "LLaVA-1.5-13B", "", "flickr8k-cf tau_b", 38.6),
    ("sota_main", "umic", "", "", "composite tau_c", 56.1),
    ("rice", "fleur", "LLaVA-1.5-13B", "", "mceval quickdraw", 45.6),
    ("rice", "bert-s", "", "", "mceval infograph", 58.6),
    ("rice", "discode", "LLaVA-NeXT-72B", "", "mceval mean", 83.6),
    ("refdisode", "deneb", "ViT-L", "", "flickr8k-cf tau_b", 38.3),
    ("refdisode", "ref-discode", "LLaVA-NeXT-72B", "", "pascal50s MM", 82.1),
    ("refdisode", "bleu-1", "", "", "pascal50s HI", 95.2),
    ("refdisode", "tiger", "", "", "pascal50s HI", 99.8),
    ("ablation", "discode", "LLaVA-NeXT-72B", "w/o divergence", "flickr8k-expert tau_c", 49.9),
    ("ablation", "discode", "LLaVA-NeXT-72B", "alpha=0.5", "mceval mean", 83.0),
    ("sigma", "discode", "LLaVA-NeXT-72B", "sigma2=0.01", "pascal50s MM", 76.5),
    ("rating", "discode", "LLaVA-NeXT-72B", "scale=letters", "composite tau_c", 65.7),
    ("rating_appendix", "raw", "LLaVA-NeXT-72B", "scale=five", "pascal50s HC", 25.5),
    ("divergence", "discode", "LLaVA-NeXT-72B", "divergence=beta", "mceval mean", 81.5),
    ("llms", "raw", "LLaVA-NeXT-8B", "", "flickr8k-expert tau_c", 21.3),
    ("lmms", "discode", "Qwen2-VL-72B-Instruct", "", "composite tau_c", 66.7),
    ("lmms_appendix", "raw", "CogVLM2-Chat-19B", "", "flickr8k-cf tau_c", 7.4),
    ("mdce_lmm_full", "discode", "MiniCPM-V-2.6", "", "mceval infograph", 83.7),
    ("cost", "discode", "LLaVA-NeXT-8B", "", "scoring s", 1.78e-3),
    ("cost", "discode", "LLaVA-NeXT-13B", "w/o analytical solution", "overhead %", 11.5),
    ("foil", "ref-g-veval", "GPT-4o", "", "foil 4-ref", 98.4),
    ("foil", "discode", "LLaVA-NeXT-72B", "", "foil 1-ref", 98.2),
]

# Rows whose printed mean is not that of their printed parts: the mean, and what is printed.
OFF = [
    (("refdisode", "ref-pac-s++", "ViT-B", ""), 84.3, 84.5),
    (("rating_appendix", "fleur", "LLaVA-NeXT-72B", "scale=unit"), 83.7, 83.8),
    (("llms_appendix", "fleur", "LLaVA-NeXT-72B", ""), 83.7, 83.8),
    (("mdce_lmm_full", "raw", "MiniCPM-V-2.6", ""), 56.8, 58.0),
    (("mdce_lmm_full", "fleur", "MiniCPM-V-2.6", ""), 82.1, 83.0),
    (("mdce_lmm_full", "discode", "MiniCPM-V-2.6", ""), 82.2, 83.3),
]


def test_counts() -> None:
    assert Counter(cell.table for cell in published_cells()) == COUNTS
    assert set(PAPER_TABLES) == set(COUNTS)


def test_cells_picked_by_hand() -> None:
    cells = {(c.table, c.system, c.model, c.setting, c.column): c.value for c in published_cells()}
    for *key, value in PICKED:
        assert cells[tuple(key)] == value, key  # type: ignore[index]  # five texts


def test_every_cell_is_unique_and_known() -> None:
    cells = published_cells()
    assert len({(c.table, c.system, c.model, c.setting, c.column) for c in cells}) == len(cells)
    for cell in cells:
        assert cell.column.split()[0] in {*BENCHMARKS, "backbone", "scoring", "overhead"}
        assert cell.group in ("reference-free", "with references") or not cell.system
        assert 0 <= cell.value <= 100 or cell.table == "dataset_statistics"


def test_a_table_is_printed_as_the_paper_prints_it() -> None:
    rows = {str(row[0]).strip(): row[1:] for row in published_table("cost").rows}
    assert rows["DISCODE w/o Analytical Solution, LLaVA-NeXT-72B"] == [
        "0.962 ± 0.04", "1.83e-02 ± 1.5e-03", "1.90"
    ]  # fmt: skip
    assert rows["Raw score, LLaVA-NeXT-8B"] == ["0.241 ± 0.03", "0.00 ± 0.0", "0.00"]
    for table in ("ablation_appendix", "sigma"):
        assert "not typeset" in published_table(table).title


def test_means_are_means() -> None:
    """An independent check of the columns: printed means follow from their parts, mostly."""
    off = []
    for prefix, parts in (("pascal50s", 4), ("mceval", 6)):
        rows: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
        for c in published_cells():
            if c.column.startswith(prefix):
                rows[c.table, c.system, c.model, c.setting][c.column] = c.value
        for key, row in rows.items():
            mean = row.pop(f"{prefix} mean", 0.0)
            if len(row) == parts and abs(sum(row.values()) / parts - mean) > 0.11:
                off.append((key, round(sum(row.values()) / parts, 1), mean))
    assert sorted(off) == sorted(OFF)  # as the page has them


def test_where_the_tables_contradict_each_other() -> None:
    values: dict[tuple[str, ...], dict[str, float]] = defaultdict(dict)
    for cell in published_cells():
        if cell.metric:
            key = cell.metric, cell.scale, cell.model, cell.column
            values[key][cell.table] = cell.value
    assert {key: tables for key, tables in values.items() if len({*tables.values()}) > 1} == {
        ("fleur", "unit", "LLaVA-NeXT-13B", "flickr8k-expert tau_c"): {
            "llms": 52.1, "llms_appendix": 51.1,
        },
        ("raw", "unit", "InternVL-2.5-8B", "mceval mean"): {"lmms": 57.9, "mdce_lmm_full": 58.0},
        ("raw", "unit", "Qwen2-VL-7B-Instruct", "mceval mean"): {
            "lmms": 53.3, "mdce_lmm_full": 73.0,
        },
    }  # fmt: skip


def test_unknown_names_are_refused() -> None:
    for names in ({"table": "sota"}, {"system": "discod"}, {"column": "x"}):
        with pytest.raises(UnknownNameError, match=next(iter(names.values()))):
            published_cells(**names)
