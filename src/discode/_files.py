"""Files: tables read row by row, results written whole or not at all."""

from __future__ import annotations

import csv
import errno
import glob
import hashlib
import itertools
import json
import math
import os
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TextIO

from discode.errors import InputError, require

try:
    import fcntl
except ImportError:  # not POSIX: what is half-written cannot be told from what is being written
    fcntl = None  # type: ignore[assignment]

FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
"""A cell of CSV that begins with one of these is a formula to a spreadsheet."""
BATCH_ROWS, HEAVY_ROWS = 1024, 16
"""Rows of Parquet that are read at once; the second where images may be inside: one that the file
holds once may stand in many rows, and only they tell how large they are."""


@contextmanager
def reading(path: Path, *errors: type[Exception], what: str = "read") -> Iterator[None]:
    """Make an :class:`~discode.errors.InputError` of what fails while a file is read."""
    kinds: tuple[type[Exception], ...] = (OSError, *errors)
    try:
        yield
    except kinds as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"cannot {what} {path}: {why}") from error


writing = partial(reading, what="write")
"""Likewise, where a file or folder is written."""


@contextmanager
def replacing(path: Path, *, unless_exists: bool = False) -> Iterator[Path]:
    """Yield a file beside ``path`` to write to, renamed to it at the end.

    A bad path fails before the work begins, and an interrupted run leaves the old file whole. With
    ``unless_exists``, a file that is there by the end stays: of several processes, one writes it.
    """
    path = path.resolve()  # through a link, to the file it names
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    temp, lock = Path(name), os.fdopen(handle, "rb")
    try:
        with writing(path):
            if lock_file(handle) is None:  # for :func:`remove_abandoned`
                lock.close()  # Windows has no such locks, and renames and removes no open file
            yield temp
            mask = os.umask(0)
            os.umask(mask)
            temp.chmod(0o666 & ~mask)  # mkstemp's files are private
            if not unless_exists or not _link(temp, path):
                temp.replace(path)
    finally:
        lock.close()
        temp.unlink(missing_ok=True)


def _link(temp: Path, path: Path) -> bool:
    """Give a file a second name unless there is such a file, at once; False where none can be."""
    try:
        path.hardlink_to(temp)
    except OSError:  # it is there, or the file system has no second names
        return path.exists()
    return True


def remove_abandoned(path: Path) -> None:
    """Remove what killed processes left half-written beside ``path``, and nothing else.

    A process locks the file that it writes (:func:`replacing`); when it dies, the lock is gone.
    """
    path = path.resolve()
    for temp in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        with suppress(OSError), temp.open("rb") as file:
            if lock_file(file.fileno()):
                temp.unlink(missing_ok=True)


def lock_file(handle: int, tries: int = 1) -> bool | None:
    """Lock a file until it is closed; False if another holds it, None if there are no locks."""
    if fcntl is None:
        return None
    for left in reversed(range(tries)):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES, errno.EWOULDBLOCK):
                return None
            if left:
                time.sleep(0.05)
        else:
            return True
    return False


def use_write_ahead_log(db: sqlite3.Connection, seconds: float = 30.0) -> None:
    """Let others read an SQLite file while one writes, waiting while another opens or closes it.

    SQLite refuses this at once, despite its timeout, while another process does the same or, as
    the last one, closes the file.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def csv_cell(text: str) -> str:
    """Return a text for a cell of CSV, with an apostrophe where a spreadsheet would compute it.

    >>> csv_cell("=1+1"), csv_cell("a cat")
    ("'=1+1", 'a cat')
    """
    return f"'{text}" if text.startswith(FORMULA_STARTS) else text


def csv_text(cell: str) -> str:
    """Return the text that :func:`csv_cell` made a cell of.

    >>> csv_text("'=1+1"), csv_text("'tis a cat")
    ('=1+1', "'tis a cat")
    """
    return cell[1:] if cell.startswith("'") and cell[1:].startswith(FORMULA_STARTS) else cell


class _LineFeeds:
    """The file of a ``csv.writer``, whose CRLF at the end of a row becomes LF."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, row: str) -> None:
        self._file.write(row.removesuffix("\r\n") + "\n")


def csv_writer(file: TextIO, **form: Any) -> Any:
    r"""Return a ``csv.writer`` whose rows end in LF, as cut and awk expect.

    With ``lineterminator="\n"``, Python 3.11 leaves carriage returns in cells unquoted.

    >>> import io
    >>> file = io.StringIO()
    >>> csv_writer(file).writerows([["a", "b"], ["1\r2", ""]])
    >>> file.getvalue()
    'a,b\n"1\r2",\n'
    """
    return csv.writer(_LineFeeds(file), **form)


def write_csv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write a table, whose first row is its header, whole or not at all."""
    with replacing(path) as temp, temp.open("w", encoding="utf-8", newline="") as file:
        csv_writer(file).writerows(rows)


TableRow = dict[str, Any] | InputError
"""A row of a table, or what is wrong with it."""
PlacedRow = tuple[str, TableRow]
"""Where a row is, for messages ("pairs.csv line 7"), and the row."""
CheckHeader = Callable[[Sequence[str]], Sequence[str] | None]
"""Checks a first line: raises for a header without a needed column, returns columns for a row."""


def read_rows(path: Path, check: CheckHeader | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, row) from a table of any format; a broken row raises, with its place."""
    for where, row in read_table(path, check):
        if isinstance(row, InputError):
            raise row
        yield where, row


