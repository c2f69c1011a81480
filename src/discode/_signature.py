"""Signature: how a number was made, as fields with a short and a long form."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from discode._plugins import plugin_version
from discode._prompts import Prompt
from discode._scales import Scale
from discode._version import __version__
from discode.decoders import Decoder, named_decoder
from discode.decoders._base import RENAMED
from discode.options import option_texts
from discode.readings import Identity

GIVEN = Identity("given")
"""Stands in where log-probabilities came from the caller."""


@dataclass(frozen=True)
class SignedDecoder:
    """A decoder as a signature has it: its name, and every option as text, sorted by name.

    >>> from discode.decoders import get_decoder
    >>> str(SignedDecoder.of(get_decoder("smoothing")))
    'smoothing(stem=graded)'
    """

    name: str
    options: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, decoder: Decoder) -> SignedDecoder:
        name = decoder.name
        if not type(decoder).__module__.startswith("discode."):
            name = f"{name}@{plugin_version(type(decoder).__module__)}"
        (_, name), *options = _cleaned([("", name), *option_texts(decoder.options())])
        return cls(name, tuple(options))

    @classmethod
    def read(cls, text: str) -> SignedDecoder:
        """Return the decoder of a text that an earlier run wrote."""
        name, _, options = text.removesuffix(")").partition("(")
        parts = (part.partition("=") for part in options.split(",") if part)
        read = ((RENAMED.get(key, key), _unescaped(value)) for key, _, value in parts)
        return cls(name, tuple(sorted(read)))

    def make(self) -> Decoder:
        """Make the decoder; one that a preset file calibrates cannot be made without the file."""
        return named_decoder(self.name.partition("@")[0], **dict(self.options))

    def __str__(self) -> str:
        # A value's commas are escaped: commas separate options.
        texts = (text.replace("%2", "%252").replace(",", "%2C") for _, text in self.options)
        named = zip(self.options, texts, strict=True)
        return f"{self.name}({','.join(f'{name}={text}' for (name, _), text in named)})"


def _unescaped(text: str) -> str:
    return text.replace("%2C", ",").replace("%252", "%2")


@dataclass(frozen=True)
class Signature:
    """How a number was made: everything that shaped it, by name.

    ``str()`` is the long form, ``key:value|key:value``, to be written with every number;
    :attr:`short` is for table headings. Ask for a field instead of taking them apart.

    >>> signature = Signature.of(metric="bleu-4", tokenizer="ptb")
    >>> signature["tokenizer"], str(signature).split("|", 1)[1]
    ('ptb', 'metric:bleu-4|tokenizer:ptb')
    """

    fields: tuple[tuple[str, str | SignedDecoder], ...]

    @classmethod
    def of(cls, **fields: object) -> Signature:
        """Return the signature of this version of discode with these fields, in this order."""
        return cls(_cleaned([("discode", __version__), *fields.items()]))

    @classmethod
    def read(cls, written: str | Mapping[str, str]) -> Signature:
        """Read the signature of a run log or a score file: its text, or its fields.

        >>> Signature.read("discode:0.2.0|decoder:raw(reading=greedy)|ties:wrong").decoder
        SignedDecoder(name='raw', options=(('stem', 'greedy'),))
        """
        if isinstance(written, str):
            parts = (part.partition(":") for part in written.split("|") if part)
            written = {key: text for key, _, text in parts}
        return cls(
            tuple(
                (key, SignedDecoder.read(text) if key == "decoder" else text)
                for key, text in written.items()
            )
        )

    def with_fields(self, **fields: object) -> Signature:
        """Return the signature with some fields replaced, and new ones added at its end."""
        return Signature(tuple((dict(self.fields) | dict(_cleaned(fields.items()))).items()))

    def __getitem__(self, key: str) -> str:
        return dict(self)[key]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return ((key, str(value)) for key, value in self.fields)

    def get(self, key: str, default: str = "") -> str:
        """Return a field, or ``default`` where the signature has none of that name."""
        return dict(self).get(key, default)

    @property
    def decoder(self) -> SignedDecoder | None:
        """The decoder with its options; None where there was none."""
        return next((value for _, value in self.fields if isinstance(value, SignedDecoder)), None)

    @property
    def asked(self) -> Signature:
        """Who was asked, and how: the fields before the decoder."""
        place = next((n for n, (key, _) in enumerate(self.fields) if key == "decoder"), None)
        return Signature(self.fields[:place])

    def __str__(self) -> str:
        return "|".join(f"{key}:{value}" for key, value in self)

    def __repr__(self) -> str:
        return f"Signature({self.short})"

    def _repr_html_(self) -> str:
        return fields_table(self)

    @property
    def short(self) -> str:
        """Who made it, and a digest of the long form.

        >>> len(Signature.of(metric="cider").short)
        14
        """
        return shortened_signature(str(self))


def shortened_signature(text: str) -> str:
    """Return the short form of a signature's long one: who made it, and a digest.

    >>> shortened_signature("discode:0.2.0|model:m|decoder:raw(stem=greedy)")[:6]
    'm|raw|'
    """
    fields = dict(part.partition(":")[::2] for part in text.split("|"))
    who = (fields.get(key, "").partition("(")[0] for key in ("metric", "model", "decoder"))
    return "|".join([*filter(None, who), hashlib.sha256(text.encode()).hexdigest()[:8]])


def fields_table(fields: Iterable[tuple[str, object]]) -> str:
    """Return names with their values as an HTML table.

    >>> fields_table([("scale", "unit")])
    '<table><tr><th>scale</th><td>unit</td></tr></table>'
    """
    cells = ((escape(key), escape(str(value))) for key, value in fields)
    rows = (f"<tr><th>{key}</th><td>{value}</td></tr>" for key, value in cells)
    return f"<table>{''.join(rows)}</table>"


def _cleaned(fields: Iterable[tuple[str, Any]]) -> tuple[tuple[str, Any], ...]:
    """Return fields as a signature has them: text without blanks and bars, or a decoder."""
    return tuple(
        (key, value)
        if isinstance(value, SignedDecoder)
        else (key, "_".join(str(value).split()).replace("|", "/"))
        for key, value in fields
    )


def sign(
    identity: Identity,
    scale: Scale,
    decoder: Decoder,
    prompt: Prompt | None = None,
    *,
    samples: int = 0,
    **more: str,
) -> Signature:
    """Return a judge's signature; every option is written out, defaults too.

    ``samples`` is how many answers were drawn per pair, at least, if log-probabilities were not
    read; ``more`` adds what else shaped the number, e.g. ``missing="spread"``.

    >>> from discode.decoders import get_decoder
    >>> from discode._scales import TEN
    >>> str(sign(GIVEN, TEN, get_decoder("raw"))).split("|", 1)[1]
    'model:given|revision:none|dtype:none|prompt:none|scale:ten|decoder:raw(stem=greedy)'
    """
    return Signature.of(
        model=identity.model,
        revision=identity.revision,
        dtype=identity.dtype,
        prompt="none" if prompt is None else f"{prompt.name}-{prompt.digest}",
        scale=scale.unique_name,
        **more,
        **({"samples": samples} if samples else {}),
        decoder=SignedDecoder.of(decoder),
    )
