"""How many files one request crosses: a walk through the package, printed as counts.

    python perf/walk.py            # files, and changes of file, of three flows
    python perf/walk.py --show     # and the way itself, call by call

Every call of a function of the package is a step; a step into another file than the one before is
a change of file. Imports are not counted. Flows: one score on the command line, a small benchmark,
one HTTP request.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import discode
from discode._cli import main

ROOT = Path(discode.__file__).parent
CAT = ROOT / "data" / "demo" / "cat.jpg"


Steps = list[tuple[str, str]]


def walk(flow: Callable[[], object], steps: Steps | None = None) -> Steps:
    """Return the (file, function) of every call that ``flow`` makes in the package."""
    steps = [] if steps is None else steps
    root = f"{ROOT}/"

    def step(frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        # Comprehensions and lambdas stand where they are written: nobody walks to them.
        if event == "call" and code.co_filename.startswith(root) and code.co_name[0] != "<":
            steps.append((code.co_filename.removeprefix(root), code.co_name))

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        sys.setprofile(step)
        threading.setprofile(step)
        try:
            flow()
        except SystemExit:
            pass
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    return steps


def command(*arguments: str) -> None:
    """Run the command line as it would be typed."""
    before, sys.argv = sys.argv, ["discode", *arguments]
    try:
        main()
    finally:
        sys.argv = before


def small_benchmark(folder: Path) -> Path:
    """Write two images with two rated captions each, as a benchmark of one's own."""
    rows = [
        {"image": str(CAT.with_name(name)), "caption": caption, "rating": rating}
        for name in ("cat.jpg", "coffee.jpg")
        for caption, rating in (("a cat", 3), ("a cup of coffee", 2))
    ]
    path = folder / "ratings.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def request() -> Steps:
    """Return the steps of one question to the service; starting it does not count."""
    from fastapi.testclient import TestClient

    from discode._serve import app as service

    judge = discode.load("embedded", threads=1)
    data = {"captions": ["a cat"]}
    marks: list[int] = []

    def flow() -> None:
        application = service.make_service(
            judge, service.ServiceOptions(method="discode", hosts=None)
        )
        with TestClient(application, base_url="http://localhost") as client:
            client.get("/healthz")
            marks.append(len(steps))
            client.post("/v1/score", files={"image": CAT.read_bytes()}, data=data)
            marks.append(len(steps))

    steps: Steps = []
    walk(flow, steps)
    return steps[marks[0] : marks[1]]


def report(name: str, steps: Steps, *, show: bool) -> None:
    """Print one flow."""
    files = [file for file, _ in steps]
    changes = sum(a != b for a, b in itertools.pairwise(files))
    print(f"{name:<10} {len(set(files)):>3} files {changes:>5} changes {len(steps):>6} calls")
    if show:
        last = ""
        for file, function in steps:
            print(f"    {'' if file == last else file:<36}{function}")
            last = file


def run() -> None:
    """Walk the three flows."""
    show = "--show" in sys.argv
    report("score", walk(lambda: command("score", str(CAT), "a cat")), show=show)
    with tempfile.TemporaryDirectory() as temp:
        data = str(small_benchmark(Path(temp)))
        arguments = ("bench", "run", "--benchmark", "custom", "--data", data, "-m", "discode",
                     "--resamples", "0")  # fmt: skip
        report("bench run", walk(lambda: command(*arguments)), show=show)
    report("request", request(), show=show)


if __name__ == "__main__":
    run()
