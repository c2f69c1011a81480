"""Replays a store: the same readings, without the model. For tests, docs and sharing."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from discode._pairs import Pair
from discode._prompts import PROMPTS, Prompt
from discode._scales import Scale
from discode.backends._base import Backend, Blocks
from discode.errors import DiscodeError, InputError, count_of
from discode.images import image_digest
from discode.readings import Identity, Readings
from discode.readings._exchange import import_readings
from discode.readings._store import PairKey, ReadingStore, RunKey


class Recorded(Backend):
    """A backend that answers from a store (``.db``) or an export of one (JSONL, Parquet).

    Args:
        path: The file, with ``#MODEL``, ``#MODEL@REVISION`` or ``#MODEL@REVISION@DTYPE`` if it
            holds readings of several models.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        path, model = split_recording(os.fspath(path))
        if not path.is_file():
            raise InputError(f"no recorded readings at {path}")
        if path.suffix.lower() in (".jsonl", ".ndjson", ".parquet"):
            self._store = ReadingStore(":memory:")
            import_readings(self._store, path)
        else:
            self._store = ReadingStore(path, create=False)
        models = list(dict.fromkeys(ask.identity for ask, count in self._store.run_keys() if count))
        chosen = [identity for identity in models if model in ("", *_names(identity))]
        if len(chosen) != 1:
            known = [name for identity in models for name in _names(identity)]
            names = ", ".join(
                next(name for name in _names(identity) if known.count(name) == 1)
                for identity in models
            )
            raise InputError(
                f"{path} holds readings of {count_of(len(models), 'model')} ({names or 'none'}); "
                "choose one: recorded:FILE#MODEL"
            )
        self.identity = chosen[0]
        asks = [ask for ask, count in self._store.run_keys() if ask.identity == chosen[0] and count]
        # Ratings first: yes/no questions and comparisons have scales of their own.
        own = {prompt.scale for prompt in PROMPTS.values()}
        asks.sort(key=lambda ask: ask.scale.name in own)
        self.prompt = _prompt_of([ask.prompt for ask in asks])
        self.scale = asks[0].scale
        self.capabilities = frozenset({"hidden"} if self._store.has_hidden() else ())
        # A model that ignores references was asked without them; the replay does the same.
        self.takes_references = self._store.has_references(self.identity)
        self._scales = sorted({ask.scale.name for ask in asks})

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Look up N pairs; those that were not recorded become NaN rows."""
        groups: dict[str, list[tuple[int, PairKey]]] = {}
        for number, pair in enumerate(pairs):
            try:
                template = prompt.template(bool(pair.references))
                item = PairKey(image_digest(pair.image), pair.caption, pair.references)
            except DiscodeError as error:
                yield [number], Readings.failed(scale, [str(error)])
                continue
            groups.setdefault(template, []).append((number, item))
        for template, members in groups.items():
            ask = RunKey(self.identity, template, scale)
            readings, places = self._store.get(ask, [item for _, item in members], hidden=hidden)
            yield [members[place][0] for place in places], readings
            absent = [members[place] for place in sorted({*range(len(members))} - {*places})]
            reasons = [self._why(ask, item, hidden) for _, item in absent]
            yield [number for number, _ in absent], Readings.failed(scale, reasons)

    def _why(self, ask: RunKey, item: PairKey, hidden: bool) -> str:
        scale = ask.scale
        if self._store.is_damaged(ask, item):
            return (
                f"damaged: the reading of this pair in {self._store.path} does not match its "
                "digest; ask the model again or restore an intact copy of the file"
            )
        if scale.name not in self._scales:
            return f"not recorded: the file has scale {', '.join(self._scales)}, not {scale.name}"
        also = " with hidden states" if hidden else ""
        return f"not recorded{also}: no reading for this image, caption, references and prompt"


def split_recording(name: str) -> tuple[Path, str]:
    """Split a recording's name into its file and the model after ``#`` ("" if there is none).

    If the name can be split in several ways, the longest file that exists is taken.

    >>> split_recording("no#such.db")[1], split_recording("readings.db")[1]
    ('such.db', '')
    """
    ends = [len(name), *(mark.start() for mark in re.finditer("#", name))]
    whole = next((end for end in (ends[0], *ends[:0:-1]) if Path(name[:end]).is_file()), None)
    end = ends[:2][-1] if whole is None else whole
    return Path(name[:end]), name[end + 1 :]


def _names(identity: Identity) -> list[str]:
    """List the names that identify a model, shortest first."""
    parts = identity.model, identity.revision, identity.dtype
    return ["@".join(parts[:count]) for count in (1, 2, 3)]


def _prompt_of(templates: Sequence[str]) -> Prompt:
    """Find the built-in prompt that was recorded, or build one from the recorded templates."""
    for prompt in PROMPTS.values():
        if templates[0] in (prompt.free, prompt.with_references):
            return prompt
    free = next((text for text in templates if "{references}" not in text), None)
    return Prompt("recorded", free, next((t for t in templates if "{references}" in t), None))
