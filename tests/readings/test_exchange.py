"""Export and import of readings: exact round trips, all or nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from discode._scales import TEN, UNIT
from discode.errors import InputError
from discode.readings import Identity, Readings
from discode.readings._exchange import export_readings, import_readings
from discode.readings._store import PairKey, ReadingStore, RunKey
from tests.helpers.fake_model import random_logp

RUN_KEY = RunKey(Identity("m", "r", "d"), "Rate {caption}", UNIT)


@pytest.fixture
def store(tmp_path: Path) -> ReadingStore:
    rng = np.random.default_rng(0)
    answers = random_logp(rng, 2400, 10).reshape(1200, 2, 10)
    answers[0, 0, 0] = -np.inf
    answers[1, 1] = np.nan
    readings = Readings(
        UNIT,
        answers,
        np.where(np.arange(1200)[:, None] % 3 == 0, np.nan, np.log([[0.8, 0.1]])),
        lead_logp=np.where(np.arange(1200)[:, None] % 2 == 0, np.nan, np.log([[0.9, 0.1]])),
        truncated=np.arange(1200) % 7 == 0,
    )
    opened = ReadingStore(tmp_path / "a.db")
    opened.put(RUN_KEY, [PairKey(str(i), f"caption {i} 猫", ("r",)) for i in range(1200)], readings)
    ten = RunKey(RUN_KEY.identity, RUN_KEY.prompt, TEN)
    opened.put(ten, [PairKey("x", "y")], Readings.of(random_logp(rng, 1, 10), TEN))
    return opened


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_round_trip_is_exact(tmp_path: Path, store: ReadingStore, suffix: str) -> None:
    if suffix == ".parquet":
        pytest.importorskip("pyarrow", reason="Parquet needs discode-eval[parquet]")
    path = tmp_path / f"out{suffix}"
    assert export_readings(store, path) == 1201
    with ReadingStore(tmp_path / "b.db") as other:
        assert import_readings(other, path) == 1201
        assert import_readings(other, path) == 1201  # again: nothing changes
        assert len(other) == 1201
        assert [run for run, _ in other.run_keys()] == [run for run, _ in store.run_keys()]
        for (pairs, a), (others, b) in zip(
            store.batches(RUN_KEY), other.batches(RUN_KEY), strict=True
        ):
            assert pairs == others
            for name in ("answer_logp", "stem_logp", "lead_logp", "truncated"):
                assert np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True), name


def test_jsonl_is_strict_json(tmp_path: Path, store: ReadingStore) -> None:
    export_readings(store, tmp_path / "out.jsonl")

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)


def test_import_is_all_or_nothing(tmp_path: Path, store: ReadingStore) -> None:
    export_readings(store, tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    for broken, match in (
        ("{", "line 1101 is not JSON"),
        ("{}", "line 1101 is not an exported reading: 'scale' is missing"),
        (lines[0].replace('"scale": "unit"', '"scale": "ten"'), "line 1101: answer_logp has shape"),
        (lines[0].replace('"model": "m"', '"model": 3'), "line 1101: model must be text"),
    ):
        (tmp_path / "bad.jsonl").write_text("\n".join([*lines[:1100], broken]))
        with ReadingStore(tmp_path / "c.db") as other:
            with pytest.raises(InputError, match=match):
                import_readings(other, tmp_path / "bad.jsonl")
            assert len(other) == 0


def test_bad_targets(tmp_path: Path, store: ReadingStore) -> None:
    with pytest.raises(InputError, match=r"\.jsonl or \.parquet"):
        export_readings(store, tmp_path / "out.txt")
    with pytest.raises(InputError, match="cannot write"):
        export_readings(store, tmp_path / "none" / "out.jsonl")
    with pytest.raises(InputError, match="no such file"):
        import_readings(store, tmp_path / "none.jsonl")
    assert [path.name for path in tmp_path.glob("*.part")] == []
