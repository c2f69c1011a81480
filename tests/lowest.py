"""Install the lowest versions that pyproject.toml allows in fresh environments and run the tests.

The first environment has the core alone, the second also the extras that need no torch. Extras with
torch, Ray or a GPU are left out: they are several gigabytes, and `make full` runs their tests with
the versions of `.[dev]`. The oldest Python on the PATH is used; the lowest versions have wheels up
to Python 3.12, and without one of these nothing is checked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib

ROOT = Path(__file__).parents[1]
EXTRAS = (
    "annotate", "bench", "datasets", "evaluate", "mceval", "pandas", "parquet", "plot", "postgres",
    "serve",
)  # fmt: skip
TOOLS = ("pytest", "pytest-xdist", "hypothesis")
# numpy 1.26 rounds some logarithms to the other neighbour
BITS = ("tests/readings/test_store.py::test_a_store_of_0_1_0_replays_bit_for_bit",)
BOUND = re.compile(r"([\w-]+)(?:\[[\w,-]+\])?>=([\w.]+)")


def lowest(requirements: list[str]) -> list[str]:
    """Return the lower bounds as exact versions.

    >>> lowest(["psycopg[binary]>=3.1", "discode-eval[hf]"])
    ['psycopg==3.1']
    """
    return [f"{bound[1]}=={bound[2]}" for bound in map(BOUND.fullmatch, requirements) if bound]


def oldest_python() -> str | None:
    """Return the oldest Python that has wheels of the lowest versions and runs here."""
    for name in ("python3.10", "python3.11", "python3.12"):
        python = shutil.which(name)
        works = [python or "", "-c", "import ensurepip"]
        if python and not subprocess.call(works, stderr=subprocess.DEVNULL):
            return python
    return None


def check(python: str, folder: Path, project: dict[str, Any], extras: tuple[str, ...]) -> None:
    """Run the quick tests in a new environment of the core and these extras."""
    constraints = folder / "constraints.txt"
    requirements = [*project["dependencies"]]
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    constraints.write_text("\n".join(lowest(requirements)) + "\n")
    subprocess.run([python, "-m", "venv", str(folder / "venv")], check=True)
    binaries = folder / "venv" / "bin"
    named = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    install = [str(binaries / "pip"), "install", "--quiet", "--only-binary", ":all:"]
    # editable, so that tests find the documents beside the source
    subprocess.run([*install, "-c", str(constraints), "-e", named, *TOOLS], check=True)
    quick = ["make", "--no-print-directory", "-C", str(ROOT), "quick-tests", f"BIN={binaries}"]
    quick += ["--old-file", ".venv/dev.stamp"]  # the tools are in the new environment
    # old versions use what newer ones of their own dependencies deprecate
    options = ["-W ignore::DeprecationWarning", f"--basetemp={folder / 'tests'}"]
    options += [f"--deselect={name}" for name in BITS]
    environment = os.environ | {"PYTEST_ADDOPTS": " ".join(options), "MAKEFLAGS": ""}
    subprocess.run(quick, check=True, env=environment)


def main() -> None:
    """Check the core, and the core with every extra that is checked."""
    python = oldest_python()
    if python is None:
        sys.stderr.write("no Python from 3.10 to 3.12 here: the lowest versions are not checked\n")
        return
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    for extras in ((), EXTRAS):
        with tempfile.TemporaryDirectory(prefix="discode-lowest-") as folder:
            check(python, Path(folder), project, extras)


if __name__ == "__main__":
    main()
