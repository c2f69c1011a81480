"""Export readings from a store and import them: JSONL and Parquet, one row per reading."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from discode._files import read_rows, replacing
from discode._scales import Scale, get_scale
from discode.errors import InputError, require
from discode.readings._base import ROW_COLUMNS, Identity, ReadingColumn, Readings
from discode.readings._store import PairKey, ReadingStore, RunKey

BATCH = 1000
TEXTS = ("model", "revision", "dtype", "prompt", "scale", "image", "caption")
EXPORTED = [column for column in ROW_COLUMNS if column.name != "hidden"]


def export_readings(store: ReadingStore, path: str | os.PathLike[str]) -> int:
    """Write every reading that is whole, without hidden states, and return how many there are.

    ``store.damaged`` then counts those that were not.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".jsonl", ".ndjson", ".parquet"):
        raise InputError(f"{path.name}: readings are exported to .jsonl or .parquet")
    with replacing(path) as temp:
        return _write_parquet(store, temp) if suffix == ".parquet" else _write_jsonl(store, temp)


def _write_jsonl(store: ReadingStore, path: Path) -> int:
    count = 0
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for batch in _batches(store):
            for row in batch:
                file.write(json.dumps(_to_json(row), ensure_ascii=False) + "\n")
            count += len(batch)
    return count


def _write_parquet(store: ReadingStore, path: Path) -> int:
    pa = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")

    def arrow_type(column: ReadingColumn) -> Any:
        kind = {np.bool_: pa.bool_, np.str_: pa.string}.get(column.dtype, pa.float64)()
        for _ in column.axes[1:]:
            kind = pa.list_(kind)
        return kind

    schema = pa.schema(
        dict.fromkeys(TEXTS, pa.string())
        | {"references": pa.list_(pa.string())}
        | {column.name: arrow_type(column) for column in EXPORTED}
    )
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in _batches(store):
            writer.write_table(pa.Table.from_pylist(batch, schema))
            count += len(batch)
    return count


def _batches(store: ReadingStore) -> Iterator[list[dict[str, Any]]]:
    for run, _ in store.run_keys():
        for pairs, readings in store.batches(run, BATCH):
            yield [
                dict(zip(TEXTS, (*run.fields(), pair.image, pair.caption), strict=True))
                | {"references": list(pair.references)}
                | {column.name: _exported(getattr(readings, column.name), i) for column in EXPORTED}
                for i, pair in enumerate(pairs)
            ]


def import_readings(store: ReadingStore, path: str | os.PathLike[str]) -> int:
    """Read exported readings into a store, all or nothing, and return how many there were.

    What the store already has stays as it is.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no such file: {path}")
    groups: dict[RunKey, list[tuple[PairKey, Readings]]] = {}
    count = 0
    with store.transaction():
        for where, row in read_rows(path):
            run, pair, reading = _parse(row, where)
            group = groups.setdefault(run, [])
            group.append((pair, reading))
            count += 1
            if len(group) == BATCH:
                _put(store, run, group)
        for run, group in groups.items():
            _put(store, run, group)
    return count


def _put(store: ReadingStore, run: RunKey, group: list[tuple[PairKey, Readings]]) -> None:
    pairs = [pair for pair, _ in group]
    store.put(run, pairs, Readings.concat(run.scale, [reading for _, reading in group]))
    group.clear()


def _parse(row: dict[str, Any], where: str) -> tuple[RunKey, PairKey, Readings]:
    def text(name: str) -> str:
        if not isinstance(row[name], str):
            raise InputError(f"{name} must be text, not {row[name]!r}")
        return str(row[name])

    try:
        scale = get_scale(text("scale"))
        identity = Identity(text("model"), text("revision"), text("dtype"))
        references = tuple(map(str, row.get("references") or ()))
        reading = reading_from_row(row, scale)
        pair = PairKey(text("image"), text("caption"), references)
        return RunKey(identity, text("prompt"), scale), pair, reading
    except KeyError as error:
        raise InputError(f"{where} is not an exported reading: {error} is missing") from None
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{where}: {error}") from None


def reading_from_row(row: dict[str, Any], scale: Scale) -> Readings:
    """Return the reading in a row whose columns are named as an export names them."""
    values: dict[str, Any] = {"stem_logp": np.full((1, len(scale.stems)), np.nan)}
    for column in EXPORTED:
        cell = row["answer_logp"] if column.name == "answer_logp" else row.get(column.name)
        if cell is None or (isinstance(cell, list | str) and not cell):
            continue
        number = column.dtype is np.float64
        values[column.name] = _to_array(cell)[None] if number else np.array([cell], column.dtype)
    shape = (1, len(scale.stems), len(scale.answers))
    answers = values.get("answer_logp", np.empty(0))
    if answers.size != shape[1] * shape[2]:
        raise InputError(f"answer_logp has shape {answers.shape[1:]}, not {shape[1:]}")
    return Readings(scale, **values | {"answer_logp": answers.reshape(shape)})


def _to_array(values: Any) -> Any:
    """Return nested lists as float64; None is NaN; "-inf" is text, as in JSON."""
    return np.array(values, dtype=object).astype(np.float64)


def _exported(array: Any, row: int) -> Any:
    """Return one row as nested lists with None for NaN; None where the row holds nothing."""
    if array is None or array.dtype.kind != "f":
        return None if array is None else array[row].item()
    if array[row].ndim == 1 and np.isnan(array[row]).all():
        return None
    values = array[row].astype(object)
    values[np.isnan(array[row])] = None
    return values.tolist()


def _to_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_to_json(item) for item in value]
    return "-inf" if isinstance(value, float) and value == -np.inf else value
