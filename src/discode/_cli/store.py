"""discode store: list, export or import the readings of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from discode._cli.output import echo, note, stdout, table_of
from discode.errors import InputError, count_of
from discode.readings._exchange import export_readings, import_readings
from discode.readings._store import ReadingStore

app = typer.Typer(help="List, export or import the readings of a store.", no_args_is_help=True)
Store = Annotated[Path, typer.Argument(help="Reading store (SQLite).")]
Export = Annotated[Path, typer.Argument(help="File of readings: .jsonl or .parquet.")]


@app.command()
def info(store: Store) -> None:
    """List models, prompts and scales with their numbers of readings."""
    table = table_of("model", "revision", "dtype", "scale", "prompt", "readings", texts=range(5))
    with ReadingStore(store, create=False) as opened:
        for run, count in opened.run_keys():
            model, revision, dtype, prompt, scale = run.fields()
            short = prompt if len(prompt) < 40 else f"{prompt[:37]}..."
            table.add_row(*map(escape, (model, revision, dtype, scale, short)), str(count))
    stdout.print(table)


@app.command("export")
def export_(store: Store, file: Export) -> None:
    """Write every reading to a file."""
    with ReadingStore(store, create=False) as opened:
        echo(f"{export_readings(opened, file)} readings written to {file}")
        if opened.damaged:
            note(f"skipped: {count_of(opened.damaged, 'damaged reading')}", "red")
            raise typer.Exit(1)


@app.command("import")
def import_(store: Store, file: Export) -> None:
    """Add exported readings to a store; existing ones are kept."""
    new = not store.exists()
    try:
        _import(store, file)
    except InputError:
        if new:  # a failed import leaves no files
            for end in ("", "-wal", "-shm"):
                Path(f"{store}{end}").unlink(missing_ok=True)
        raise


def _import(store: Path, file: Path) -> None:
    with ReadingStore(store) as opened:
        echo(f"{import_readings(opened, file)} readings read from {file}; {len(opened)} in {store}")
