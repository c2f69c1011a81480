"""Make the tables of choosing-a-decoder.md and alpha.md, and alpha.md's plot.

    python docs/make_choice.py DATA [--shift FOLDER]      (requires the extra dev)

DATA has ``judges/`` (log-probabilities of large models with people's scores), ``flickr8k/`` as
published, and ``readings/flickr8k_expert_*.npz`` (those of two small models). FOLDER is the output
of the command in alpha.md for the shipped judge; without it the judge's rows are kept.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
from make_outputs import ROOT, run

import discode
from discode._scales import FIVE
from discode.bench import RunLog
from discode.bench._digits import above_one_hump
from discode.decoders._discode import log_alpha
from discode.stats import KendallPlan

PAGES = [ROOT / "docs/choosing-a-decoder.md", ROOT / "docs/alpha.md"]
BLOCK = re.compile(
    r"(?<=<!-- made by docs/make_choice.py: )(?P<name>\w+) -->\n(?P<body>.*?)(?=<!-- end of )", re.S
)
JUDGES = {
    "divake_v2.csv": "LLaVA-Critic-7B, MLLM-as-a-Judge",
    "divake_v2_phi4.csv": "Phi-4-multimodal, MLLM-as-a-Judge",
    "divake_v2_gemini.csv": "Gemini 2.5 Flash, MLLM-as-a-Judge",
    "divake_v2_polaris.csv": "LLaVA-Critic-7B, captions of Polaris",
}
CHOOSE = (
    "discode choose --scale five --where 'parsed_score>=1' --rating-column gt_score_continuous "
    "--rating-column gt_score"
)
COMMAND = " ".join([CHOOSE, *(f"--readings {name}" for name in JUDGES)])
SHOWN = " ".join([CHOOSE, *(f"--readings {name}" for name in [*JUDGES][-2:])])
DOMAINS = ("photo", "sketch", "painting", "clipart")
SHIPPED = {"photo": "photographs", "quickdraw": "quick drawings"}
COLUMNS = {"discode": "discode", "paper": "paper", "λ=9": "discode:trust=9"}
FORMS = {
    "printed: digit α, τ = α": "paper",
    "unit α, τ = α": "paper-unit",
    "α = ½, τ = α": "no-adaptive-alpha",
    "digit α in [0, 1], τ = 1": "discode",
}


def signed(value: float) -> str:
    """Return a difference with its sign, or 0.00."""
    return "0.00" if abs(value) < 0.005 else f"{value:+.2f}"


def with_interval(cells: dict[str, float], name: str) -> str:
    """Return a difference, with its interval if it has one."""
    low, high = (cells.get(f"{name} {end}") for end in ("low", "high"))
    value = signed(cells[name])
    return value if low is None or high is None else f"{value} ({signed(low)} to {signed(high)})"


def row_of(name: str, cells: dict[str, float], ties: dict[str, float]) -> str:
    """Return a line of the table of agreement; ``ties`` are the tie rates of its decoders."""
    numbers = [f"{cells['raw']:.2f}", f"{cells['smoothing']:.2f}"]
    numbers += [with_interval(cells, column) for column in COLUMNS]
    rates = f"{ties['raw']:.1f}, {max(ties[column] for column in ('smoothing', *COLUMNS)):.1f}"
    return f"| {name} | {' | '.join(numbers)} | {rates} |\n"


def chosen(command: str) -> tuple[str, dict[str, dict[str, float]]]:
    """Run a command; return its output, and its table by file."""
    with tempfile.TemporaryDirectory() as out:
        printed = run(f"{command} -o {out}")
        with (Path(out) / "choose.csv").open(encoding="utf-8", newline="") as file:
            rows = {row.pop("readings"): row for row in csv.DictReader(file)}
    return printed, {
        name: {column: float(cell.replace(",", "")) for column, cell in row.items() if cell}
        for name, row in rows.items()
    }


def learned() -> str:
    """Return the linear decoder's differences to smoothing, and the gains on held-out rows."""
    printed, judges = chosen(f"{COMMAND} --learn")
    gain = r": .*?(\S+) τ_c on held-out rows \(95 % interval (\S+ to [^,\s]+)"
    lines = ["| | smoothing | linear | choice, held-out rows |", "| --- " * 4 + "|"]
    for name, title in JUDGES.items():
        cells = judges[name]
        held_out = re.search(re.escape(name) + gain, printed)
        assert held_out is not None, printed
        numbers = f"{cells['smoothing']:.2f} | {signed(cells['linear'])}"
        lines.append(f"| {title} | {numbers} | {held_out[1]} ({held_out[2]}) |")
    return "\n".join(lines) + "\n"