def read_table(
    path: Path, check: CheckHeader | None = None, name: str | None = None
) -> Iterator[PlacedRow]:
    """Yield (where, row) from a table of any format; a broken row is the error that describes it.

    Only a file that cannot be read as a table at all raises. ``check`` looks at the header of CSV;
    messages call the file ``name``.
    """
    name = name or path.name
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise InputError(f"{path.name}: unknown format; allowed are {', '.join(_READERS)}")
    return csv_rows(path, name, check) if read is csv_rows else read(path, name)


def csv_rows(path: Path, name: str, check: CheckHeader | None = None) -> Iterator[PlacedRow]:
    """Yield the rows of a CSV file, or by its suffix TSV, where a quote is a letter like others."""
    # Bytes that are not UTF-8 become lone surrogates, so that they cost their own row only.
    with (
        reading(path),
        path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file,
    ):
        reader: Any
        if path.suffix.lower() == ".tsv":
            reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        else:  # strict: a quote that is never closed would swallow all later rows
            reader = csv.reader(file, strict=True)
        with reading(path, csv.Error):
            header: list[str] = next(reader, [])
        columns = None if check is None else check(header)
        if columns is None:
            check_names(path, header)
        else:
            yield f"{name} line 1", dict(zip(columns, header, strict=True))
        yield from _csv_body(reader, columns or header, name)


def check_names(path: Path, columns: Sequence[str]) -> None:
    """Raise where two columns of a table have one name: a row would have the last one's cell."""
    for number, name in enumerate(columns):
        if name and name in columns[:number]:
            raise InputError(f"{path} has the column {name!r} twice; rename or remove one of them")


def _csv_body(reader: Any, header: Sequence[str], name: str) -> Iterator[PlacedRow]:
    while True:
        first = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # the reader continues after a row that it could not parse
            yield from _lost(name, range(first, reader.line_num + 1), f"is not CSV: {error}")
            continue
        if not cells:
            continue
        where = f"{name} line {reader.line_num}"
        if len(cells) != len(header):
            reason = f"does not have the {len(header)} columns of the header, but {len(cells)}"
            yield from _lost(name, range(first, reader.line_num + 1), reason)
        elif (text := "".join(cells)).encode(errors="replace").decode() != text:
            yield where, InputError(f"{where} is not UTF-8")
        else:
            yield where, dict(zip(header, cells, strict=True))


def _lost(name: str, lines: range, reason: str) -> Iterator[PlacedRow]:
    """Yield an error for every line that is lost: a quote that is not closed swallows many."""
    if len(lines) > 1:
        reason += f" (lines {lines[0]} to {lines[-1]}, read as one row; see its first quote)"
    for where in (f"{name} line {line}" for line in lines):
        yield where, InputError(f"{where} {reason}")


