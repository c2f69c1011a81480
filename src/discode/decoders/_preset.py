"""Preset files: a decoder with its options, chosen by data, for ``-m FILE``.

JSON, written by ``discode choose``, readable and editable by hand::

    {
      "discode_preset": 1,
      "method": "discode:...",            as for -m, with every option written out
      "scale": "unit",                    the scale of the readings it was chosen on
      "calibration": {"score": [...], "rating": [...]},   or null
      "chosen": {...},                    how, on what data, with which held-out figures
      "intervals": {...}                  from ``discode calibrate``: a rating for every score
      "weights": {...}                    for method linear only
    }

The signature of a score contains the first digits of the file's SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discode._files import parse_json
from discode._scales import Scale
from discode.decoders._base import Decoded, Decoder, Floats, decode_checked
from discode.decoders._linear import Linear
from discode.errors import InputError
from discode.readings import Readings
from discode.readings._base import Origin

SUFFIX = ".json"
VERSION = 1
ROUNDING = 1e-9
"""A bound may miss a level by this much, by rounding, and still include it."""


@dataclass(frozen=True)
class Calibration:
    """A monotone map from scores to human ratings: straight lines between J knots.

    Scores increase strictly, ratings never decrease. Below the first knot and above the last the
    map is flat, so scores there tie.

    >>> Calibration((0.2, 0.6), (1.0, 3.0)).apply(np.array([0.0, 0.4, 0.9])).tolist()
    [1.0, 2.0, 3.0]
    """

    score: tuple[float, ...]
    rating: tuple[float, ...]

    def __post_init__(self) -> None:
        x, y = np.asarray(self.score), np.asarray(self.rating)
        if x.shape != y.shape or x.ndim != 1 or not x.size or not np.isfinite([x, y]).all():
            raise InputError("a calibration needs equally many scores and ratings, all finite")
        if (np.diff(x) <= 0).any() or (np.diff(y) < 0).any():
            raise InputError("calibration scores must increase and ratings must not decrease")

    def apply(self, score: NDArray[np.float64]) -> NDArray[np.float64]:
        """Map scores (N,) to the raters' scale; NaN stays NaN."""
        return np.asarray(np.interp(score, self.score, self.rating))


@dataclass(frozen=True)
class RatingIntervals:
    """From a score and the width of its reading to people's mean rating and an interval.

    The interval of a score s whose reading is w wide is m(s) ± q·g(w): ``people`` is m, ``spread``
    is g, the error to be expected of such a reading, and ``quantile`` is q. It is clipped to the
    ratings' ``low`` and ``high``. If people use few ``levels``, each bound moves inward to one of
    them: no rating is lost.

    Attributes:
        people: From scores to ratings.
        spread: From widths of readings to expected errors.
        quantile: How many such errors the interval extends to either side.
        low: The lowest rating.
        high: The highest rating.
        levels: The ratings that people use, lowest first; empty if there are many.
        level: The share of ratings to be covered.
        asked: Model, revision, prompt and references of the readings; empty if they are unknown.
    """

    people: Calibration
    spread: Calibration
    quantile: float
    low: float
    high: float
    levels: tuple[float, ...] = ()
    level: float = 0.9
    asked: Mapping[str, str] = field(default_factory=dict)

    def apply(self, score: Floats, width: Floats) -> tuple[Floats, Floats, Floats]:
        """Compute ratings, lower and upper bounds (N,) of scores and widths of readings (N,)."""
        people = self.people.apply(score)
        error = self.quantile * self.spread.apply(width)
        low, high = (np.clip(people + side * error, self.low, self.high) for side in (-1, 1))
        if self.levels:
            levels, last = np.array(self.levels), len(self.levels) - 1
            first = np.searchsorted(levels, low - ROUNDING)
            final = np.searchsorted(levels, high + ROUNDING, side="right") - 1
            nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, people)
            empty = final < first
            first, final = (np.where(empty, nearest, each).clip(0, last) for each in (first, final))
            low, high = (np.where(np.isnan(low), low, levels[each]) for each in (first, final))
        return people, low, high

    def check(self, origin: Origin | None) -> None:
        """Refuse readings of another model or prompt; those of unknown origin pass."""
        other = {} if origin is None else asked_of(origin)
        unlike = [name for name in other if other[name] != self.asked.get(name, "given")]
        if unlike:
            theirs, ours = (
                ", ".join(f"{name} {each.get(name, 'given')}" for name in unlike)
                for each in (self.asked, other)
            )
            raise InputError(
                f"the intervals were fitted for {theirs}, but these are readings of {ours}; run "
                "discode calibrate on them"
            )


def asked_of(origin: Origin) -> dict[str, str]:
    """List what intervals depend on: the model, its revision, the prompt and the references."""
    references = "none" if origin.references == "ignored" else origin.references
    return {
        "model": origin.identity.model,
        "revision": origin.identity.revision,
        "prompt": f"{origin.prompt.name}-{origin.prompt.digest}",
        "references": references,
    }


