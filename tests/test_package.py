"""The package as a whole: what it imports, what is public, how it is written."""

from __future__ import annotations

import ast
import builtins
import inspect
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

import discode

SOURCE = Path(discode.__file__).parents[1]
ROOT = SOURCE.parent
TESTS = Path(__file__).parent

PUBLIC = [
    "Backend", "BackendError", "Decoder", "DiscodeError", "Identity", "ImageError", "InputError",
    "Judge", "Metric", "MissingExtraError", "Pair", "PreferenceScores", "Prompt", "ReadingStore",
    "Readings", "Scale", "Scores", "Signature", "StoreError", "__version__", "decode",
    "get_decoder", "load", "make_pairs", "open_image", "read_pairs",
]  # fmt: skip

# Modules of discode that are not public, and that mceval uses: both are one distribution.
SHARED = {
    "discode._cli", "discode._cli.flags", "discode._cli.output", "discode._columns",
    "discode._files", "discode._http.guard", "discode._http.server", "discode._http.static",
    "discode._image_index", "discode._pairs", "discode._prompts", "discode._scales",
    "discode.backends._served.backend", "discode.backends._served.client",
    "discode.benchmarks._parsing",
}  # fmt: skip

# A module imports only from lines above its own (docs/architecture.md).
ROOMS = [
    "version", "errors", "extras", "options", "files", "plugins", "arrays", "pixels", "images",
    "columns", "image_index", "pairs",
    "sentences", "scales", "prompts", "readings", "backends", "decoders", "signature",
    "stats", "scores_html", "scores", "preferences", "explain", "rows", "judge", "integrations",
    "benchmarks", "metrics", "bulk", "bench", "paper", "probe", "http", "report", "serve",
    "__init__", "cli", "__main__",
]  # fmt: skip


# Changes of file and calls of the flows of perf/walk.py; a request varies with its threads.
FARTHEST = {"score": (60, 230), "bench run": (150, 585), "request": (64, 212)}


@lru_cache
def modules() -> list[tuple[Path, ast.Module]]:
    """Every module of both packages, by its path, parsed."""
    files = sorted(SOURCE.rglob("*.py"))
    return [(f.relative_to(SOURCE), ast.parse(f.read_text(encoding="utf-8"))) for f in files]


@lru_cache
def documented() -> set[str]:
    """The modules that have a page, or a part of one, in docs/api."""
    pages = sorted((ROOT / "docs" / "api").glob("*.md"))
    texts = [page.read_text(encoding="utf-8") for page in pages]
    return {name for text in texts for name in re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE)}


def test_the_reference_has_every_public_module() -> None:
    """Modules that are not in docs/api begin with an underscore, or their package does."""
    public = set()
    for path, _ in modules():
        parts = path.with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if not any(part.startswith("_") and part != "__init__" for part in parts):
            public.add(name)
    assert public - {"mceval"} == documented()


def test_import_is_light() -> None:
    """Python's own modules, numpy and Pillow: nothing else is imported before it is used."""
    code = "import sys; before = {*sys.modules}; import discode; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = {name.split(".")[0] for name in done.stdout.split()}
    new = {name for name in new if "cython_" not in name}  # numpy's, before version 2
    assert new - sys.stdlib_module_names <= {"discode", "numpy", "PIL"}


def test_public_names() -> None:
    assert sorted(PUBLIC) == PUBLIC
    assert discode.__all__ == PUBLIC
    for name in PUBLIC:
        assert name == "__version__" or inspect.getdoc(getattr(discode, name)), name


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_the_documentation_imports_what_is_public(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        code = re.sub(r"^(>>>|\.\.\.) ?", "", block, flags=re.MULTILINE)
        imports = r"^ *(?:from|import) (?:discode|mceval).*?(?:\(.*?\)|$)"
        for line in re.findall(imports, code, re.M | re.S):
            (node,) = ast.parse(line.strip()).body
            if isinstance(node, ast.ImportFrom) and node.module == "discode":
                assert {alias.name for alias in node.names} <= {*PUBLIC}, line
            elif isinstance(node, ast.ImportFrom):
                assert node.module in documented(), line
            elif isinstance(node, ast.Import):
                names = {alias.name for alias in node.names if alias.name.startswith("discode")}
                assert names <= documented(), line


def test_the_first_line_of_a_module_says_its_purpose() -> None:
    for path, tree in modules():
        first = (ast.get_docstring(tree) or "").partition("\n")[0]
        assert first.endswith("."), f"{path}: {first!r} is not a sentence"


def test_no_assert_guards_anything() -> None:
    """They vanish under ``python -O``."""
    found = [
        f"{path}:{node.lineno}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert)
    ]
    assert found == []


def test_every_public_exception_is_in_errors() -> None:
    known = {name for name in dir(builtins) if name.endswith(("Error", "Exception"))}
    known |= {name for name in dir(discode.errors) if name.endswith("Error")}
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                bases = {ast.unparse(base).split(".")[-1] for base in node.bases}
                assert path.name == "errors.py" or not bases & known, f"{path}: {node.name}"


def test_a_name_means_one_thing() -> None:
    """No two modules have a class, or a public function, of the same name.

    Verbs of the command line may be called like what they call.
    """
    where: defaultdict[str, list[str]] = defaultdict(list)
    for path, tree in modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) or (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and "_cli" not in path.parts
            ):
                where[node.name].append(path.as_posix())
    shared = {
        name: paths for name, paths in where.items() if len(paths) > 1 and not name.startswith("_")
    }
    assert shared == {}