def json_lines(path: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """Yield (where, line) of a file of JSON lines, not parsed yet; empty lines are left out."""
    with reading(path), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.isspace():
                text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                yield f"{name} line {number}", text


def parse_line(where: str, line: bytes) -> PlacedRow:
    try:
        return where, _object(_decode(line.decode()), where)
    except (ValueError, RecursionError) as error:
        return where, InputError(f"{where} is not JSON: {error}")


def json_rows(path: Path, name: str) -> Iterator[PlacedRow]:
    """Yield the rows of COCO results, COCO annotations or another JSON list; it is loaded whole."""
    with reading(path, UnicodeDecodeError):
        entries = parse_json(path.read_text(encoding="utf-8-sig"), name)
    files: Mapping[str, str | InputError | None] | None = None
    if isinstance(entries, dict) and {"images", "annotations"} <= entries.keys():
        files = _coco_files(entries["images"], name)
        entries = entries["annotations"]
    if not isinstance(entries, list):
        raise InputError(
            f"{name} is not a list of rows; COCO results are a list of objects, and annotations "
            "an object with the lists 'images' and 'annotations'"
        )
    for number, entry in enumerate(entries):
        where = f"{name} entry {number}"
        row = _object(entry, where)
        if files is not None and isinstance(row, dict) and row.get("image_id") is not None:
            key = coco_id(row["image_id"])
            unknown = InputError(f"{where}: no image in 'images' has the id {key!r}")
            row = {"file_name": files.get(key, unknown), **row}
        yield where, row


def coco_files(path: str | os.PathLike[str]) -> Mapping[str, str | InputError | None]:
    """Return the file names of COCO annotations by the ids of their images, as text.

    An id with several file names has an error instead of a name.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"annotations: no such file: {path}")
    facts = file.stat()
    return _read_coco_files(file, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=1)  # every file of a run is read with the same
def _read_coco_files(file: Path, *_: int) -> Mapping[str, str | InputError | None]:
    with reading(file, UnicodeDecodeError):
        whole = parse_json(file.read_text(encoding="utf-8-sig"), file.name)
    return _coco_files(whole.get("images") if isinstance(whole, dict) else whole, file.name)


def _coco_files(images: Any, name: str) -> dict[str, str | InputError | None]:
    """Return the file names of COCO annotations by the ids of their images.

    None where an image has none; where an id has several, an error instead of a name, which fails
    the rows that mean it, and no others.
    """
    files: dict[str, str | InputError | None] = {}
    try:
        for image in images:
            key, file = coco_id(image["id"]), image.get("file_name")
            if files.setdefault(key, file) != file:
                files[key] = InputError(f"{name}: 'images' has several files of the id {key!r}")
    except (TypeError, KeyError, AttributeError):
        raise InputError(
            f"{name}: 'images' is not a list of objects with id and file_name"
        ) from None
    return files


def coco_id(number: Any) -> str:
    """Return an id as text: 1 and 1.0 are one number; "01" is another text than "1".

    >>> coco_id(1.0), coco_id("01")
    ('1', '01')
    """
    return str(int(number) if isinstance(number, float) and number.is_integer() else number)


def _object(row: Any, where: str) -> TableRow:
    if isinstance(row, dict):
        return row
    return InputError(f"{where} is not an object with fields but {type(row).__name__}")


def parse_json(text: str, where: str) -> Any:
    """Parse JSON, or say where it is broken; a field that is there twice is a mistake."""
    try:
        return _decode(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where} is not JSON: {error}") from None


def without_nan(value: Any) -> Any:
    """Return a value with None for NaN and infinity, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return value


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        [(twice, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the field {twice[:80]!r} is there twice")
    return fields


_decode = json.JSONDecoder(object_pairs_hook=_fields).decode  # json.loads would make one per call


class ParquetTable:
    """A Parquet file, read in batches; a damaged part costs its own rows only."""

    def __init__(self, path: Path, name: str) -> None:
        self._name = name
        parquet = require("pyarrow.parquet", "parquet")
        with reading(path, Exception):  # pyarrow's share no base that can be named without it
            # A row group that is read ahead would be in memory as a whole.
            self._file = parquet.ParquetFile(path, pre_buffer=False, buffer_size=1 << 20)
        self.columns: list[str] = self._file.schema_arrow.names
        check_names(path, self.columns)
        self.rows: int = self._file.metadata.num_rows
        types = require("pyarrow.types", "parquet")
        kinds = [column.type for column in self._file.schema_arrow]
        # Texts and numbers only: no row holds an image.
        self.light = all(types.is_string(kind) or types.is_primitive(kind) for kind in kinds)

    def close(self) -> None:
        self._file.close()

    def batches(
        self,
        columns: Sequence[str] | None = None,
        wanted: Callable[[range], bool] = lambda rows: True,
    ) -> Iterator[tuple[range, Any]]:
        """Yield (row numbers, Arrow batch); an error instead of a batch that cannot be read.

        Args:
            columns: What is read; all if None.
            wanted: Whether any of these rows is needed; a row group without one is not touched, and
                its batch is None.
        """
        size = BATCH_ROWS if self.light else HEAVY_ROWS
        stop = 0
        for group in range(self._file.metadata.num_row_groups):
            start, stop = stop, stop + self._file.metadata.row_group(group).num_rows
            if not wanted(range(start, stop)):
                yield range(start, stop), None
                continue
            try:
                for batch in self._file.iter_batches(size, row_groups=[group], columns=columns):
                    yield range(start, start + batch.num_rows), batch
                    start += batch.num_rows
            except Exception as error:  # a damaged page: the rest of the row group is gone
                reason = f"rows {start} to {stop - 1} cannot be read: {error}"
                yield range(start, stop), InputError(f"{self._name}: {reason}")

    def parse(self, span: range, batch: Any) -> list[PlacedRow]:
        places = [f"{self._name} row {number}" for number in span]
        if isinstance(batch, InputError):
            return [(where, batch) for where in places]
        try:
            return list(zip(places, batch.to_pylist(), strict=True))
        except Exception:  # text that is not UTF-8, a date that Python does not have: find its row
            return [_parse_row(where, batch, i) for i, where in enumerate(places)]


def _parse_row(where: str, batch: Any, number: int) -> PlacedRow:
    try:
        return where, batch.slice(number, 1).to_pylist()[0]
    except Exception as error:
        return where, InputError(f"{where} cannot be read: {error}")


def _parquet_rows(path: Path, name: str) -> Iterator[PlacedRow]:
    with closing(ParquetTable(path, name)) as table:
        for span, batch in table.batches():
            yield from table.parse(span, batch)


def _jsonl_rows(path: Path, name: str) -> Iterator[PlacedRow]:
    return itertools.starmap(parse_line, json_lines(path, name))


_READERS: dict[str, Callable[[Path, str], Iterator[PlacedRow]]] = {
    ".csv": csv_rows,
    ".tsv": csv_rows,
    ".jsonl": _jsonl_rows,
    ".ndjson": _jsonl_rows,
    ".json": json_rows,
    ".parquet": _parquet_rows,
}


def sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with reading(path), path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
