"""Ranking from pairwise preferences: the Bradley-Terry model."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from discode.errors import InputError
from discode.stats._base import Floats, Ints, finite_columns, label_codes, undefined

STEPS = 100
"""Newton steps; convergence is quadratic and usually takes five."""


class BradleyTerryPlan:
    r"""Strengths of S players, as a function of how often each comparison counts.

    Player i beats j with probability :math:`1 / (1 + e^{b_j - b_i})`; the strengths b maximise
    the likelihood :math:`\sum_n p_n \log P(i_n > j_n) + (1 - p_n) \log P(j_n > i_n)` and have
    mean 0. A preference p may be any number from 0 to 1; a tie is 0.5.

    A finite maximum exists if, however the players are divided in two, each side takes some
    share from the other (Ford 1957; Hunter, Annals of Statistics 2004). Otherwise all strengths
    are NaN, with an ``UndefinedWarning``.

    Args:
        first, second: (n,) names of the two players of each comparison.
        preference: (n,) probability that the first is better.

    >>> plan = BradleyTerryPlan(["a", "a", "b"], ["b", "c", "c"], [0.75, 0.9, 0.75])
    >>> plan.players, plan(np.ones(3, int)).round(3).tolist()
    (('a', 'b', 'c'), [1.099, 0.0, -1.099])
    """

    def __init__(self, first: ArrayLike, second: ArrayLike, preference: ArrayLike) -> None:
        (self._preference,) = (preference,) = finite_columns(preference=preference)
        if len(preference) and not (preference.min() >= 0 and preference.max() <= 1):
            raise InputError("preference must be a probability, from 0 to 1")
        size = len(preference)
        both = np.concatenate([np.asarray(first), np.asarray(second)])
        codes = label_codes(both, "players", 2 * size)
        self._first, self._second = codes[:size], codes[size:]
        if (self._first == self._second).any():
            raise InputError("a player cannot be compared with itself")
        self.players: tuple[str, ...] = tuple(np.unique(both).tolist())

    def __call__(self, weights: Ints) -> Floats:
        """Return the strengths (S,) where comparison n counts ``weights[n]`` times."""
        wins = np.zeros((len(self.players), len(self.players)))
        np.add.at(wins, (self._first, self._second), weights * self._preference)
        np.add.at(wins, (self._second, self._first), weights * (1 - self._preference))
        return _strengths(wins)


def bradley_terry(wins: ArrayLike) -> Floats:
    """Return the Bradley-Terry strengths (S,) of a table of wins (S, S), with mean 0.

    ``wins[i, j]`` is how often i beat j; see :class:`BradleyTerryPlan`.

    >>> bradley_terry([[0, 3], [1, 0]]).round(3).tolist()
    [0.549, -0.549]
    """
    table = np.asarray(wins, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] != table.shape[1]:
        raise InputError(f"wins must be a square table, not of shape {table.shape}")
    if not np.isfinite(table).all() or (table < 0).any():
        raise InputError("wins must be finite and not negative")
    return _strengths(table)


def _strengths(wins: Floats) -> Floats:
    wins = wins - np.diag(np.diag(wins))
    size = len(wins)
    if not _strongly_connected(wins):
        undefined("one or several never lose to the others: strengths are not finite")
        return np.full(size, np.nan)
    games, won = wins + wins.T, wins.sum(axis=1)
    strength = np.zeros(size)
    for _ in range(STEPS):
        expected = 1 / (1 + np.exp(strength - strength[:, None]))
        gradient = won - (games * expected).sum(axis=1)
        information = games * expected * (1 - expected)
        # The Hessian is singular along (1, ..., 1), where the mean is fixed.
        hessian = np.diag(information.sum(axis=1)) - information + 1 / size
        step = np.linalg.solve(hessian, gradient)
        # The likelihood is concave but flat far away: no step longer than e.
        strength += step / max(1.0, float(np.abs(step).max()))
        if np.abs(step).max() < 1e-12:
            break
    strengths: Floats = strength - strength.mean()
    return strengths


def _strongly_connected(wins: Floats) -> bool:
    """Whether a path of wins leads from every player to every other."""
    reach = (wins > 0) | np.eye(len(wins), dtype=bool)
    for _ in range(max(1, int(np.ceil(np.log2(max(len(wins), 2)))))):
        reach = reach @ reach
    return bool(reach.all())
