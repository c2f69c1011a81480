"""What the verbs share: tables, charts, progress, and the report at the end."""

from __future__ import annotations

import atexit
import io
import math
import os
import re
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.cells import cell_len
from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from discode._files import remove_abandoned, replacing, writing
from discode._scores import Scores
from discode._signature import shortened_signature
from discode.bulk import Totals
from discode.bulk._counting import RowCount
from discode.bulk._writers import JsonLinesWriter, ScoreWriter, open_writer, score_format
from discode.decoders import SIDE_BY_SIDE
from discode.errors import InputError, StoppedError, count_of
from discode.readings._store import ReadingStore
from discode.stats import ClusteredMean
from discode.stats._means import MOST
from discode.stats._resampling import FEW_IMAGES

# Control characters except tab and line feed, and marks of the writing direction.
_DRIVING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Escape the characters that control a terminal; JSON keeps its meaning.

    All output passes through here: captions, file names and server responses are not trusted.

    >>> print(printable("a \\x1b[2Jcat"))
    a \\u001b[2Jcat
    """
    return _DRIVING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def echo(text: str) -> None:
    """Print text, or JSON, on standard output as it is."""
    typer.echo(printable(text))


class _SafeConsole(Console):
    """A console whose texts are :func:`printable`, whichever part of a table they are."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


stdout = _SafeConsole(emoji=False)  # ":cat:" in a caption is no picture
stderr = _SafeConsole(stderr=True, emoji=False)

_EIGHTHS = " ▏▎▍▌▋▊▉█"
TABLE_ROWS = 40
"""Rows that a table shows; files and --json have all of them."""
FOLDED = 10
"""Narrowest column into which texts are folded."""
UNLIMITED = 100_000
"""Columns of a file or pipe."""
CHARTS = 8
"""Charts that --show draws per method."""
LOG_SECONDS = 30.0
"""Seconds between the lines of a log, where no bar is drawn."""
RATE_LINES = 10
"""Lines of a log over which its speed is measured."""


class _Count(ProgressColumn):
    def render(self, task: Task) -> Text:
        total = "?" if task.total is None else f"{task.fields.get('about', '')}{task.total:,.0f}"
        return Text(f"{task.completed:,.0f}/{total}")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.1f} pairs/s")


def progress(*, shown: bool = True) -> Progress:
    """Make a progress bar on standard error: pairs done, speed, time left."""
    columns = (BarColumn(), _Count(), _Rate(), TimeRemainingColumn())
    # Outside a terminal, rich would end it with an empty line.
    disable = not (shown and stderr.is_terminal)
    return Progress(*columns, console=stderr, transient=True, disable=disable)


def labelled_progress(bar: Progress) -> Callable[[str, int, int], None]:
    """Make a callback that shows the progress of each label in a bar."""
    tasks: dict[str, TaskID] = {}

    def advance(label: str, total: int, step: int) -> None:
        if label not in tasks:
            tasks[label] = bar.add_task(label, total=total)
        bar.advance(tasks[label], step)

    return advance


@contextmanager
def row_progress(total: RowCount | None, *, bar: bool = True) -> Iterator[Callable[[int], None]]:
    """Yield a callback for the number of pairs just done, which draws a bar or prints lines."""
    drawn = progress(shown=bar)
    about = "" if total is None or total.exact else "~"
    task = drawn.add_task("reading", total=None if total is None else total.rows, about=about)
    log = ProgressLog(total)

    def advance(done: int) -> None:
        drawn.start()  # only now: loading a model may draw its own bars
        drawn.advance(task, done)
        if (line := log.advance(done, time.monotonic())) and drawn.disable:
            note(f"{time.strftime('%H:%M:%S')} {line}", "dim")

    try:
        yield advance
    finally:
        drawn.stop()
        if line := log.summary(time.monotonic()):
            note(line, "dim")