def test_data_flows_down() -> None:
    for path, tree in modules():
        for name in imported(tree):
            package, *rest = name.split(".")
            if path.parts[0] == package == "discode":
                room, other = path.parts[1].removesuffix(".py"), [*rest, "__init__"][0]
                room, other = (re.sub("^_(?!_)", "", part) for part in (room, other))
                assert ROOMS.index(other) <= ROOMS.index(room), f"{path} imports {name}"


@pytest.mark.usefixtures("shipped")
def test_a_call_does_not_travel_far() -> None:
    """Changes of file and calls of one score, a small benchmark and a request (perf/walk.py)."""
    pytest.importorskip("fastapi", reason="a request needs discode-eval[serve]")
    done = subprocess.run(
        [sys.executable, str(ROOT / "perf" / "walk.py")],
        capture_output=True, text=True, check=True,
        env=os.environ | {"PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    line = r"^(.+?) +\d+ files +(\d+) changes +(\d+) calls$"
    walked = {name: (int(a), int(b)) for name, a, b in re.findall(line, done.stdout, re.M)}
    assert walked.keys() == FARTHEST.keys()
    for name, (changes, calls) in FARTHEST.items():
        assert walked[name][0] <= changes, name
        assert walked[name][1] <= calls, name


def test_mceval_stands_on_what_is_public() -> None:
    """And nothing of discode imports it but the verb, which finds it when it is called."""
    for path, tree in modules():
        for name in imported(tree):
            if path.parts[0] == "mceval" and name.split(".")[0] == "discode":
                assert name in documented() | SHARED, f"{path} imports {name}"
            if path.parts[0] == "discode" and name.split(".")[0] == "mceval":
                assert path.as_posix() == "discode/_cli/__init__.py", f"{path} imports {name}"


def imported(tree: ast.Module) -> Iterator[str]:
    """Yield the modules that a module imports, wherever in it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_nothing_prints_or_exits_outside_the_command_line() -> None:
    for file in SOURCE.rglob("*.py"):
        if "_cli" not in file.parts:
            text = file.read_text()
            assert "sys.exit" not in text, file
            assert "print(" not in text, file


def test_csv_is_written_in_one_way() -> None:
    """``files.csv_writer`` ends rows in LF and quotes carriage returns."""
    writing = [file.name for file in SOURCE.rglob("*.py") if "csv.writer(" in file.read_text()
               or "DictWriter(" in file.read_text()]  # fmt: skip
    assert writing == ["_files.py"]


def test_a_test_file_imports_from_no_other_one() -> None:
    """What several of them use is in tests/helpers."""
    for file in sorted(TESTS.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        found = re.findall(r"^ *(?:from|import) tests\.(?:\w+\.)*(?:conftest|test_\w+)", text, re.M)
        assert found == [], file


def test_no_test_looks_at_the_clock() -> None:
    """The machine may be busy: speed belongs in perf/. Deadlines of loops are another thing."""
    for file in sorted(TESTS.rglob("*.py")):
        if file != Path(__file__):
            text = file.read_text(encoding="utf-8")
            assert "perf_counter" not in text, file
            assert not re.search(r"^ *assert .*monotonic\(", text, re.M), file


def build_package(target: str, folder: Path) -> Path:
    pytest.importorskip("hatchling", reason="building a package needs discode-eval[dev]")
    if not (ROOT / "pyproject.toml").is_file():
        pytest.skip("the package is not tested from its checkout")
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_package("wheel", tmp_path_factory.mktemp("wheel"))


def test_the_notice_names_every_source_of_the_model_card() -> None:
    card = (ROOT / "docs" / "MODEL_CARD.md").read_text(encoding="utf-8")
    notice = (SOURCE / "discode" / "data" / "NOTICE").read_text(encoding="utf-8")
    table = card.partition("| source | images, captions | terms |")[2].partition("\n\n")[0]
    sources = re.findall(r"^\| ([A-Z][^|]*?) \|", table, re.MULTILINE)
    assert sources
    for source in sources:
        assert f"- {source}: " in notice
    parts = re.findall(r"([\w-]+) \(Apache-2\.0", card)
    assert parts
    assert all(part in notice for part in parts)


@pytest.mark.slow
@pytest.mark.full
def test_the_source_archive_has_the_tests_and_no_stray_file(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("the package is not tested from its checkout")
    tracked = set(listed.stdout.splitlines())
    with tarfile.open(build_package("sdist", tmp_path)) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    assert names - tracked == {"PKG-INFO"}
    folders = ("src/", "tests/", "docs/", "perf/", "training/")
    weights = {name for name in tracked if name.startswith("training/start/")}  # 50 MiB
    assert {name for name in tracked if name.startswith(folders)} - weights <= names


@pytest.mark.slow
@pytest.mark.full
def test_the_wheel_holds_everything_that_is_used(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    for path in SOURCE.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(SOURCE).as_posix() in names
    assert {
        f"discode/data/demo/{name}" for name in ("cat.jpg", "captions.csv", "cases.csv")
    } <= names
    licences = {name.partition(".dist-info/licenses/")[2] for name in names}
    assert {"LICENSE", "docs/MODEL_CARD.md", "src/discode/data/NOTICE"} <= licences
    assert not {name for name in names if name.startswith(("tests", "training", "docs"))}


@pytest.mark.slow
@pytest.mark.full
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
