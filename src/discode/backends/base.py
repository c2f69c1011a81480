"""What a backend is: something that reads pairs; and what one may also support."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

from discode.pairs import Pair
from discode.prompts import Prompt
from discode.readings import Identity, Readings
from discode.scales import Scale


@runtime_checkable
class Backend(Protocol):
    """A model, local or remote, or a recording of one."""

    @property
    def identity(self) -> Identity:
        """Model, revision and dtype, for the store's key and the signature."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What it gives beyond log-probabilities: "hidden" (hidden states).

        "recorded" says that its readings are kept already, so that no store is wanted.
        """

    @property
    def prompt(self) -> Prompt:
        """The prompt it is asked with unless the user says otherwise."""

    @property
    def scale(self) -> Scale:
        """The scale it is asked for unless the user says otherwise."""

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        """Read N pairs, in the order given.

        A pair that cannot be read is a NaN row with its reason in ``errors``; only when the
        whole batch is lost, :class:`~discode.errors.BackendError` is raised.
        """


@runtime_checkable
class SupportsCheck(Protocol):
    """A backend that cannot be asked everything, and says so before the work begins."""

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise :class:`~discode.errors.InputError` unless it can be asked this way."""


@runtime_checkable
class DeclaresReferences(Protocol):
    """A backend that says whether it takes references; others take them."""

    @property
    def takes_references(self) -> bool:
        """Whether pairs may have references; a model that takes none is asked without them."""


@runtime_checkable
class SupportsAdvice(Protocol):
    """A backend that knows which weight suits its model's distributions."""

    @property
    def advised_trust(self) -> float | None:
        """Option ``trust`` of a decoder that leaves it open; None where nobody has measured it."""


@runtime_checkable
class SupportsBlocks(Protocol):
    """A backend whose readings arrive one by one: they are stored, and counted, as they arrive."""

    def blocks(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Iterator[tuple[list[int], Readings]]:
        """Yield readings and the numbers of the pairs they belong to, each pair once."""


@runtime_checkable
class SupportsStop(Protocol):
    """A backend that may stop before the work is done, e.g. at a cap on requests."""

    @property
    def stopped(self) -> str:
        """Why it reads nothing more; empty while it does."""


@runtime_checkable
class SupportsEstimate(Protocol):
    """A backend that can tell what reading would cost, without reading."""

    def estimate(self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale) -> Any:
        """Return what reading the pairs would send; nothing is sent."""
