"""Make studies.md: run every study on the embedded judge and real data, and write what came out.

    python docs/make_studies.py DATA [--output FOLDER] [-b BENCHMARK]...

DATA is a folder of benchmarks, as ``discode study --data`` takes it. FOLDER (build/studies) keeps
readings and runs: the first time the judge reads every pair, later everything is decoded from what
is there. Figures without photographs of a benchmark are copied to images/.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

from discode.paper import STUDIES, Study

DOCS = Path(__file__).parent


@dataclass(frozen=True)
class PageNote:
    """What the page says about a study's numbers, whether it shows its figure, and its options."""

    text: str
    figure: bool = False
    options: tuple[str, ...] = ()


HEAD = """\
# Studies
One command for each table and figure of the paper: ours beside the paper's numbers, on any model
and data. `discode study` lists them.

```console
$ discode study ablation --data DATA --model ORG/NAME -o studies/     # asks the model once
$ discode study sigma --data DATA --log studies/runs -o studies/      # decodes what it said
$ discode study models --log 8b/runs --log 34b/runs                   # a table of several models
```
`-o` writes the tables as text, Markdown, LaTeX and CSV, a figure, the run logs and the store of
readings; what is in the folder already is not asked for or computed again. Without `--model` the
embedded judge is asked, with `--log` nobody: readings in the store beside a log are decoded again,
and without a store the scores in the log are taken as they are.

This page was made by `python docs/make_studies.py DATA`{what}. Its judge is the small model that
ships with the package ({judge}), which is none of the paper's, so the page does not confirm or
refute any number of the paper's judges. A line that is marked *published* was not run: it is copied
from the paper. An interval is a bootstrap over images.
"""

NOTES = {
    "main": PageNote(
        "The text metrics are the paper's own systems on the same data, and their numbers agree "
        "with its table to the last digit that it prints: the data and the statistics are the "
        "published ones. The judge's lines are of another model; compare them with each other.",
        figure=True,
    ),
    "mceval": PageNote(
        "MCEval's data is not public, so there is nothing to run here. The command works on any "
        "folder in MCEval's format, such as the export of a campaign (`discode mceval export`). "
        "The study `shift` shows the embedded judge on re-rendered photographs instead."
    ),
    "references": PageNote(
        "The embedded judge was not trained to see references and refuses them. Any other model is "
        "asked with the references in the prompt."
    ),
    "foil": PageNote(
        "The copy of FOIL that this page was made with has captions but neither photographs nor "
        "references, so no metric can score it."
    ),
    "ablation": PageNote(
        "The *exact minimiser* is the formula that the paper derives and uses. Solved exactly with "
        "its adaptive α, the printed loss gives the raw digit or nearly so, but in the paper's "
        "table DISCODE is far above it. *Ten Adam steps*, which the paper takes for other "
        "divergences, start here at the model's own distribution and stop long before the minimum. "
        "Whether they would give the printed rows is our guess, and needs the paper's models.",
        figure=True,
    ),
    "sigma": PageNote(
        "At σ² = 0.01 the exact minimiser is the raw digit for every model: α is below 2e-5 for "
        "all digits, and the formula divides by it. For its own model the paper prints 32.2 for "
        "the raw digit and 56.1 at σ² = 0.01 (τ_c), in a table of its source that is not typeset. "
        "We infer that this was not exact minimisation. Ten Adam steps hardly feel σ², either.",
        figure=True,
    ),
    "divergence": PageNote(
        "The same comparison for other divergences from the prior: compare the order of the lines "
        "in the three blocks. With one model and one benchmark no divergence is shown to be the "
        "best.",
        figure=True,
    ),
    "scale": PageNote(
        "The embedded judge knows one scale. A model that takes any prompt is asked on all four; "
        "each scale is a reading of its own."
    ),
    "models": PageNote(
        "Lines of the paper's ten models are filled in, with the paper's number below, by running "
        "the same command on them, on one machine or on several, and joining the logs."
    ),
    "cost": PageNote(
        "Compare the shares, not the seconds: machine and model are others than the paper's. "
        "`--random-weights llava-next-8b` times an architecture of the paper without its weights "
        "(-13b, -34b and -72b, too, where they fit)."
    ),
    "digits": PageNote(
        "In the paper, LLaVA-NeXT often overestimates 0: a second hump. The "
        "embedded judge was trained on Gaussian targets and has almost none: there is no "
        "symbolic bias here for a prior to remove. But few digits are the likeliest for most "
        "pairs, which is why raw scores tie.",
        figure=True,
    ),
    "examples": PageNote(
        "Cases are chosen by a rule, half of them for each metric; the sentence below the table "
        "says how rare they are. With `-o` they are drawn with their photographs and the "
        "distributions before and after decoding. The photographs are not ours to show here."
    ),
    "dataset": PageNote(
        "The paper's sizes and lengths, found again: a word is what stands between spaces, and "
        "11.9154 was cut, not rounded. Pascal-50S's 8.75 words are those of the references; its "
        "captions have 10.41. Composite's two numbers do not fit the public copy in any way tried."
    ),
    "shift": PageNote(
        "The judgments are of the photographs, so this measures what rendering does to the judge "
        "and not how people see drawings. Which decoder is best depends on the domain, and the "
        "sentences below the tables name only differences whose interval has no 0.",
        figure=True,
        options=("--images", "100"),
    ),
}
"""By study. A study without a note is shown with what it says about itself."""


