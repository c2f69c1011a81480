"""What a backend is: something that reads pairs, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from discode._pairs import Pair
from discode._prompts import FLEUR, Prompt
from discode._scales import UNIT, Scale
from discode.readings import Identity, Readings, ReadingsCollector

Blocks = Iterator[tuple[Sequence[int], Readings]]
"""Readings, each block with the numbers of its pairs; every pair is in one block."""


@runtime_checkable
class Backend(Protocol):
    """A model, local or remote, or a recording of one.

    Subclass it and set ``identity`` and :meth:`read`; an object that has all of these names
    serves as well.

    Attributes:
        identity: Model, revision and dtype, for the store's key and the signature.
        prompt: The prompt it is asked with unless the user names another.
        scale: The scale it is asked for unless the user names another.
        capabilities: What it gives beyond log-probabilities: "hidden" (hidden states).
        takes_references: Whether it is shown the references of pairs that have some.
        batch_size: How many pairs it is asked about at once.
        stopped: Why it reads nothing more, e.g. at a cap on requests; empty while it does.
    """

    identity: Identity
    prompt: Prompt = FLEUR
    scale: Scale = UNIT
    capabilities: frozenset[str] = frozenset()
    takes_references: bool = True
    batch_size: int = 64
    stopped: str = ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.identity.model!r})"

    def check(self, prompt: Prompt, scale: Scale) -> None:  # most can do all
        """Raise :class:`~discode.errors.InputError` unless it can be asked this way."""
        return

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Yield readings with the numbers of their pairs, as they are ready, each pair once.

        A pair that cannot be read is a NaN row with its reason in ``errors``. Where the model is
        lost, :class:`~discode.errors.BackendError` fails all pairs that are not read yet.
        """
        raise NotImplementedError


def read_all(
    backend: Backend, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
) -> Readings:
    """Return what a backend reads, in the order of the pairs; a judge does more, and keeps it."""
    collector = ReadingsCollector(scale, len(pairs))
    for numbers, block in backend.read(pairs, prompt, scale, hidden=hidden):
        collector.add(block, numbers)
    return collector.readings()
