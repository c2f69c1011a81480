"""Raw, smoothing and FLEUR against hand-computed cases."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import discode
from discode._scales import UNIT, get_scale
from discode.decoders import get_decoder
from discode.decoders._bounds import truncation_bound
from discode.errors import InputError
from discode.readings import Readings


def unit(
    first: list[float], stems: tuple[float, float] = (0.98, 0.02), **rest: list[float]
) -> Readings:
    answers = np.full((1, 2, 10), np.nan)
    answers[0, 0] = np.log(first)
    answers[0, 1] = np.log([0.9] + [0.005] * 9)
    arrays = {key: np.log([value]) for key, value in rest.items()}
    return Readings(UNIT, answers, np.log([stems]), **arrays)  # type: ignore[arg-type]  # by name


# Digits 6, 7, 8 with 0.2, 0.5, 0.2 of the whole vocabulary; 0.03 off the scale.
FIRST = [0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.2, 0.5, 0.2, 0.01]


ONE = (0.3, 0.6)


@pytest.mark.parametrize(
    ("method", "readings", "want"),
    [
        ("raw", unit(FIRST), 0.7),
        # Σ d·p = 0.01·(0+1+2+3+4+5+9) + 1.2 + 3.5 + 1.6 = 6.54, over 0.97
        ("smoothing", unit(FIRST), 0.654 / 0.97),
        ("fleur", unit(FIRST), 0.654),  # not renormalised
        # the second decimal: Σ d·p = 0.05·36 + 2.7 = 4.5
        ("fleur", unit(FIRST, second_logp=[0.05] * 9 + [0.3]), 0.654 + 0.045),
        # FLEUR's script turns "0.80" into the number 0.8, which has one decimal
        ("fleur", unit(FIRST, second_logp=[0.55] + [0.05] * 9), 0.654),
        # raw 1.0: 0.9·p('0') + p('1') at the integer token, or of the stems alone
        ("fleur", unit(FIRST, ONE, lead_logp=[0.35, 0.62]), 0.9 * 0.35 + 0.62),
        ("fleur", unit(FIRST, ONE), 0.9 * 0.3 + 0.6),
    ],
)
def test_by_hand(method: str, readings: Readings, want: float) -> None:
    assert float(discode.decode(readings, method)) == pytest.approx(want)


@pytest.mark.data
def test_two_decimals_are_common_in_what_fleur_published(data: Path) -> None:
    """So its rule without them is not its rule: 973 of 5,664 ratings have two, none ends in 0."""
    file = data / "fleur" / "fleur_flickr8k_expert.txt"
    if not file.is_file():
        pytest.skip(f"there is no {file}")
    raw = re.findall(r"^model score : (\S+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    two = [number for number in raw if len(number) > 3]
    assert (len(raw), len(two)) == (5664, 973)
    assert not any(number.endswith("0") for number in two)


def test_second_decimal_counts_only_where_it_is() -> None:
    both = Readings.concat(UNIT, [unit(FIRST), unit(FIRST, second_logp=[0.05] * 9 + [0.3])])
    assert discode.decode(both, "fleur").value == pytest.approx([0.654, 0.699])


def test_fleur_wants_the_unit_scale() -> None:
    with pytest.raises(InputError, match="use 'smoothing'"):
        discode.decode(np.log(np.full(10, 0.1)), "fleur", scale="ten")


def test_p_yes_is_the_probability_of_yes_alone() -> None:
    p = np.array([[0.2, 0.6], [0.001, 0.002], [0.5, 0.5]])
    readings = Readings.of(np.log(p), get_scale("yes-no"))
    assert get_decoder("p-yes").decode(readings).score == pytest.approx(p[:, 1])
    assert get_decoder("smoothing").decode(readings).score == pytest.approx(p[:, 1] / p.sum(axis=1))
    with pytest.raises(InputError, match="yes-no"):
        discode.decode(np.log(np.full(5, 0.2)), "p-yes", scale="five")


def test_a_missing_answer_bounds_p_yes() -> None:
    """Yes is at most as likely as the least likely token that was returned."""
    readings = Readings.of({"No": -0.1, "Maybe": -3.0}, get_scale("yes-no"), missing="spread")
    decoder = get_decoder("p-yes")
    bound = truncation_bound(decoder, readings)
    assert bound is not None
    score = decoder.decode(readings).score[0]
    assert abs(score - 0.0) <= bound[0] + 1e-12
    assert abs(score - np.exp(-3.0)) <= bound[0] + 1e-12
