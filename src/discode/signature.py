"""One line that says how a number was made."""

from __future__ import annotations

from discode.decoders import Decoder
from discode.decoders.options import options_text
from discode.prompts import Prompt
from discode.readings import Identity
from discode.scales import Scale
from discode.version import __version__

GIVEN = Identity("given")
"""Stands in where log-probabilities came from the caller."""


def signature(
    identity: Identity,
    scale: Scale,
    decoder: Decoder,
    prompt: Prompt | None = None,
    **more: str,
) -> str:
    """Return the signature; every option is written out, defaults too.

    ``more`` adds what else shaped the number, e.g. ``references="all"``.

    >>> from discode.decoders import get_decoder
    >>> from discode.scales import TEN
    >>> signature(GIVEN, TEN, get_decoder("raw")).split("|", 1)[1]
    'model:given|revision:none|dtype:none|prompt:none|scale:ten|decoder:raw(reading=greedy)'
    """
    parts = {
        "discode": __version__,
        "model": identity.model,
        "revision": identity.revision,
        "dtype": identity.dtype,
        "prompt": "none" if prompt is None else f"{prompt.name}-{prompt.digest}",
        "scale": scale.unique_name,
        **more,
        "decoder": f"{decoder.name}({options_text(decoder.options())})",
    }
    return "|".join(
        f"{key}:{'_'.join(str(value).split()).replace('|', '/')}" for key, value in parts.items()
    )
