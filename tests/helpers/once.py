"""What takes long to make is made once per run and shared by the test processes."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


class Shelf:
    """A folder that all processes of a run share; ``folder`` is set when the run begins."""

    folder: Path

    def copy(self, name: str, target: Path, fill: Callable[[Path], object]) -> Path:
        """Copy the folder of this name to ``target``; the first who asks for it fills it."""
        self.folder.mkdir(exist_ok=True)
        source = self.folder / name
        with (self.folder / f"{name}.lock").open("a+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not os.fstat(lock.fileno()).st_size:  # what a failed attempt left is no use
                shutil.rmtree(source, ignore_errors=True)
                fill(source)
                lock.write("filled")
        return shutil.copytree(source, target, dirs_exist_ok=True)


SHELF = Shelf()


def open_shelf(config: pytest.Config, factory: pytest.TempPathFactory) -> None:
    """Put the shelf where every worker of a run finds it, or where a run without workers is."""
    base = factory.getbasetemp()
    SHELF.folder = (base.parent if hasattr(config, "workerinput") else base) / "shelf"
