"""The command line: one file a verb. Exit codes: 0 fine, 1 some items failed, 2 your mistake."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from io import TextIOWrapper
from typing import Any

import typer
import typer.core

import discode
from discode._cli import (
    bench,
    choose,
    compare,
    decode,
    demo,
    explain,
    filter,
    lists,
    paper,
    probe,
    prompts,
    report,
    score,
    serve,
    store,
)
from discode._cli.output import echo, printable
from discode._plugins import blame
from discode.backends import KINDS
from discode.backends._embedded import backend as embedded
from discode.errors import DiscodeError, StoppedError
from discode.stats import UndefinedWarning


class _Verbs(typer.core.TyperGroup):
    """The verbs, and ``mceval``, which is found when it is called.

    Types are typer's own: from 0.16 on it brings its click along under another name.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), "mceval"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "mceval":
            return super().get_command(ctx, cmd_name)
        from mceval._cli import app as mceval

        command = typer.main.get_command(mceval)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="discode",
    cls=_Verbs,
    help="Judge image captions with vision-language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"discode {discode.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Judge image captions with vision-language models."""


app.command("score")(score.score)
app.command("explain")(explain.explain)
app.command("filter")(filter.filter_scores)
app.command("decode")(decode.decode)
app.command("demo")(demo.demo)
app.command("compare")(compare.compare)
app.command("choose")(choose.choose)
app.command("paper")(paper.paper)
app.command("report")(report.report)
app.command("serve")(serve.serve)
app.command("methods")(lists.methods)
app.command("scales")(lists.scales)
app.command("models")(lists.models)
app.command("prompts")(prompts.prompts)
app.add_typer(bench.app, name="bench")
app.add_typer(probe.app, name="probe")
app.add_typer(store.app, name="store")


def main() -> None:
    """Run the command line; a user's mistake is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal that lacks a letter, or half a character in a caption, is no reason to die.
            stream.reconfigure(errors="backslashreplace")
    embedded.WAYS_TO_CHOOSE = ("--model NAME", "--model embedded")
    # Of a broken image its row speaks; images.py keeps libtiff silent.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=UndefinedWarning)  # tables say "undefined"
    try:
        code = typer.main.get_command(app)(prog_name="discode", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # typer's word for Ctrl-C
            raise KeyboardInterrupt
    except StoppedError as error:
        code = _say(f"stopped: {error.reason}; no caption was read", 1)
    except DiscodeError as error:
        code = _say(str(error), 2)
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            if not (line := blame(error)):
                raise
            sys.exit(_say(line, 2))  # a plug-in that calls sys.exit() has not done its work
        code = 0  # `discode ... | head`: the reader has seen enough; typer would say 1
        _drop_output()
    except OSError as error:
        code = _say(str(error), 2)
        _drop_output()
    except (KeyboardInterrupt, typer.Abort):
        code = _say("interrupted; run it again to go on from what --output or --store kept", 130)
    except Exception as error:
        # Usage errors of click, which typer may or may not bring along under its own name.
        message = getattr(error, "format_message", None)
        if message is None and (line := blame(error)):
            sys.exit(_say(line, 2))
        if message is None:
            raise
        text = str(message())  # empty when the help was printed for want of arguments
        name = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
        if any(name == row.name for kind in KINDS.values() for row in kind.options()):
            text = f"--{name.replace('_', '-')} is an option of models: give -M {name}=VALUE"
            where = "discode models --options"
        else:
            where = f"{getattr(getattr(error, 'ctx', None), 'command_path', 'discode')} --help"
        code = _say(f"{text} ({where} lists what there is)", 2) if text else 2
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, code: int) -> int:
    print(f"discode: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Point standard output nowhere, so that Python's own flush at exit cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
