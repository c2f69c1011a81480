"""A PostgreSQL server of our own for tests, where its programs are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """Return the folder of initdb and pg_ctl: on the path, or where Debian puts them."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if all((place / name).is_file() for name in ("initdb", "pg_ctl", "postgres")):
            return place
    return None


def is_usable() -> bool:
    """Return whether a server can be started: not by root, unless there is a user postgres."""
    users = {entry.pw_name for entry in pwd.getpwall()}
    return programs() is not None and (os.getuid() != 0 or "postgres" in users)


@contextmanager
def server(*, durable: bool = True) -> Iterator[str]:
    """Start a server on a socket in a new folder, and yield the URL of its database.

    Where nobody cuts the power, it need not be ``durable``: it does not wait for the disk then.
    """
    where = programs()
    assert where is not None
    # PostgreSQL does not run as root; its own user, if there is one, may.
    user = "postgres" if os.getuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="discode-pg-"))
    if user:
        owner = pwd.getpwnam(user)
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    data = folder / "data"

    def call(*command: str) -> None:
        done = subprocess.run(
            command, user=user, cwd=folder, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    try:
        call(str(where / "initdb"), "-D", str(data), "-U", "tester", "--auth=trust", "-E", "UTF8")
        options = f"-k {folder} -c listen_addresses='' -c max_connections=200"
        options += "" if durable else " -c fsync=off"
        log = str(folder / "log")
        call(str(where / "pg_ctl"), "-D", str(data), "-w", "-l", log, "-o", options, "start")
        try:
            yield f"postgresql://tester@/postgres?host={folder}"
        finally:
            call(str(where / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
