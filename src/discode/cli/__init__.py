"""The command line: one file a verb. Exit codes: 0 fine, 1 some items failed, 2 your mistake."""

from __future__ import annotations

import sys

import typer

import discode
from discode.cli import decode, demo, lists, score, store
from discode.errors import DiscodeError

app = typer.Typer(
    name="discode",
    help="Judge image captions with vision-language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"discode {discode.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Judge image captions with vision-language models."""


app.command("score")(score.score)
app.command("decode")(decode.decode)
app.command("demo")(demo.demo)
app.command("methods")(lists.methods)
app.command("scales")(lists.scales)
app.add_typer(store.app, name="store")


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    try:
        app()
    except DiscodeError as error:
        print(f"discode: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        # `discode ... | head`: the reader has seen enough.
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        print(
            "discode: interrupted; run the same command again to go on from the store",
            file=sys.stderr,
        )
        sys.exit(130)
