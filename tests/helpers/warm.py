"""A warm process that forks for every command: the package is imported once per test worker.

`python -m discode` takes most of a second to import itself, and the suite types hundreds of
commands. Each still has a process, standard streams, a folder and an environment of its own, and
imports the command line anew, which looks at the terminal when it is imported.
"""

from __future__ import annotations

import array
import json
import os
import runpy
import socket
import sys


def next_command(connection: socket.socket) -> tuple[list[str], str | None, dict[str, str]]:
    """Fork for each request; the child takes its streams and returns with what it is to run."""
    while True:
        request, fds, _, _ = socket.recv_fds(connection, 1 << 20, 4)
        if not request:
            os._exit(0)
        if os.fork() == 0:
            break
        for fd in fds:
            os.close(fd)
    connection.close()
    command = os.fork()
    if command:  # one process per command waits for it, so that several can run at the same time
        code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        os.write(fds[3], array.array("i", [code]).tobytes())
        os._exit(0)
    for stream in range(3):
        os.dup2(fds[stream], stream)
    for fd in fds:
        os.close(fd)
    arguments, folder, environment = json.loads(request)
    return arguments, folder, environment


if __name__ == "__main__":
    import discode._cli  # noqa: F401

    for name in list(sys.modules):
        if name.startswith(("discode._cli", "mceval._cli")):
            del sys.modules[name]
    arguments, folder, environment = next_command(socket.socket(fileno=int(sys.argv[1])))
    if folder is not None:
        os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", buffering=1, errors="backslashreplace")
    sys.argv = ["discode", *arguments]
    runpy.run_module("discode", run_name="__main__", alter_sys=True)
