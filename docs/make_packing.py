"""Draw images/packing.png from the figures of perf/packing.py: python docs/make_packing.py."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
FIGURES = HERE.parent / "perf" / "figures" / "packing-llava-next-8b.json"
LINES = (
    ("packed", "packed: two begun answers, two decimals", "#2563eb"),
    ("vllm", "vLLM 0.26: one begun answer", "#b45309"),
)


def main() -> None:
    """Draw pairs per second against captions per image: packed, vLLM and the loop."""
    figure, axes = plt.subplots(figsize=(7.2, 4.2), layout="constrained")
    figures = json.loads(FIGURES.read_text(encoding="utf-8"))
    captions = [row["captions"] for row in figures["rows"]]
    for column, label, colour in LINES:
        speeds = [1 / row[column] for row in figures["rows"]]
        axes.plot(captions, speeds, "o-", color=colour, label=label)
        if column == "packed":
            axes.axhline(1 / figures["loop"], ls="--", color="#6b7280", label="one at a time")
            for row, speed in zip(figures["rows"], speeds, strict=True):
                axes.annotate(
                    f"x{row['ratio']:.1f}", (row["captions"], speed), (0, 7),
                    textcoords="offset points", ha="center", color=colour, fontsize=8,
                )  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks([1, 2, 6, 16, 48], ["1", "2", "6", "16", "48"])
    axes.set_xlabel("captions per image")
    axes.set_ylabel("pairs a second")
    axes.set_ylim(top=700)
    axes.set_title(
        "LLaVA-NeXT-8B on one H200, bfloat16: packed, vLLM, one pair at a time", fontsize=10
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(HERE / "images" / "packing.png", dpi=140, metadata={"Software": None})


if __name__ == "__main__":
    main()