def reading_width(distribution: Floats, scale: Scale) -> Floats:
    """Compute the widths (N,) of readings: the standard deviations of their answers (N, K).

    >>> from discode._scales import FIVE
    >>> reading_width(np.array([[0.5, 0, 0, 0, 0.5], [0, 0, 1, 0, 0]]), FIVE).tolist()
    [2.0, 0.0]
    """
    values = scale.step * np.asarray(scale.values)
    mean = distribution @ values
    return np.sqrt(np.maximum(distribution @ values**2 - mean**2, 0.0))


@dataclass(frozen=True)
class Preset:
    """The contents of a preset file; ``method`` is as for ``-m``, ``scale`` a scale's name.

    ``weights`` belong to the method ``linear``, which exists only in files.
    """

    method: str
    scale: str
    calibration: Calibration | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] | None = None
    intervals: RatingIntervals | None = None

    def text(self) -> str:
        content = {"discode_preset": VERSION, **asdict(self)}
        for name in ("weights", "intervals"):
            if content[name] is None:
                del content[name]
        text = json.dumps(content, indent=2, ensure_ascii=False)
        return re.sub(r"\[[-+.\de,\s]+\]", lambda list_: " ".join(list_[0].split()), text) + "\n"


@dataclass(frozen=True)
class PresetDecoder:
    """The decoder of a preset file, with its calibration; the signature includes its digest.

    ``raw`` and ``distribution`` of the results stay on the model's scale.
    """

    decoder: Decoder
    preset: Preset
    digest: str

    @property
    def name(self) -> str:
        return self.decoder.name

    @property
    def requires(self) -> frozenset[str]:
        return self.decoder.requires

    def options(self) -> dict[str, object]:
        """That decoder's options, the file's digest, and whether scores are calibrated."""
        more = {} if self.preset.calibration is None else {"calibrated": True}
        return {**self.decoder.options(), **more, "preset": self.digest}

    def decode(self, readings: Readings) -> Decoded:
        decoded, _ = decode_checked(self.decoder, readings)
        calibration, intervals = self.preset.calibration, self.preset.intervals
        if calibration is None and intervals is None:
            return decoded
        if readings.scale.unique_name != self.preset.scale:
            verb = "choose" if intervals is None else "calibrate"
            raise InputError(
                f"preset {self.digest} is calibrated on scale {self.preset.scale!r}, not on "
                f"{readings.scale.unique_name!r}; run discode {verb} on this scale"
            )
        if intervals is not None:
            intervals.check(readings.origin)
            width = reading_width(decoded.distribution, readings.scale)
            people, low, high = intervals.apply(decoded.score, width)
            decoded = replace(decoded, people=people, low=low, high=high)
        if calibration is None:
            return decoded
        other = None if decoded.other is None else calibration.apply(decoded.other)
        return replace(decoded, score=calibration.apply(decoded.score), other=other)


def is_preset(method: str) -> bool:
    """Whether a method is a preset file, by its name.

    >>> is_preset("mine.json"), is_preset("discode:sigma2=0.05")
    (True, False)
    """
    return method.endswith(SUFFIX)


def preset_digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


def read_preset(path: Path, make: Callable[[str], Decoder]) -> PresetDecoder:
    """Read the decoder of a preset file; ``make`` builds it from the method in the file."""
    try:
        data = path.read_bytes()
        content = parse_json(data.decode(), "the file")
        if content["discode_preset"] != VERSION:
            raise InputError(f"version {content['discode_preset']!r}; expected version {VERSION}")
        calibration = content["calibration"] and _curve(content["calibration"])
        intervals = content.get("intervals") and _intervals(content["intervals"])
        weights = content.get("weights")
        if weights is not None:
            weights = {name: float(weight) for name, weight in weights.items()}
        preset = Preset(
            content["method"], content["scale"], calibration, content["chosen"], weights, intervals
        )
        if (preset.method == Linear.name) != (weights is not None):
            raise InputError(f"method {Linear.name!r} requires weights; no other accepts them")
        decoder = make(preset.method) if weights is None else Linear(weights, preset.scale)
        return PresetDecoder(decoder, preset, preset_digest(data))
    except InputError as error:
        raise InputError(f"preset {path}: {error}") from error
    except OSError as error:
        raise InputError(f"cannot read preset {path}: {error.strerror or error}") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is not a preset from discode choose ({type(error).__name__}: {error})"
        ) from error


def _curve(content: Mapping[str, Any]) -> Calibration:
    return Calibration(*(tuple(map(float, content[name])) for name in ("score", "rating")))


def _intervals(content: Mapping[str, Any]) -> RatingIntervals:
    numbers = {name: float(content[name]) for name in ("quantile", "low", "high", "level")}
    return RatingIntervals(
        _curve(content["people"]), _curve(content["spread"]),
        levels=tuple(map(float, content["levels"])),
        asked={str(name): str(value) for name, value in content["asked"].items()}, **numbers,
    )  # fmt: skip