def main() -> None:
    """Run every study and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--output", type=Path, default=Path("build/studies"))
    parser.add_argument("-b", "--benchmark", action="append")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    parts, start = [], time.monotonic()
    for study in STUDIES.values():
        print(f"{time.monotonic() - start:6.0f} s  {study.name}", file=sys.stderr)
        parts.append(section(study, given.data, given.output, given.benchmark or []))
    # Of the verbs alone, whatever else the machine does.
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{time.monotonic() - start:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of CPU time",
        file=sys.stderr,
    )
    names = " and ".join(given.benchmark or [])
    what = f" on {names}" if names else ""
    head = HEAD.format(what=what, judge=judge())
    opening, _, last = head.rstrip().rpartition("\n\n")
    head = f"{opening}\n\n{textwrap.fill(last, 100)}\n"
    (DOCS / "studies.md").write_text("\n".join([head, *parts]), encoding="utf-8")


def judge() -> str:
    """Return the embedded model's name and revision."""
    from discode.backends import open_backend

    identity = open_backend("embedded").identity
    return f"{identity.model} {identity.revision}"


def section(study: Study, data: Path, out: Path, benchmarks: list[str]) -> str:
    """Run a study, and return its part of the page."""
    arguments = ["study", study.name]
    shown = list(arguments)
    if study.benchmarks:
        mine = [text for text in benchmarks if fits(study, text)]
        chosen = [word for text in mine for word in ("-b", text)]
        arguments += ["--data", str(data), *chosen]
        shown += ["--data", "DATA", *chosen]
    note = NOTES.get(study.name, PageNote(""))
    arguments += note.options
    shown += note.options
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.png")}
    done = subprocess.run(
        [sys.executable, "-m", "discode", *arguments, "-o", str(out)],
        capture_output=True, text=True, env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"},
    )  # fmt: skip
    said = [done.stdout.rstrip()]
    if done.returncode:
        said += [line for line in done.stderr.strip().splitlines() if keeps(line)]
    lines = "\n".join(filter(None, said)).replace(str(data), "DATA").replace(str(out), "studies")
    paper = f" (the paper's {', '.join(study.paper)})" if study.paper else ""
    parts = [f"## {study.name}", f"{study.about[:1].upper()}{study.about[1:]}{paper}."]
    parts += [textwrap.fill(note.text, 100, break_on_hyphens=False)] if note.text else []
    parts.append(f"```console\n$ discode {' '.join(shown)} -o studies/\n{lines}\n```")
    for path in sorted(out.glob("*.png")) if note.figure else ():
        if before.get(path) != path.stat().st_mtime_ns:
            name = f"study-{path.name}"
            shutil.copyfile(path, DOCS / "images" / name)
            parts.append(f"![The figure of {study.name}](images/{name})")
    return "\n\n".join(parts) + "\n"


def fits(study: Study, benchmark: str) -> bool:
    """Whether a study is about a benchmark; those that are about others run on their own."""
    name = benchmark.partition(":")[0]
    return any(one.partition(":")[0] == name for one in study.benchmarks)


def keeps(line: str) -> bool:
    """Whether a line on standard error belongs to the page: refusals and failures do."""
    return bool(line.strip()) and not line.startswith(("discode: judging with", "written to"))


if __name__ == "__main__":
    main()
