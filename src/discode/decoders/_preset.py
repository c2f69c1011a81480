"""Preset files: a decoder with its options, chosen by data, for ``-m FILE``.

JSON, written by ``discode choose``, readable and editable by hand::

    {
      "discode_preset": 1,
      "method": "discode:...",            as for -m, with every option written out
      "scale": "unit",                    the scale of the readings it was chosen on
      "calibration": {"score": [...], "rating": [...]},   or null
      "chosen": {...},                    how, on what data, with which held-out figures
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
from discode.decoders._base import Decoded, Decoder, decode_checked
from discode.decoders._linear import Linear
from discode.errors import InputError
from discode.readings import Readings

SUFFIX = ".json"
VERSION = 1


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
class Preset:
    """The contents of a preset file; ``method`` is as for ``-m``, ``scale`` a scale's name.

    ``weights`` belong to the method ``linear``, which exists only in files.
    """

    method: str
    scale: str
    calibration: Calibration | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float] | None = None

    def text(self) -> str:
        content = {"discode_preset": VERSION, **asdict(self)}
        if self.weights is None:
            del content["weights"]
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
        calibration = self.preset.calibration
        if calibration is None:
            return decoded
        if readings.scale.unique_name != self.preset.scale:
            raise InputError(
                f"preset {self.digest} is calibrated on scale {self.preset.scale!r}, not on "
                f"{readings.scale.unique_name!r}; run discode choose on this scale"
            )
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
        calibration = content["calibration"] and Calibration(
            *(tuple(map(float, content["calibration"][name])) for name in ("score", "rating"))
        )
        weights = content.get("weights")
        if weights is not None:
            weights = {name: float(weight) for name, weight in weights.items()}
        preset = Preset(
            content["method"], content["scale"], calibration, content["chosen"], weights
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