def sampled() -> str:
    """Return the agreement of smoothing on answers drawn from the log-probabilities."""
    with tempfile.TemporaryDirectory() as out:
        run(f"{COMMAND} --samples 5,10,20,50 -o {out}")
        with (Path(out) / "samples.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    columns = [n for n in rows[0] if n != "answers drawn" and not n.endswith(("low", "high"))]
    lines = [f"| answers drawn | {' | '.join(columns)} |", "| --- " * (1 + len(columns)) + "|"]
    for name, title in JUDGES.items():
        (cells,) = (
            row for row in rows if re.fullmatch(rf"{name}, .* / smoothing", row["answers drawn"])
        )
        lines.append(f"| {title} | {' | '.join(f'{float(cells[n]):.2f}' for n in columns)} |")
    return "\n".join(lines) + "\n"


def humps(data: Path, judges: dict[str, dict[str, float]]) -> str:
    """Return the shares of rows led by a second hump, and the gains of a prior and of a cut."""
    lines = [
        "| | led by a second hump | `discode` | hump cut off, no prior |",
        "| --- " * 4 + "|",
    ]
    for name, title in JUDGES.items():
        people, logp = people_and_logp(data, name)
        p = np.exp(logp)
        cut = p - above_one_hump(p)
        plan = KendallPlan(cut @ np.arange(1, 6) / cut.sum(axis=1), people, variant="c")
        gain = 100 * plan(np.ones(len(people), np.int64)) - judges[name]["smoothing"]
        share = f"{judges[name]['2nd hump %']:.1f} %"
        lines.append(f"| {title} | {share} | {signed(judges[name]['discode'])} | {signed(gain)} |")
    return "\n".join(lines) + "\n"


def expert_ratings(data: Path) -> dict[tuple[str, str], list[int]]:
    """Return the three ratings of each pair of Flickr8k-Expert, by image and caption."""
    lines = (data / "flickr8k/ExpertAnnotations.txt").read_text().splitlines()
    return {
        (image, caption): [*map(int, votes)] for image, caption, *votes in map(str.split, lines)
    }


def small_models(data: Path) -> tuple[dict[str, float], dict[str, float]]:
    """Return means over the two small models and ``DOMAINS``, by the experts' mean rating: τ_c and
    differences, and tie rates."""
    ratings = expert_ratings(data)
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for path in sorted((data / "readings").glob("*.npz")):
            recorded: Any = np.load(path)
            pairs = list(zip(recorded["image"].tolist(), recorded["caption"].tolist(), strict=True))
            for domain in DOMAINS:
                files.append(Path(folder) / f"{path.stem}-{domain}.jsonl")
                rows = [
                    json.dumps(
                        {"image": pair[0], "score": np.mean(ratings[pair]), "log_probs": logp}
                    )
                    for pair, logp in zip(pairs, recorded[domain].tolist(), strict=True)
                ]
                files[-1].write_text("\n".join(rows))
        words = " ".join(f"--readings {file}" for file in files)
        sets = chosen(f"discode choose {words} --rating-column score --resamples 100")[1]

    def mean(ties: bool) -> dict[str, float]:
        rows = [cells for name, cells in sets.items() if ("ties" in name) is ties]
        return {
            column: float(np.mean([cells[column] for cells in rows]))
            for column in ("raw", "smoothing", *COLUMNS)
        }

    return mean(False), mean(True)


def people_and_logp(data: Path, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Return people's scores (N,) and log-probabilities (N, 5) of the rows with a rating."""
    with (data / "judges" / name).open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if float(row["parsed_score"] or 0) >= 1]
    logp = np.array([[float(row[f"s2_lp{answer}"]) for answer in FIVE.answers] for row in rows])
    people = [float(row.get("gt_score_continuous") or row["gt_score"]) for row in rows]
    return np.array(people), logp


def alpha_table() -> str:
    """Return α for every raw digit, on both scales."""
    lines = ["| s_raw | " + " | ".join("0123456789") + " |", "| --- " * 11 + "|"]
    for name, step in (("α, digits", 1.0), ("α, unit scale", 0.1)):
        cells = " | ".join(f"{a:.2g}" for a in np.exp(log_alpha(step * np.arange(10.0))))
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines) + "\n"


