"""A model that takes many pairs at once is asked about as many, whatever a run writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from discode._cli import flags
from discode._judge import load
from discode._pairs import Pair
from discode._prompts import Prompt
from discode._scales import Scale
from discode.backends import Blocks
from tests.helpers.command_line import call
from tests.helpers.instant import Instant, rows
from tests.helpers.samples import write_table


class Large(Instant):
    """It notes how many pairs it is asked about at once."""

    batch_size = 2048

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        self.sizes.append(len(pairs))
        return super().read(pairs, prompt, scale, hidden=hidden)


@pytest.mark.parametrize("output", [["--json"], ["-o", "out.jsonl"], ["-o", "out/"]])
def test_a_chunk_holds_a_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    table = [{**row, "image": row["id"]} for row in rows(3000)]
    path, model = write_table(tmp_path / "set.csv", table), Large()
    monkeypatch.setattr(flags, "load", lambda _, **options: load(model, **options))
    monkeypatch.setattr("discode._judge.image_digest", str)
    done = call("score", "-i", path, *output)
    assert done.returncode == 1, done.stderr  # some of them are made to fail
    assert model.sizes == [2048, 952]
