"""The samples that reach a threshold, written again in the format they came in.

Tables get one more column, ``discode_score``; tars hold the original files, byte for byte.
"""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from discode.errors import require

SCORE = "discode_score"


class SampleWriter(Protocol):
    """A file of samples with their scores."""

    def write(self, samples: Any, values: Sequence[float]) -> None:
        """Write samples, as :func:`select` returned them."""

    def close(self) -> None:
        """Finish the file."""


def select(samples: Any, rows: NDArray[np.intp]) -> Any:
    """Return the given rows of the samples of a chunk: a list, or an Arrow batch."""
    if isinstance(samples, list):
        return [samples[row] for row in rows.tolist()]
    return samples.take(rows)


class JsonLinesSamples:
    """JSON lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")

    def write(self, samples: Any, values: Sequence[float]) -> None:
        """Write rows."""
        for row, value in zip(samples, values, strict=True):
            self._file.write(json.dumps({**row, SCORE: value}, ensure_ascii=False) + "\n")

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class CsvSamples:
    """Comma-separated values, each as it came."""

    form: Mapping[str, Any] = {}

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self._writer: Any = None

    def write(self, samples: Any, values: Sequence[float]) -> None:
        """Write rows."""
        for row, value in zip(samples, values, strict=True):
            if self._writer is None:
                columns = list(dict.fromkeys([*row, SCORE]))
                self._writer = csv.DictWriter(self._file, columns, **self.form)
                self._writer.writeheader()
            self._writer.writerow({**row, SCORE: value})

    def close(self) -> None:
        """Finish the file."""
        self._file.close()


class TsvSamples(CsvSamples):
    """Tab-separated values, where a quote is a letter like others."""

    form: Mapping[str, Any] = {
        "delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None, "lineterminator": "\n",
    }  # fmt: skip


class ParquetSamples:
    """Parquet with every column of the input."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer: Any = None

    def write(self, samples: Any, values: Sequence[float]) -> None:
        """Write a batch."""
        pa = require("pyarrow", "parquet")
        table = pa.Table.from_batches([samples])
        if SCORE in table.column_names:  # filtered before: the new score replaces the old
            table = table.drop_columns([SCORE])
        table = table.append_column(SCORE, pa.array(values, pa.float64()))
        table = table.replace_schema_metadata(_with_score(table.schema.metadata))
        if self._writer is None:
            parquet = require("pyarrow.parquet", "parquet")
            self._writer = parquet.ParquetWriter(self._path, table.schema)
        self._writer.write_table(table)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


def _with_score(metadata: dict[bytes, bytes] | None) -> dict[bytes, bytes] | None:
    """Add the new column to the notes of `datasets`, which refuses a table with any other."""
    notes = dict(metadata or {})
    try:
        info = json.loads(notes[b"huggingface"])
        info["info"]["features"][SCORE] = {"dtype": "float64", "_type": "Value"}
    except (KeyError, ValueError, TypeError):  # no notes, or not written by `datasets`
        return metadata
    return notes | {b"huggingface": json.dumps(info).encode()}


class TarSamples:
    """A WebDataset tar with the original files under their original names."""

    def __init__(self, path: Path) -> None:
        self._tar = tarfile.open(path, "w")  # noqa: SIM115  # closed by close()

    def write(self, samples: Any, values: Sequence[float]) -> None:
        """Write samples."""
        for sample in samples:
            for member in sample.members:
                info = tarfile.TarInfo(member.name)
                info.size, info.mtime, info.mode = len(member.data), member.mtime, member.mode
                self._tar.addfile(info, io.BytesIO(member.data))
        self._tar.members = []  # type: ignore[attr-defined]  # it remembers every member

    def close(self) -> None:
        """Finish the file."""
        self._tar.close()
