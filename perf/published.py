"""The published cells of text metrics, from the real data: python perf/published.py --data FOLDER

FOLDER holds ``flickr8k``, ``composite``, ``pascal50s`` and ``fleur``. Prints the paper's table with
ours, then every cell beside its reference, and exits with 1 where one is out of reach: 0.05 on
Flickr8k and Composite (BLEU-1, known from the paper's one decimal alone, 0.1), on Pascal-50S 1.5
per cell and 0.7 in the mean, since its references are drawn.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import sys
import tempfile
from pathlib import Path

from discode.bench import AgreementProtocol, RunLog, label_metrics, render_table, run_metrics
from discode.bench._published import published_cell
from discode.bench._tables import table_measures
from discode.benchmarks import load_benchmark
from discode.metrics import MetricFactory

METRICS = ["bleu-1", "bleu-4", "rouge-l", "meteor", "cider"]
FOLDERS = {
    "flickr8k-expert": "flickr8k", "flickr8k-cf": "flickr8k", "composite": "composite",
    "pascal50s": "pascal50s",
}  # fmt: skip
REFERENCE = {
    ("flickr8k-expert", "bleu-4"): (30.60, 30.78), ("flickr8k-expert", "rouge-l"): (32.14, 32.31),
    ("flickr8k-expert", "meteor"): (41.54, 41.82), ("flickr8k-expert", "cider"): (43.60, 43.89),
    ("flickr8k-cf", "bleu-4"): (16.86, 8.71), ("flickr8k-cf", "rouge-l"): (19.90, 10.27),
    ("flickr8k-cf", "meteor"): (22.27, 11.51), ("flickr8k-cf", "cider"): (24.62, 12.72),
    ("composite", "bleu-4"): (28.31, 30.58), ("composite", "rouge-l"): (30.08, 32.47),
    ("composite", "meteor"): (36.00, 38.91), ("composite", "cider"): (34.93, 37.73),
}  # fmt: skip
"""τ_b and τ_c that pycocoevalcap's own values give with the same protocols."""
FLEUR = {"fleur-smoothed": (52.67, 53.03), "fleur-raw": (56.08, 34.91)}
"""τ_b and τ_c of the scores per pair that FLEUR's authors published."""


def fleur_table(source: Path, target: Path) -> None:
    """Write FLEUR's per-pair output as the CSV that score files are."""
    block = r"image file : (.*)\ncaption : (.*)\nmodel score : (.*)\nour score : (.*)\n"
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "caption", "raw", "smoothed"])
        for name, *rest in re.findall(block, source.read_text(encoding="utf-8")):
            writer.writerow([Path(name).name, *rest])  # their folder is not the publisher's


def check(log: RunLog, label: str) -> list[tuple[str, float, float, float]]:
    """Return a row per cell: name, ours, the expected value, how far ours may be from it."""
    measures = log.results[label].measures
    rows = []
    wanted = REFERENCE.get((log.benchmark, label)) or FLEUR.get(label)
    for number, name in enumerate(table_measures(log)):
        title, ours = f"{log.benchmark} {label} {name}", measures[name].value
        cell = published_cell(log, label, name)
        paper = math.nan if cell is None else cell.value
        if log.benchmark == "pascal50s":
            rows.append((title, ours, paper, 0.7 if name == "mean" else 1.5))
        elif wanted:
            rows.append((title, ours, wanted[number], 0.05))
        else:
            rows.append((title, ours, paper, 0.1))
    return [(name, 100 * ours, want, far) for name, ours, want, far in rows]


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    runs, rows = {}, []
    with tempfile.TemporaryDirectory() as folder:
        scores = Path(folder) / "fleur.csv"
        fleur_table(data / "fleur" / "fleur_flickr8k_expert.txt", scores)
        for name, place in FOLDERS.items():
            metrics = list(METRICS)
            if name == "flickr8k-expert":
                metrics += [
                    f"fleur-{kind}=scorefile:{scores}#{kind}" for kind in ("smoothed", "raw")
                ]
            log, problems = run_metrics(
                load_benchmark(name, data / place),
                label_metrics(metrics),
                MetricFactory(),
                AgreementProtocol(resamples=0, tau_m="scipy"),
            )
            for label, reason in problems.items():
                sys.exit(f"{label}: {reason}")
            runs[name] = log
            for label in log.results:
                rows += check(log, label)
    print(render_table(runs), end="\n\n")
    bad = 0
    for name, ours, wanted, far in rows:
        # Half a unit of the last digit printed is not an error.
        wrong = math.isnan(ours) or abs(ours - wanted) > far + 0.005
        bad += wrong
        print(f"{name:36} {ours:6.2f} wanted {wanted:6.2f} ± {far}{'  OUT OF REACH' * wrong}")
    print(f"{len(rows) - bad} of {len(rows)} cells reproduced")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
