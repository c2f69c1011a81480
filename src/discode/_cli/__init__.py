"""The command line, one file per verb. Exit codes: 0 success, 1 some items failed, 2 bad input."""

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
    arena,
    bench,
    calibrate,
    choose,
    compare,
    decode,
    demo,
    explain,
    filter,
    flags,
    lists,
    paper,
    prefer,
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
    """The verbs, and ``mceval``, which is imported when it is called.

    Types are typer's own: from 0.16 on it brings its click along under another name.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        return [*(name for verbs in _VERBS.values() for name in verbs), "mceval"]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name != "mceval":
            return super().get_command(ctx, cmd_name)
        from mceval._cli import app as mceval

        command = typer.main.get_command(mceval)
        command.name = cmd_name
        command.rich_help_panel = [*_VERBS][-1]  # type: ignore[attr-defined]
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


_VERBS: dict[str | None, dict[str, Any]] = {
    None: {  # most people need these first
        "score": score.score,
        "compare": compare.compare,
        "prefer": prefer.prefer,
        "arena": arena.arena,
        "bench": bench.app,
        "report": report.report,
        "explain": explain.explain,
        "probe": probe.app,
        "serve": serve.serve,
        "models": lists.models,
    },
    "Methods, scales and prompts": {
        "methods": lists.methods,
        "scales": lists.scales,
        "prompts": prompts.prompts,
        "choose": choose.choose,
        "calibrate": calibrate.calibrate,
    },
    "Scores and readings": {
        "decode": decode.decode,
        "filter": filter.filter_scores,
        "store": store.app,
    },
    "Demo, paper and dataset": {"demo": demo.demo, "paper": paper.paper},
}
for panel, verbs in _VERBS.items():
    for name, verb in verbs.items():
        if isinstance(verb, typer.Typer):
            app.add_typer(verb, name=name, rich_help_panel=panel)
        else:
            app.command(name, cls=flags.Verb, rich_help_panel=panel)(verb)


def main() -> None:
    """Run the command line; bad input is reported in one line with exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal without a letter, or a lone surrogate in a caption, must not end the run.
            stream.reconfigure(errors="backslashreplace")
    embedded.WAYS_TO_CHOOSE = ("--model NAME", "--model embedded")
    # A broken image is reported in its row; images.py silences libtiff.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=UndefinedWarning)  # tables print "undefined"
    try:
        code = typer.main.get_command(app)(prog_name="discode", standalone_mode=False)
        sys.stdout.flush()
        if code == 130:  # typer's code for Ctrl-C
            raise KeyboardInterrupt
    except StoppedError as error:
        code = _fail(f"stopped: {error.reason}; no caption was read", 1)
    except DiscodeError as error:
        code = _fail(str(error), 2)
    except (BrokenPipeError, SystemExit) as error:
        if isinstance(error, SystemExit) and not isinstance(error.__context__, BrokenPipeError):
            if not (line := blame(error)):
                raise
            sys.exit(_fail(line, 2))  # a plug-in that calls sys.exit() has failed
        code = 0  # `discode ... | head`: the pipe was closed; typer would exit with 1
        _drop_output()
    except OSError as error:
        code = _fail(str(error), 2)
        _drop_output()
    except (KeyboardInterrupt, typer.Abort):
        code = _fail("interrupted; run the same command again to resume", 130)
    except Exception as error:
        # Usage errors of click, which typer may or may not bring along under its own name.
        message = getattr(error, "format_message", None)
        if message is None and (line := blame(error)):
            sys.exit(_fail(line, 2))
        if message is None:
            raise
        text = str(message())  # empty when the help was printed for want of arguments
        name = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
        if any(name == row.name for kind in KINDS.values() for row in kind.options()):
            text = f"--{name.replace('_', '-')} is a model option; use -M {name}=VALUE"
            where = "discode models --options"
        else:
            where = f"{getattr(getattr(error, 'ctx', None), 'command_path', 'discode')} --help"
        code = _fail(f"{text} (see {where})", 2) if text else 2
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> int:
    print(f"discode: {printable(' '.join(message.split()))}", file=sys.stderr)
    return code


def _drop_output() -> None:
    """Point standard output nowhere, so that Python's own flush at exit cannot fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