class ProgressLog:
    """Progress lines at intervals, with the time left at the current speed.

    >>> log = ProgressLog(RowCount(9000, exact=False))
    >>> log.advance(1000, 0.0), log.advance(60, 20.0), log.advance(60, 40.0)
    (None, None, '1,120 of about 9,000 pairs, 3.0 pairs/s, about 44 min left')
    """

    def __init__(self, total: RowCount | None) -> None:
        self._total, self._done = total, 0
        # Time and finished pairs of each line. The first pairs may come from an earlier run, so the
        # speed is measured from there.
        self._lines: deque[tuple[float, int]] = deque(maxlen=RATE_LINES)
        self._first: tuple[float, int] | None = None

    def advance(self, done: int, now: float) -> str | None:
        """Count finished pairs; return a line if one is due."""
        self._done += done
        if self._first is None:
            self._first = (now, self._done)
            self._lines.append(self._first)
        if now - self._lines[-1][0] < LOG_SECONDS:
            return None
        then, before = self._lines[0]
        self._lines.append((now, self._done))
        rate = (self._done - before) / (now - then)
        line = f"{self._done:,} pairs"
        left = None
        if self._total is not None and self._done <= self._total.rows:
            about = "" if self._total.exact else "about "
            line = f"{self._done:,} of {about}{self._total.rows:,} pairs"
            left = (self._total.rows - self._done) / rate if rate else None
        line += f", {rate:.1f} pairs/s"
        return line if left is None else f"{line}, about {format_duration(left)} left"

    def summary(self, now: float) -> str | None:
        """Summarise the pairs and the speed of a run; None if it was short."""
        then, before = self._first or (now, 0)
        if now - then < LOG_SECONDS:
            return None
        pairs, seconds = self._done - before, now - then
        return f"{pairs:,} pairs in {format_duration(seconds)}, {pairs / seconds:.1f} pairs/s"


