"""The backend protocol: a model that reads pairs, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

from discode._pairs import Pair
from discode._prompts import FLEUR, Prompt
from discode._scales import UNIT, Scale
from discode.readings import Identity, Readings, ReadingsCollector

Blocks = Iterator[tuple[Sequence[int], Readings]]
"""Blocks of readings with the indices of their pairs; each pair is in exactly one block."""


@runtime_checkable
class Backend(Protocol):
    """A model, local or remote, or a recording of one.

    Subclass it and define ``identity`` and :meth:`read`; any object with all of these names also
    works. One that samples answers also has ``samples``, how many per pair (0: it reads
    log-probabilities), and ``sampling(n)``, which returns a view of the same model that draws n.

    Attributes:
        identity: Model, revision and dtype, for the store's key and the signature.
        prompt: The default prompt.
        scale: The default scale.
        capabilities: Extras beyond log-probabilities: "hidden" (hidden states).
        takes_references: Whether the prompt includes a pair's references.
        batch_size: Pairs per call of :meth:`read`.
        stopped: Why it stopped reading, e.g. a cap on requests; empty while it reads.
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

    def check(self, prompt: Prompt, scale: Scale) -> None:  # most support all of them
        """Raise :class:`~discode.errors.InputError` if the prompt or scale is not supported."""
        return

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Blocks:
        """Yield readings with the indices of their pairs as they become ready, each pair once.

        A pair that cannot be read is a NaN row with its reason in ``errors``. If the model is
        lost, raise :class:`~discode.errors.BackendError`: the remaining pairs fail.
        """
        raise NotImplementedError


def read_all(
    backend: Backend, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
) -> Readings:
    """Collect a backend's readings in the order of the pairs, without a store."""
    collector = ReadingsCollector(scale, len(pairs))
    for numbers, block in backend.read(pairs, prompt, scale, hidden=hidden):
        collector.add(block, numbers)
    return collector.readings()
