"""What the attacks share: a report, and commands in processes that may be killed."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from discode.backends import KINDS, Kind
from discode.pairs import Pair
from discode.prompts import Prompt
from discode.readings import Readings
from discode.scales import Scale
from tests.helpers.instant import Instant

PATIENCE = 300.0
"""Seconds after which a process counts as hanging; the machine may be busy."""
LINES = 12
"""Kinds of outcomes that a report names."""
# Forked from a process that has imported what takes long: a command costs a tenth of a cold start.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["perf.attack.harness", "discode.cli"])


class Report:
    """What came back, counted, and which promises were kept."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.broken: list[str] = []
        self._lines: list[tuple[str, str]] = []

    def say(self, what: str, value: object) -> None:
        """Add a line."""
        shown = f"{value:,}" if isinstance(value, int) else str(value)
        self._lines.append((what, shown))

    def count(self, counts: Mapping[str, int]) -> None:
        """Add a line for each outcome, the most frequent first; rare ones share the last."""
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        for what, number in ordered[:LINES]:
            self.say(f"{what:.80}", number)
        if rest := ordered[LINES:]:
            self.say(f"{len(rest)} further kinds", sum(number for _, number in rest))

    def promise(self, what: str, exceptions: Sequence[object]) -> None:
        """Add a promise, and what breaks it; nothing does where it holds."""
        if exceptions:
            self.broken.append(what)
            shown = "; ".join(f"{one!s:.200}" for one in exceptions[:3])
            self.say(what, f"BROKEN {len(exceptions)} times: {shown}")
        else:
            self.say(what, "held")

    def lines(self) -> list[str]:
        """Return the table."""
        width = max(len(what) for what, _ in self._lines) + 2
        return [self.title, *(f"  {what:{width}}{value}" for what, value in self._lines)]


class StandIn(Instant):
    """The tests' judge that answers at once, for a command line: ``stand-in:SECONDS,LOG``.

    It appends what it is asked to a file, if one is named, and answers so long after that.
    """

    def __init__(self, spec: str) -> None:
        seconds, _, log = spec.partition(",")
        super().__init__(log=Path(log) if log else None)
        self._seconds = float(seconds or 0)

    def answer(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        """Read N pairs, and wait."""
        readings = super().answer(pairs, prompt, scale, hidden=hidden)
        time.sleep(self._seconds)
        return readings


class Command:
    """``discode ARGUMENTS`` in a process of its own; its streams are files in ``folder``.

    Args:
        folder: Where it runs, and where its streams go.
        arguments: What stands after ``discode``.
        largest: Bytes that a file may reach, as on a disk that is full.
        env: Further variables of its environment.
    """

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        largest: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._folder = folder
        given = [str(argument) for argument in arguments]
        self.process = CONTEXT.Process(target=_run, args=(folder, given, largest, dict(env or {})))
        self.process.start()

    def wait(self) -> int:
        """Return its exit code; end it where it takes too long."""
        self.process.join(PATIENCE)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise TimeoutError(f"a command hung: {self.stderr[-300:]}")
        return int(self.process.exitcode or 0)

    @property
    def stdout(self) -> str:
        """What it printed."""
        return _text(self._folder / "stdout")

    @property
    def stderr(self) -> str:
        """What it said on standard error."""
        return _text(self._folder / "stderr")

    @property
    def peak_mb(self) -> int:
        """The most memory it had, in MB; known when it has ended by itself."""
        return int(_text(self._folder / "peak"))


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="surrogateescape") if path.exists() else ""


def peak_mb() -> int:
    """Return the most memory this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _run(folder: Path, arguments: list[str], largest: int | None, env: dict[str, str]) -> None:
    os.chdir(folder)
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    os.environ.update({"COLUMNS": "100", "NO_COLOR": "1"} | env)
    KINDS["stand-in"] = Kind("a stand-in", __name__, "StandIn")
    sys.argv = ["discode", *arguments]
    for name in [name for name in sys.modules if name.startswith("discode.cli")]:
        del sys.modules[name]  # it looks at its terminal when it is imported
    from discode.cli import main

    if largest is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    try:
        main()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        Path("peak").write_text(str(peak_mb()))


@contextmanager
def serving(folder: Path, *arguments: object) -> Iterator[tuple[Command, int]]:
    """Run ``discode serve`` on a free port; the command and its port."""
    server = Command(folder, "serve", "--port", 0, *arguments)
    try:
        end = time.monotonic() + PATIENCE
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+) ", server.stderr)):
            if not server.process.is_alive() or time.monotonic() > end:
                raise RuntimeError(f"no service: {server.stderr}")
            time.sleep(0.02)
        yield server, int(found[1])
    finally:
        server.process.terminate()
        server.wait()


def tracebacks(text: str) -> list[str]:
    """Return the last lines of the tracebacks in what a command said."""
    return re.findall(r"Traceback \(most recent call last\)(?:\n .*)*\n(.*)", text)
