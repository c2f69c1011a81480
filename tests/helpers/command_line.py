"""The command line as a user types it: run a command, start one, and check how it refuses."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from discode.cli import main, output
from discode.images import demo_path

CAT = str(demo_path() / "cat.jpg")
DISCODE = [sys.executable, "-m", "discode"]


def run(
    *arguments: object, cwd: Path | None = None, stdin: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a terminal of 100 columns without colours."""
    return subprocess.run(
        [*DISCODE, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        input=stdin,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"} | env,
    )


def call(*arguments: object, width: int = 140) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process: in a moment, where a new one takes seconds."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["discode", *map(str, arguments)])
        patch.setattr(output.stdout, "width", width)  # a console asks its terminal only once
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stopped:
            main()
    code = int(stopped.value.code or 0)
    return subprocess.CompletedProcess(sys.argv, code, out.getvalue(), err.getvalue())


def start(*command: object, **options: Any) -> subprocess.Popen[str]:
    """Start a command that can be interrupted: SIGINT is ignored in jobs that run after "&"."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )
    finally:
        signal.signal(signal.SIGINT, before)


def refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """One line on standard error, exit code 2, no traceback."""
    assert done.returncode == 2, done
    assert done.stderr.startswith("discode: ")
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert word in done.stderr
