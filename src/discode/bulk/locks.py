"""One process per share: a lock that the kernel releases when its process dies."""

from __future__ import annotations

import os
import re
from pathlib import Path

from discode.bulk.chunks import Share
from discode.errors import InputError
from discode.files import lock_file

TRIES = 5
"""Another process may hold a lock for a moment, to see whether it is held: wait for that."""


def lock_name(share: Share) -> str:
    """Return the name of a share's lock file.

    >>> lock_name(Share(3, 8))
    '_lock-00003-of-00008'
    """
    return f"_lock-{share.index:05d}-of-{share.count:05d}"


class ShareLock:
    """Held from here to :meth:`close`; raises where another process writes the same shards.

    Shares of another number of processes overlap with this one's, so they are refused, too. The
    empty files remain: one that is removed while another process opens it locks nothing. Systems
    without locks are written to without.
    """

    def __init__(self, folder: Path, share: Share) -> None:
        path = folder / lock_name(share)
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        busy = path if lock_file(self._handle, TRIES) is False else None
        for other in sorted(folder.glob("_lock-*-of-*")) if busy is None else ():
            match = re.fullmatch(r"_lock-\d+-of-(\d+)", other.name)
            if match is not None and int(match[1]) != share.count and _held(other):
                busy = other
        if busy is not None:
            self.close()
            raise InputError(
                f"another process is writing to {folder} (it holds {busy.name}); wait for it or "
                "end it, give each process a share of its own (--shard I/N), or another folder"
            )

    def close(self) -> None:
        """Release the lock."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def _held(path: Path) -> bool:
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        return lock_file(handle, TRIES) is False
    finally:
        os.close(handle)
