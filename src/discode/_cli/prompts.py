"""discode prompts: what a model is asked, exactly as it is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from discode._cli import output
from discode._cli.model_options import ModelOption, model_options
from discode._prompts import FLEUR, Prompt, get_prompt
from discode._scales import SCALES, Scale, get_scale
from discode.backends import kind_of, open_backend
from discode.errors import InputError

Render = Callable[[Prompt, Scale, str, Sequence[str]], str]
"""From a prompt, a scale, a caption and its references to the text that a model gets."""


def prompts(
    model: Annotated[
        str | None,
        typer.Option(
            help="As this model sees it: a local one (ORG/NAME or a folder) in its chat template, "
            "any other in the wording it is asked with. No weights are downloaded."
        ),
    ] = None,
    model_option: ModelOption = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="fleur, caption-last or a text file; the model's own by default."),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(metavar="SCALE", help="unit, ten, 1-7 ...; repeat. All by default."),
    ] = None,
    caption: Annotated[str, typer.Option(help="The caption to ask about.")] = "{caption}",
    reference: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="A reference; repeat. Only the wording with them."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON line per text, for programs.")
    ] = False,
) -> None:
    """Print what is asked, per scale, with and without references, as the model sees it.

    A caption is put in as it would be: whatever looks like a control token is broken by a space.
    """
    usual, render, placed = _open(model, model_options(model_option))
    wording = usual if prompt is None else get_prompt(prompt)
    kinds = [tuple(reference)] if reference else [(), ("{references}",)]
    shown = 0
    refused: list[InputError] = []
    for name in scale or SCALES:
        for references in kinds:
            asked = get_scale(name)
            try:
                text = render(wording, asked, caption, references)
            except InputError as error:
                refused.append(error)
                continue
            kind = "with references" if references else "without references"
            if as_json:
                row = {
                    "model": model, "prompt": wording.name, "digest": wording.digest,
                    "scale": asked.name, "references": bool(references), "text": text,
                }  # fmt: skip
                output.echo(json.dumps(row, ensure_ascii=False))
            else:
                heading = f"--- prompt {wording.name}, scale {asked.name}, {kind}"
                typer.secho(("\n" if shown else "") + output.printable(heading), bold=True)
                output.echo(text)
                stems = " or ".join(repr(stem) for stem in asked.stems if stem)
                answers = f"{asked.answers[0]} to {asked.answers[-1]}"
                forced = f"{stems}, then " if stems else ""
                output.note(f"    the answer is read after it: {forced}{answers}", "dim")
            shown += 1
    if not shown:
        raise refused[0]
    for reason in dict.fromkeys(map(str, refused)):
        output.note(f"not asked: {reason}", "dim")
    if placed and not as_json:
        output.note(placed, "dim")


def _open(model: str | None, options: dict[str, Any]) -> tuple[Prompt, Render, str]:
    """Return a model's own prompt, how it renders one, and what stands around the text."""
    if model is None:
        if options:
            raise InputError("-M goes with --model")
        return FLEUR, _plain, "the text alone; --model ORG/NAME shows a chat template around it"
    kind, name = kind_of(model)
    if kind.name == "Local":
        from discode.backends._local.check import open_vocabulary  # needs discode-eval[hf]

        checked_options = kind.check(options)
        if other := sorted(checked_options.keys() - {"revision"}):
            raise InputError(f"{other[0]} changes nothing that is asked; leave it out")
        vocabulary = open_vocabulary(name, checked_options.get("revision"))

        def in_template(
            asked: Prompt, scale: Scale, caption: str, references: Sequence[str]
        ) -> str:
            tokenized = vocabulary.tokenize_prompt(asked, scale, references=bool(references))
            return vocabulary.chat(tokenized.render(caption, references))

        return FLEUR, in_template, ""
    backend = open_backend(model, options)

    def checked(asked: Prompt, scale: Scale, caption: str, references: Sequence[str]) -> str:
        backend.check(asked, scale)
        if references and kind.name == "Embedded":
            raise InputError("the embedded model takes no references")
        return _plain(asked, scale, caption, references)

    around = "the text after the image, in one message of the user; the server adds its template"
    return backend.prompt, checked, around if kind.name == "Served" else ""


def _plain(asked: Prompt, scale: Scale, caption: str, references: Sequence[str]) -> str:
    return asked.render(caption, references, scale)