def format_duration(seconds: float) -> str:
    """Format a time in its two largest units.

    >>> format_duration(41), format_duration(600), format_duration(11_000)
    ('41 s', '10 min', '3 h 3 min')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def note(text: str, style: str | None = None) -> None:
    """Print one line on standard error."""
    line = " ".join(text.splitlines())
    stderr.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def table_of(*titles: str | Text, texts: Collection[int] | None = None, gap: int = 2) -> Table:
    """Make an empty table that folds long cells and never cuts them.

    Columns other than ``texts``, if given, hold numbers and are aligned right.
    """
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, gap, 0, 0))
    for number, title in enumerate(titles):
        side: JustifyMethod = "left" if texts is None or number in texts else "right"
        table.add_column(title, overflow="fold", justify=side)
    return table


def print_columns(
    titles: Sequence[str], rows: Sequence[Sequence[str]], texts: Sequence[int]
) -> None:
    """Print a table without cutting anything: the columns ``texts`` may fold, numbers never.

    In a narrow terminal, the numbers of a row are on a line below its texts. Files and pipes have
    unlimited width, unless COLUMNS sets one.
    """
    # A row at a time: no cell has a line break by then, and printable keeps those between them.
    lines = [
        printable("\n".join(" ".join(cell.splitlines()) for cell in row)).split("\n")
        for row in (titles, *rows)
    ]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    table = table_of(*map(Text, lines[0]), texts=texts)  # rich does not parse a Text for markup
    for k, column in enumerate(table.columns):
        column.min_width = min(widths[k], FOLDED) if k in texts else widths[k]
    for line in lines[1:]:
        table.add_row(*map(Text, line))
    room = stdout.width if stdout.is_terminal or "COLUMNS" in os.environ else UNLIMITED
    if sum((column.min_width or 0) + 2 for column in table.columns) <= room:
        stdout.print(table, crop=False, width=room)
        return
    for line in lines:
        echo("  ".join(line[k] for k in texts if line[k]))
        echo("".join(f"  {line[k]:>{widths[k]}}" for k in range(len(titles)) if k not in texts))


def is_folder(typed: str) -> bool:
    """Whether ``-o`` names a folder: an existing one, a trailing slash, or no suffix.

    >>> is_folder("scores"), is_folder("scores.v2/"), is_folder("scores.jsonl"), is_folder("-")
    (True, True, False, False)
    """
    path = Path(typed)
    if typed.endswith(("/", os.sep)) or path.is_dir():
        return True
    return not (path.suffix or path.exists() or typed == "-")


def output_file(typed: str, name: str) -> Path:
    """Check the file that ``-o`` names; in a folder, which is made, it is called ``name``."""
    path = Path(typed)
    if is_folder(typed):
        make_folder(path)
        path /= name
    check_writable(path)
    return path


def output_folder(typed: str | None) -> Path | None:
    """Parse the folder that ``-o`` names, without making it; raise if it names a file."""
    if typed is None:
        return None
    _refuse_dash(Path(typed))
    if not is_folder(typed):
        raise InputError(f"--output {typed} names a file; give a folder: a name that ends in /")
    return Path(typed)


def store_beside(out: Path) -> Path:
    """Default place for the readings of an output: next to a file, inside a folder.

    >>> store_beside(Path("runs/scores.jsonl")).name
    'scores.jsonl.readings.db'
    """
    return out / "readings.db" if out.is_dir() else out.with_name(f"{out.name}.readings.db")


def where_kept(store: ReadingStore | None) -> str:
    """Describe whether a stopped run can be resumed."""
    if store is None:
        return "nothing was kept; use --output or --store"
    return f"readings are kept in {store.path}; run the same command again to resume"


@contextmanager
def stopping(kept: Callable[[], str]) -> Iterator[None]:
    """Exit with 1 where a model stops, and print what was kept."""
    try:
        yield
    except StoppedError as error:
        note(f"stopped: {error.reason}; {kept()}", "red")
        raise typer.Exit(1) from None


def check_output(
    path: Path | None, *inputs: Path | None, show: bool = False, as_json: bool = False
) -> None:
    """Raise if results cannot be written, or charts would be mixed with JSON lines.

    A file must have a supported format and a writable folder, and must not be an input.
    """
    if show and as_json:
        raise InputError("--show cannot be combined with --json")
    if path is None:
        return
    check_writable(path)
    score_format(path)
    remove_abandoned(path)
    if any(other is not None and other.resolve() == path.resolve() for other in inputs):
        raise InputError(f"--output {path} is also an input; give another file")


def check_writable(path: Path) -> None:
    """Raise, before the work begins, if a file could not be written."""
    _refuse_dash(path)
    try:
        if path.is_dir():
            raise IsADirectoryError
        with tempfile.TemporaryFile(dir=path.parent):  # permission bits do not apply to root
            pass
    except OSError:
        raise InputError(f"cannot write {path}: give a file in a writable folder") from None


def make_folder(path: Path) -> None:
    """Make a folder of results, or raise before the work begins; it is removed if left empty."""
    _refuse_dash(path)
    whole = path.absolute()
    with writing(path):
        atexit.register(_remove_empty, [x for x in (whole, *whole.parents) if not x.exists()])
        path.mkdir(parents=True, exist_ok=True)
    check_writable(path / "results")


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):  # not empty
        for folder in folders:
            folder.rmdir()


def _refuse_dash(path: Path) -> None:
    if str(path) == "-":
        raise InputError("cannot write -: give a name, or print with --json")


@contextmanager
def open_scores(
    out: Path | None, *, as_json: bool = False, show: bool = False
) -> Iterator[Callable[[Mapping[str, Scores]], None]]:
    """Yield a callback that writes rows to a file, or prints them as JSON lines or a table.

    A file is written completely or not at all.
    """
    table = None if as_json or (out is not None and not show) else ScoreTable()
    charted: list[Mapping[str, Scores]] = []
    with ExitStack() as stack:
        writers = [] if table is None else [table.write]
        if out is not None:
            temp = stack.enter_context(replacing(out))
            writers.append(stack.enter_context(open_writer(temp, score_format(out))).write)
        if as_json:
            writers.append(print_json)

        def write(rows: Mapping[str, Scores]) -> None:
            for take in writers:
                take(rows)
            if show and not charted:
                charted.append(rows)

        yield write
    for rows in charted:
        draw_charts(rows)
    if table is not None:
        table.print()


def print_json(rows: Mapping[str, Scores]) -> None:
    lines = io.StringIO()
    ScoreWriter(JsonLinesWriter(lines), "jsonl").write(rows)
    sys.stdout.write(printable(lines.getvalue()))
    sys.stdout.flush()  # keep these rows if the run fails later


class ScoreTable:
    """A table of the first rows on standard output, with a column per method."""

    def __init__(self) -> None:
        self._titles: list[str] = []
        self._plain: list[str] = []  # columns of a reading, before those of the methods
        self._people: Sequence[str] = ()  # columns of a calibration, after them
        self._rows: list[list[str]] = []
        self._lowest: list[str] = []  # lowest sentences of captions judged by sentence
        self._named = False  # whether images and captions are shown
        self._total = 0

    def write(self, rows: Mapping[str, Scores]) -> None:
        """Add rows; those after the first TABLE_ROWS are only counted."""
        first = next(iter(rows.values()))
        if not self._total:
            self._named = any(caption is not None for caption in first.captions or ())
            names = ("id", "image", "caption") if self._named else ("id",)
            # The default method is shown with the scores that it starts from.
            plain = SIDE_BY_SIDE[:-1] if [*rows] == [SIDE_BY_SIDE[-1]] else ("raw",)
            self._plain = [name for name in plain if name not in rows]
            self._people = () if first.people is None else ("people", "low", "high")
            self._titles = [*names, *self._plain, *rows, *self._people, "flags"]
        for i in range(min(len(first.value), TABLE_ROWS - self._total)):
            self._add_row(rows, i)
        self._total += len(first.value)

    def _add_row(self, rows: Mapping[str, Scores], i: int) -> None:
        first = next(iter(rows.values()))
        cells = [_of_row(first.ids, i)]
        if self._named:
            # The folder of an image would push the scores off the screen.
            cells += [_file_name(first, i), _of_row(first.captions, i)]
        for values in (getattr(first, name) for name in self._plain):
            cells.append("-" if values is None else format_score(values[i]))
        cells += [format_score(scores.value[i]) for scores in rows.values()]
        cells += [format_score(getattr(first, name)[i]) for name in self._people]
        marks = dict.fromkeys(
            name for scores in rows.values() for name, on in scores.flags.items() if on[i]
        )
        self._rows.append([*cells, " ".join(marks)])
        for method, scores in rows.items():
            if scores.sentences is not None and (sentences := scores.sentences[i]) is not None:
                text, score = sentences.lowest
                if score is not None:
                    row = f"{_of_row(scores.ids, i)} {method}"
                    of = f"{row}: lowest of {len(sentences.texts)} sentences"
                    self._lowest.append(f"{of}, {format_score(score)}: {text}")

    def print(self) -> None:
        texts = (0, 1, 2) if self._named else (0,)
        print_columns(self._titles, self._rows, (*texts, len(self._titles) - 1))
        for line in self._lowest:
            echo(" ".join(line.split()))
        if self._total > TABLE_ROWS:
            more = self._total - TABLE_ROWS
            echo(f"... and {count_of(more, 'row')} more; use --output or --json for all")


def _of_row(texts: Sequence[str | None] | None, row: int) -> str:
    return "" if texts is None else texts[row] or ""


def _file_name(scores: Scores, row: int) -> str:
    return Path(_of_row(scores.images, row) or _of_row(scores.names, row) or "<image>").name


def format_score(value: float) -> str:
    return "nan" if math.isnan(value) else f"{value:.3f}"


def bars(
    title: str, answers: Sequence[str], before: Any, after: Any, names: tuple[str, str]
) -> Table:
    table = Table(title=escape(title), title_justify="left", title_style="bold", box=None)
    table.add_column("", no_wrap=True)
    width = max(4, min(24, (stdout.width - 24) // 2))  # of a full bar
    for name, style in zip(names, ("cyan", "magenta"), strict=True):
        table.add_column(escape(name), style=style, min_width=width + 6)
    for answer, p, q in zip(answers, before, after, strict=True):
        table.add_row(answer, _bar(p, width), _bar(q, width))
    return table


def _bar(p: float, width: int) -> str:
    eighths = round(p * width * 8)
    full, rest = divmod(eighths, 8)
    return f"{p:5.3f} {'█' * full}{_EIGHTHS[rest].strip()}"


def draw_charts(rows: Mapping[str, Scores]) -> None:
    """Print charts of the first rows: token probabilities and each method's distribution."""
    for method, scores in rows.items():
        after, plain, smoothing = scores.distribution, scores.plain, scores.smoothing
        if after is None or plain is None or smoothing is None:
            continue
        judged = ~np.isnan(after).all(axis=1)  # captions judged by sentences have no distribution
        for i in np.flatnonzero(judged)[:CHARTS].tolist():
            names = (
                f"token probabilities → {format_score(smoothing[i])}",
                f"{method} → {format_score(scores.value[i])}",
            )
            caption = scores.captions and scores.captions[i]
            named = caption is not None
            title = f"{_file_name(scores, i)}: {caption}" if named else _of_row(scores.ids, i)
            stdout.print(bars(title, scores.answers, plain[i], after[i], names))
            stdout.print()