def blocks_of(data: Path) -> dict[str, str]:
    """Return the text between the markers, by name."""
    os.chdir(data / "judges")
    judges = chosen(COMMAND)[1]
    printed = chosen(SHOWN)[0]
    typed = re.sub(
        r" (--rating-column \S+ --rating-column|--readings \S+ --readings)", r" \\\n    \1", SHOWN
    )
    lines = [
        part
        for line in printed.rstrip().splitlines()
        for part in ([line.rstrip()] if "  " in line else textwrap.wrap(line, 110) or [""])
    ]
    head = "| | raw | smoothing | **`discode`** | `paper` | λ = 9 | ties % |\n" + "| --- " * 7
    rows = [row_of(t, judges[name], judges[f"{name}, ties %"]) for name, t in JUDGES.items()]
    small = "two small models, Flickr8k-Expert: mean of eight sets"
    rows.append(row_of(small, *small_models(data)))
    return {
        "agreement": head + "|\n" + "".join(rows),
        "output": "```console\n$ " + typed + "\n" + "\n".join(lines) + "\n```\n",
        "learned": learned(),
        "sampled": sampled(),
        "alpha": alpha_table(),
        "humps": humps(data, judges),
    }  # fmt: skip


def shipped_judge(folder: Path) -> dict[str, str]:
    """Return the rows of the shipped judge from the output of ``discode paper shift``."""
    tables = []
    for name in ("shift", "shift-differences"):
        with (folder / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            tables.append({row.pop("domain"): row for row in csv.DictReader(file)})
    rows = ""
    for style, title in SHIPPED.items():
        cells = {name: float(tables[0][style][name]) for name in ("raw", "smoothing")}
        (log,) = (folder / "runs").glob(f"*_{style}.json")
        ties = {
            label: 100 * result.measures["ties"].value
            for label, result in RunLog.load(log).results.items()
        }
        for column, method in COLUMNS.items():
            for end in ("", " low", " high"):
                cells[f"{column}{end}"] = float(tables[1][style][f"{method}{end}"])
            ties[column] = ties[method]
        rows += row_of(f"the shipped judge, Flickr8k-Expert: {title}", cells, ties)
    return {"shipped rows": rows}


def renew(page: str, blocks: dict[str, str]) -> str:
    """Return a page with new blocks; without new rows of the shipped judge the old ones stay."""

    def fill(block: re.Match[str]) -> str:
        name, body = block["name"], block["body"]
        made = blocks.get(name, body)
        if name == "agreement":
            kept = [
                line for line in body.splitlines(keepends=True) if line.startswith("| the shipped")
            ]
            made += blocks.get("shipped rows", "".join(kept))
        return f"{name} -->\n{made}"

    return BLOCK.sub(fill, page)


def plot(path: Path) -> None:
    """Draw the same distribution, with a bump at 0, under every form of α."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    p = np.array([0.22, 0.05, 0.02, 0.02, 0.03, 0.05, 0.09, 0.26, 0.2, 0.06])
    figure, axes = plt.subplots(2, 4, figsize=(13, 5), sharey=True, layout="constrained")
    # The second row moves the peak from 7 to 5, the middle, where the printed α is 0.36.
    for axis_row, tokens in zip(axes, (p, np.r_[p[0], p[3:], p[1:3]]), strict=True):
        for axis, (name, method) in zip(axis_row, FORMS.items(), strict=True):
            scores = discode.decode(np.log(tokens), method)
            assert scores.distribution is not None
            axis.bar(np.arange(10), tokens, 0.85, color="#c9d1d9", label="tokens")
            axis.bar(np.arange(10), scores.distribution[0], 0.45, color="#d1495b", label="after")
            axis.set_title(f"{name}\nscore {float(scores):.2f}", fontsize=10)
            axis.set_xticks(range(10))
            axis.spines[["top", "right"]].set_visible(False)
        axis_row[0].set_ylabel(f"s_raw = {tokens.argmax()}")
    axes[0, 0].legend(frameon=False)
    figure.savefig(path, dpi=80)


def main() -> None:
    """Rewrite the pages and the plot."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--shift", type=Path)
    arguments = parser.parse_args()
    blocks = shipped_judge(arguments.shift) if arguments.shift else {}
    blocks |= blocks_of(arguments.data.resolve())
    for page in PAGES:
        page.write_text(renew(page.read_text(encoding="utf-8"), blocks), encoding="utf-8")
    plot(ROOT / "docs/images/alpha.png")


if __name__ == "__main__":
    main()
