"""The package as a whole: what it imports, what it shows, which room may enter which."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

import discode

SOURCE = Path(discode.__file__).parent
HEAVY = (
    "onnxruntime",
    "torch",
    "transformers",
    "ray",
    "matplotlib",
    "fastapi",
    "pycocoevalcap",
    "pyarrow",
    "rich",
    "sqlalchemy",
)

# A module imports only from lines above its own (docs/architecture.md).
ROOMS = [
    "version", "errors", "files", "images", "pairs", "shift", "scales", "prompts", "readings",
    "backends", "decoders", "signature", "scores", "judge", "stats", "benchmarks", "metrics",
    "bulk", "bench", "studies", "http", "serve", "mceval", "__init__", "cli", "__main__",
]  # fmt: skip


def test_import_is_light_and_fast() -> None:
    code = f"import discode, sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    times = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        times.append(time.perf_counter() - start)
        assert done.stdout.strip() == "[]"
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    assert min(times) - (time.perf_counter() - start) < 0.5


def test_public_names() -> None:
    assert discode.__all__ == sorted(discode.__all__)
    for name in discode.__all__:
        assert hasattr(discode, name)
    assert discode.__all__ == [
        "DiscodeError", "Judge", "Metric", "Pair", "ReadingStore", "Readings", "Scale", "Scores",
        "__version__", "decode", "load",
    ]  # fmt: skip


def test_data_flows_down() -> None:
    for file in SOURCE.rglob("*.py"):
        parts = file.relative_to(SOURCE).parts
        # The verbs of campaigns live with them, and print as all verbs do.
        room = "cli" if "cli" in parts else parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text())):
            modules = []
            if isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            elif isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            for module in modules:
                if module.split(".")[0] == "discode":
                    other = [*module.split("."), "__init__"][1]
                    assert ROOMS.index(other) <= ROOMS.index(room), f"{file} imports {module}"


def test_nothing_prints_or_exits_outside_the_command_line() -> None:
    for file in SOURCE.rglob("*.py"):
        if "cli" not in file.parts:
            text = file.read_text()
            assert "sys.exit" not in text, file
            assert "print(" not in text, file


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="building a wheel wants discode[dev]")
    root, folder = SOURCE.parents[1], tmp_path_factory.mktemp("wheel")
    if not (root / "pyproject.toml").is_file():
        pytest.skip("the package is not tested from its checkout")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    (made,) = folder.glob("*.whl")
    return made


def test_the_wheel_holds_everything_that_is_used(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    for path in SOURCE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(SOURCE.parent).as_posix() in names
    assert {f"discode/data/demo/{name}" for name in ("cat.jpg", "captions.csv")} <= names
    assert not {name for name in names if name.startswith(("tests", "training", "docs"))}


def test_the_wheel_judges_where_only_it_is_installed(
    wheel: Path, shipped: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as file:
        assert f"discode/data/{shipped.name}" in file.namelist()
        file.extractall(tmp_path)
    code = "import discode; from discode.images import demo_path; print(discode.__file__); "
    code += "print(float(discode.load().score(demo_path() / 'cat.jpg', 'a cat')))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    where, score = done.stdout.split()
    assert Path(where).is_relative_to(tmp_path)
    assert 0 <= float(score) <= 1
