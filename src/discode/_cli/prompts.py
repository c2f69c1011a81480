"""discode prompts: the prompts, exactly as they are sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from discode._cli import flags, output
from discode._cli.flags import model_options
from discode._prompts import FLEUR, Prompt, choose_prompt, get_prompt
from discode._scales import SCALES, Scale, get_scale
from discode.backends import kind_of, open_backend
from discode.errors import InputError

Render = Callable[[Prompt, Scale, str, Sequence[str]], str]
"""Renders a prompt, a scale, a caption and its references as the text for a model."""


def prompts(
    model: flags.Model = None,
    model_option: flags.ModelOption = None,
    prompt: flags.Prompt = None,
    scale: flags.Scales = None,
    caption: Annotated[
        str, flags.input_flag(metavar="TEXT", help="Caption to insert.")
    ] = "{caption}",
    reference: flags.References = None,
    as_json: flags.AsJson = False,
) -> None:
    """Print the prompts exactly as they are sent, per scale, with and without references.

    A local model (ORG/NAME or a folder) adds its chat template; its weights are
    not downloaded. Text that looks like a control token is broken by a space.
    """
    usual, render, placed = _open(model, model_options(model_option))
    given = None if prompt is None else get_prompt(prompt)
    own = given.scale if given is not None else None
    kinds = [tuple(reference)] if reference else [(), ("{references}",)]
    shown = 0
    refused: list[InputError] = []
    for name in scale or ([own] if own else SCALES):
        asked = get_scale(name)
        wording = choose_prompt(given, asked, usual)
        for references in kinds:
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
                output.note(f"    followed by the answer: {forced}{answers}", "dim")
            shown += 1
    if not shown:
        raise refused[0]
    for reason in dict.fromkeys(map(str, refused)):
        output.note(f"not available: {reason}", "dim")
    if placed and not as_json:
        output.note(placed, "dim")


def _open(model: str | None, options: dict[str, Any]) -> tuple[Prompt, Render, str]:
    """Open the default prompt of a model, its renderer, and a note on the text around it."""
    if model is None:
        if options:
            raise InputError("-M requires --model")
        return FLEUR, _plain, "text only; --model ORG/NAME adds its chat template"
    kind, name = kind_of(model)
    if kind.name == "Local":
        from discode.backends._local.check import open_vocabulary  # needs discode-eval[hf]

        checked_options = kind.check(options)
        if other := sorted(checked_options.keys() - {"revision"}):
            raise InputError(f"-M {other[0]} has no effect on the prompt; remove it")
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

    around = "sent after the image in one user message; the server adds its template"
    return backend.prompt, checked, around if kind.name == "Served" else ""


def _plain(asked: Prompt, scale: Scale, caption: str, references: Sequence[str]) -> str:
    return asked.render(caption, references, scale)
