"""The package as a whole: what it imports, what it shows, which room may enter which."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import discode

SOURCE = Path(discode.__file__).parent
HEAVY = (
    "torch",
    "transformers",
    "ray",
    "matplotlib",
    "fastapi",
    "pycocoevalcap",
    "pyarrow",
    "rich",
)

# A module imports only from lines above its own (docs/architecture.md).
ROOMS = [
    "version", "errors", "files", "pairs", "shift", "scales", "prompts", "readings", "store",
    "exchange", "backends", "decoders", "signature", "scores", "judge", "__init__", "cli",
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
        room = file.relative_to(SOURCE).parts[0].removesuffix(".py")
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
