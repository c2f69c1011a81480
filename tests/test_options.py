"""An option says everything about itself at its declaration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from discode._scales import TEN
from discode.decoders import METHODS, Discode, get_decoder, options_of
from discode.decoders._base import Alternatives, DistributionDecoder, Solve
from discode.errors import InputError
from discode.options import (
    COUNT,
    option,
    option_text,
    options_text,
    split_spec,
    with_options_documented,
)
from discode.readings import Readings


@with_options_documented
@dataclass(frozen=True, kw_only=True)
class Sharper(DistributionDecoder):
    """A decoder with an option of its own."""

    power: int = option(1, "exponent of the probabilities", COUNT)
    steps: int = option(3, "only read with stem=joint", COUNT, when={"stem": ("joint",)})

    name = "sharper"

    def prepare(self, seen: Alternatives, readings: Readings) -> Solve:
        """Sharpen."""
        return lambda rows, logp, raw: logp * self.power


def test_declaring_an_option_is_all_it_takes() -> None:
    decoder = Sharper(power=2)
    assert decoder.options() == {"stem": "graded", "power": 2}
    assert Sharper(stem="joint").options() == {"stem": "joint", "power": 1, "steps": 3}
    assert "power: exponent of the probabilities (a whole number from 0; default 1)." in str(
        Sharper.__doc__
    )
    with pytest.raises(InputError, match="power=-1 is not allowed; allowed: a whole number from 0"):
        Sharper(power=-1)
    flat = Readings.of(np.log(np.full(10, 0.1)), TEN)
    assert decoder.decode(flat).score == pytest.approx(4.5)


def test_every_option_of_every_method_is_described() -> None:
    for method in METHODS.values():
        for row in options_of(method.make):
            assert row.about
            assert row.allowed
            assert row.convert(row.default) == row.default
            assert row.name in str(method.make.__doc__)


def test_an_option_is_given_once() -> None:
    with pytest.raises(InputError, match="trust is given twice"):
        get_decoder("discode:trust=1,trust=2")


def test_what_is_kept_is_what_the_decoder_computes_with() -> None:
    numbers: dict[str, Any] = {"sigma2": np.float32(0.5), "steps": np.int64(3)}
    decoder = Discode(alpha_clip=(0, 1), **numbers)
    kept = decoder.alpha_clip, decoder.sigma2, decoder.steps
    assert kept == ((0.0, 1.0), 0.5, 3)
    assert [type(value) for value in kept[1:]] == [float, int]
    with pytest.raises(InputError, match="above 0"):
        Discode(sigma2=10**400)


@pytest.mark.parametrize("method", METHODS)
def test_options_are_read_back_as_they_are_written(method: str) -> None:
    options = get_decoder(method).options()
    again = get_decoder(f"{method}:{options_text(options)}")
    assert again.options() == options
    assert split_spec(f"{method}:{options_text({'order': None})}") == (method, {"order": "none"})
    assert option_text(True) == "true"
