"""Install the lowest versions that pyproject.toml allows in fresh environments and run the tests.

The first environment has the core alone, the second also the extras that need no torch. Extras with
torch, Ray or a GPU are left out: they are several gigabytes, and `make full` runs their tests with
the versions of `.[dev]`. Wheels of the lowest versions must exist for the interpreter.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
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


def check(folder: Path, project: dict[str, Any], extras: tuple[str, ...]) -> None:
    """Run the quick tests in a new environment of the core and these extras."""
    constraints = folder / "constraints.txt"
    requirements = [*project["dependencies"]]
    for extra in extras:
        requirements += project["optional-dependencies"][extra]
    constraints.write_text("\n".join(lowest(requirements)) + "\n")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    named = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    install = [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    subprocess.run([*install, "-c", str(constraints), named, *TOOLS], check=True)
    quick = ["make", "--no-print-directory", "-C", str(ROOT), "quick-tests", f"BIN={python.parent}"]
    quick += ["--old-file", ".venv/dev.stamp"]  # the tools are in the new environment
    # old versions use what newer ones of their own dependencies deprecate
    options = ["-W ignore::DeprecationWarning", *(f"--deselect={name}" for name in BITS)]
    environment = os.environ | {"PYTEST_ADDOPTS": " ".join(options)}
    subprocess.run(quick, check=True, env=environment)


def main() -> None:
    """Check the core, and the core with every extra that is checked."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)["project"]
    for extras in ((), EXTRAS):
        with tempfile.TemporaryDirectory(prefix="discode-lowest-") as folder:
            check(Path(folder), project, extras)


if __name__ == "__main__":
    main()
