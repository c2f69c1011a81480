"""What a backend is: something that reads pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

from discode.errors import InputError
from discode.pairs import Pair
from discode.prompts import Prompt
from discode.readings import Identity, Readings
from discode.scales import Scale


@dataclass(frozen=True)
class Runtime:
    """How a model is to be run; every kind of model takes what it knows and refuses the rest."""

    threads: int | None = None
    device: str | None = None
    dtype: str | None = None
    revision: str | None = None
    batch_captions: int | None = None
    trust_remote_code: bool | None = None
    quantize: str | None = None
    device_map: str | None = None
    base_url: str | None = None
    key_variable: str | None = None
    image_size: int | None = None
    concurrency: int | None = None
    rate: float | None = None
    timeout: float | None = None
    max_requests: int | None = None
    max_cost: float | None = None
    prices: str | None = None

    def only(self, kind: str, *known: str) -> Runtime:
        """Raise if an option was given that ``kind`` does not know.

        >>> Runtime(threads=2).only("a recording")
        Traceback (most recent call last):
        discode.errors.InputError: threads=2 is not for a recording
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name not in known:
                raise InputError(f"{field.name}={value} is not for {kind}")
        return self


@runtime_checkable
class Choosy(Protocol):
    """A backend that cannot be asked just anything, and says so before the work begins."""

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise :class:`~discode.errors.InputError` unless it can be asked this way."""


@runtime_checkable
class Flowing(Protocol):
    """A backend whose readings come in one by one: they are kept as they come."""

    def blocks(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale
    ) -> Iterator[tuple[list[int], Readings]]:
        """Yield readings and the numbers of the pairs they belong to, each pair once."""


@runtime_checkable
class Stoppable(Protocol):
    """A backend that may come to its end before the work does."""

    @property
    def stopped(self) -> str:
        """Why it reads nothing more; empty while it does."""


@runtime_checkable
class Backend(Protocol):
    """A model, local or remote, or a record of one."""

    @property
    def identity(self) -> Identity:
        """Model, revision and dtype, for the store's key and the signature."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What it can give beyond log-probabilities: ``{"hidden"}``."""

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
