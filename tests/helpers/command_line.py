"""The command line as a user types it: run a command, start one, and check how it refuses."""

from __future__ import annotations

import array
import atexit
import functools
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from discode._cli import main, output
from discode.images import demo_path
from tests.helpers import warm

CAT = str(demo_path() / "cat.jpg")
DISCODE = [sys.executable, "-m", "discode"]


def run(
    *arguments: object, cwd: Path | None = None, stdin: str | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, in a terminal of 100 columns without colours."""
    command = [*DISCODE, *map(str, arguments)]
    environment = os.environ | {"COLUMNS": "100", "NO_COLOR": "1"} | env
    if any(name.startswith("PYTHON") for name in env):  # read when Python starts
        return subprocess.run(
            command, capture_output=True, text=True, cwd=cwd, input=stdin, env=environment
        )
    request = json.dumps([command[len(DISCODE) :], cwd and str(cwd), environment]).encode()
    with ExitStack() as stack:
        streams = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
        streams[0].write((stdin or "").encode())
        streams[0].seek(0)
        ended, status = os.pipe()
        stack.callback(os.close, ended)
        socket.send_fds(_warm(), [request], [*(s.fileno() for s in streams), status])
        os.close(status)
        (code,) = array.array("i", os.read(ended, 4))
        for stream in streams:
            stream.seek(0)
        output, errors = (stream.read().decode() for stream in streams[1:])
    return subprocess.CompletedProcess(command, code, output, errors)


@functools.cache
def _warm() -> socket.socket:
    """The near end of the process that runs the commands; it ends when this one does."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with far:
        end = far.fileno()
        server = subprocess.Popen([sys.executable, warm.__file__, str(end)], pass_fds=[end])
    atexit.register(server.wait)
    atexit.register(near.close)  # the last one registered is the first one called
    return near


def call(*arguments: object, width: int | None = 100) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process, which takes milliseconds, as :func:`run` does.

    Without a ``width``, standard output is a file: it has no edge.
    """
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["discode", *map(str, arguments)])
        if width is None:
            patch.delenv("COLUMNS", raising=False)
        else:
            patch.setenv("COLUMNS", str(width))
            patch.setattr(output.stdout, "width", width)  # a console asks its terminal only once
        with pytest.raises(SystemExit) as stopped:
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


def refused(done: subprocess.CompletedProcess[str], *words: object) -> None:
    """One line on standard error, exit code 2, no traceback."""
    assert done.returncode == 2, done
    assert done.stderr.startswith("discode: ")
    assert len(done.stderr.strip().splitlines()) == 1
    for word in words:
        assert str(word) in done.stderr
