"""Signature: how a number was made, as fields with a short and a long form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from discode.decoders import Decoder
from discode.options import options_text
from discode.prompts import Prompt
from discode.readings import Identity
from discode.scales import Scale
from discode.version import __version__

GIVEN = Identity("given")
"""Stands in where log-probabilities came from the caller."""


@dataclass(frozen=True)
class Signature:
    """How a number was made: everything that shaped it, by name.

    ``str()`` is the long form, ``key:value|key:value``, to be written beside every number;
    :attr:`short` is for table headings. Neither is meant to be parsed: ask for a field.

    >>> made = Signature.of(metric="bleu-4", tokenizer="ptb")
    >>> made["tokenizer"], str(made).split("|", 1)[1]
    ('ptb', 'metric:bleu-4|tokenizer:ptb')
    """

    fields: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, **fields: object) -> Signature:
        """Return the signature of this version of discode with these fields, in this order."""
        shown = {"discode": __version__, **fields}
        return cls(tuple((key, _clean(value)) for key, value in shown.items()))

    def with_fields(self, **fields: object) -> Signature:
        """Return the signature with some fields replaced, and new ones added at its end."""
        return Signature(
            tuple((dict(self.fields) | {k: _clean(fields[k]) for k in fields}).items())
        )

    def __getitem__(self, key: str) -> str:
        return dict(self.fields)[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.fields)

    def get(self, key: str, default: str = "") -> str:
        """Return a field, or ``default`` where the signature has none of that name."""
        return dict(self.fields).get(key, default)

    def __str__(self) -> str:
        return "|".join(f"{key}:{value}" for key, value in self.fields)

    @property
    def short(self) -> str:
        """Who made it, and a digest of the long form.

        >>> len(Signature.of(metric="cider").short)
        14
        """
        who = [self.get(key).partition("(")[0] for key in ("metric", "model", "decoder")]
        digest = hashlib.sha256(str(self).encode()).hexdigest()[:8]
        return "|".join([*filter(None, who), digest])


def _clean(value: object) -> str:
    return "_".join(str(value).split()).replace("|", "/")


def sign(
    identity: Identity,
    scale: Scale,
    decoder: Decoder,
    prompt: Prompt | None = None,
    **more: str,
) -> Signature:
    """Return a judge's signature; every option is written out, defaults too.

    ``more`` adds what else shaped the number, e.g. ``missing="spread"``.

    >>> from discode.decoders import get_decoder
    >>> from discode.scales import TEN
    >>> str(sign(GIVEN, TEN, get_decoder("raw"))).split("|", 1)[1]
    'model:given|revision:none|dtype:none|prompt:none|scale:ten|decoder:raw(reading=greedy)'
    """
    return Signature.of(
        model=identity.model,
        revision=identity.revision,
        dtype=identity.dtype,
        prompt="none" if prompt is None else f"{prompt.name}-{prompt.digest}",
        scale=scale.unique_name,
        **more,
        decoder=f"{decoder.name}({options_text(decoder.options())})",
    )