@dataclass(frozen=True)
class MaxFailed:
    """The most items that may fail for exit code 0: a count or a share.

    >>> MaxFailed.parse("5%").allows(5, 100), MaxFailed.parse("5").allows(6, 100)
    (True, False)
    """

    typed: str = "0"
    count: int = 0
    percent: float = 0.0

    @classmethod
    def parse(cls, typed: str) -> MaxFailed:
        with suppress(ValueError):
            if not typed.endswith("%") and (count := int(typed)) >= 0:
                return cls(typed, count)
            if typed.endswith("%") and 0 <= (percent := float(typed[:-1])) <= 100:
                return cls(typed, percent=percent)
        raise InputError(f"--max-failed {typed} is not allowed; give a count or a share such as 5%")

    def allows(self, failed: int, items: int) -> bool:
        return failed <= self.count or 100 * failed <= self.percent * items


def report(
    totals: Totals,
    signatures: Mapping[str, str],
    store: ReadingStore | None = None,
    out: Path | None = None,
    min_score: float | None = None,
    *,
    full: bool = False,
    means: Mapping[str, ClusteredMean] | None = None,
    reasons: str = "--output or --json",
    max_failed: MaxFailed = MaxFailed(),
) -> None:
    """Report a run on standard error; exit with 1 if too many items failed.

    ``means`` have the intervals of methods; ``full`` prints full signatures; ``reasons`` names the
    place that has every reason.
    """
    if store is not None:
        note(f"readings kept in {store.path}", "dim")
        if store.damaged:
            note(f"read again: {count_of(store.damaged, 'damaged reading')} in it", "yellow")
    for name, reason in totals.errors:
        where = "" if reason.startswith(name) else f"{name}: "
        note(f"failed: {where}{reason}", "red")
    if totals.failed > len(totals.errors):
        more = totals.failed - len(totals.errors)
        note(f"... and {more} more; {reasons} has every reason", "red")
    items = f"{totals.rows} item{'s' * (totals.rows != 1)}"
    for method, counts in totals.methods.items():
        flags = ", ".join(f"{count} {name}" for name, count in counts.flags.items() if count)
        scored = totals.rows - counts.failed
        line = f"{method}: {items}, mean {counts.score_sum / scored if scored else math.nan:.4f}"
        line += _interval(means[method]) if means else ""
        note(line + (f" ({flags})" if flags else ""))
        if counts.bound is not None:
            kinds = " and ".join(name for name in ("truncated", "sampled") if name in counts.flags)
            worst = f"{kinds} rows may be wrong by up to {counts.bound:.4f} (column bound)"
            note(f"{method}: {worst}")
        text = signatures[method]
        note(text if full else shortened_signature(text), "dim")
    if out is not None:
        interval = f"; for an interval over images: discode compare {out}" if out.is_dir() else ""
        note(f"scores written to {out}{interval}", "dim")
        if min_score is not None:
            below = totals.rows - totals.failed - totals.passed
            passed = f"{totals.passed} pass {min_score}, {below} do not, {totals.failed} failed"
            note(f"{passed}; passed samples are in {out / 'passed'}")
    if not max_failed.allows(totals.failed, totals.rows):
        raise typer.Exit(1)
    if totals.failed:
        note(f"{totals.failed} of {items} failed, within --max-failed {max_failed.typed}")


def _interval(mean: ClusteredMean) -> str:
    found = mean.interval()
    if math.isnan(found.low):
        return ""
    few = ", too narrow" if mean.clusters < FEW_IMAGES else ""
    images = f"{mean.clusters:,} images" if mean.clusters < MOST else "images"
    return f", 95 % {found.low:.4f} to {found.high:.4f} over {images}{few}"
