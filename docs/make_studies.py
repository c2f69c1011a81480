"""Update the outputs and figures of studies.md and probe.md by running their commands.

    python docs/make_studies.py DATA [--page probe.md] [--output FOLDER]

DATA is a folder of benchmarks, as ``discode paper --data`` takes it. FOLDER (build/studies) keeps
readings and runs: the first time the embedded judge reads every pair, later stored readings are
decoded.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from make_outputs import renewed

DOCS = Path(__file__).parent
PAGES = ("studies.md", "probe.md")
BLOCK = re.compile(
    r"```console\n\$ discode ((?:paper|probe) [^\n]* -o (?:studies|card)/)\n(.*?\n)```", re.S
)
FIGURE = re.compile(r"images/study-([\w-]+)\.png")


def main() -> None:
    """Run every command with an output, and replace the output, up to ``...`` if it ends so."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--page", choices=PAGES, help="update only this page")
    parser.add_argument("--output", type=Path, default=Path("build/studies"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    names = {
        "DATA": str(arguments.data),
        "studies/": str(arguments.output),
        "card/": str(arguments.output / "card"),
    }

    def renew(block: re.Match[str]) -> str:
        print(block[1], file=sys.stderr)
        words = [names.get(word, word) for word in block[1].split()]
        environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"}
        done = subprocess.run(
            [sys.executable, "-m", "discode", *words], stdout=subprocess.PIPE, text=True,
            env=environment, check=True,
        )  # fmt: skip
        shown = renewed(block[2], f"{done.stdout.rstrip()}\n")
        return f"```console\n$ discode {block[1]}\n{shown}```"

    for name in [arguments.page] if arguments.page else PAGES:
        page = BLOCK.sub(renew, (DOCS / name).read_text(encoding="utf-8"))
        (DOCS / name).write_text(page, encoding="utf-8")
        for figure in FIGURE.findall(page):
            shutil.copyfile(arguments.output / f"{figure}.png", DOCS / f"images/study-{figure}.png")


if __name__ == "__main__":
    main()
