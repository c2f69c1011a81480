"""Decoders turn readings into scores. Pure numpy; only the Adam solver needs torch.

``METHODS`` is the table of named presets; ``get_decoder("discode:tau=alpha,sigma2=0.05")`` changes
options of one, ``get_decoder("mine.json")`` reads a preset file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import isabstract
from pathlib import Path
from typing import Any

from discode._plugins import Table
from discode.decoders._base import RENAMED, Decoded, Decoder, DistributionDecoder
from discode.decoders._discode import Discode
from discode.decoders._preset import is_preset, read_preset
from discode.decoders._simple import Fleur, PYes, Raw, Smoothing
from discode.errors import InputError
from discode.options import Configurable, options_of, read_options

__all__ = [
    "METHODS",
    "SIDE_BY_SIDE",
    "Decoded",
    "Decoder",
    "Discode",
    "DistributionDecoder",
    "Fleur",
    "Method",
    "PYes",
    "get_decoder",
    "named_decoder",
    "options_of",
    "without_prior",
]


@dataclass(frozen=True)
class Method:
    """A named preset: a decoder class, its options, and its scale if it is defined on one alone."""

    about: str
    make: Callable[..., Decoder]
    options: Mapping[str, Any]
    scale: str | None = None


# "As printed": the paper's formula, α on the digits, unclipped, τ = α, and 1.0 + 0.1·ŝ after "1.".
_PRINTED = {"tau": "alpha", "alpha_clip": None, "stem": "printed"}

_METHODS = {
    "raw": Method("the likeliest answer, as greedy decoding prints it", Raw, {}),
    "smoothing": Method("expectation over the answers, renormalised", Smoothing, {}),
    "fleur": Method("smoothing over the full vocabulary, FLEUR's rule for 1.0", Fleur, {}, "unit"),
    "p-yes": Method(
        'VQAScore: P("Yes") over the full vocabulary, on scale yes-no', PYes, {}, "yes-no"
    ),
    "discode": Method("the paper's energy at temperature 1, p ∝ L·q^(1-α)", Discode, {}),
    "paper": Method("the printed formula, temperature α; exactly ordered", Discode, _PRINTED),
    "paper-adam": Method(
        "the printed loss by ten Adam steps on hidden states",
        Discode,
        _PRINTED | {"solver": "adam"},
    ),
    "paper-unit": Method(
        "the printed formula with α on the 0-1 scale", Discode, _PRINTED | {"alpha_scale": "unit"}
    ),
    "no-cross-entropy": Method(
        "ablation: no H(p, L); captions with one raw answer tie",
        Discode,
        _PRINTED | {"cross_entropy": False},
    ),
    "no-divergence": Method(
        "ablation: no divergence D, which leaves the raw answer",
        Discode,
        {"divergence": "none", "stem": "printed"},
    ),
    "no-adaptive-alpha": Method(
        "ablation: α = ½ as printed, the plain KL", Discode, _PRINTED | {"alpha": 0.5}
    ),
    "kl": Method(
        "ablation: Kullback-Leibler divergence", Discode, {"divergence": "kl", "stem": "printed"}
    ),
    "jensen-shannon": Method(
        "ablation: Jensen-Shannon divergence, exact minimiser",
        Discode,
        {"divergence": "jensen-shannon", "solver": "exact", "stem": "printed"},
    ),
    "beta": Method(
        "ablation: beta divergence, exact minimiser",
        Discode,
        {"divergence": "beta", "solver": "exact", "stem": "printed"},
    ),
    "renyi": Method(
        "ablation: Rényi divergence, exact minimiser",
        Discode,
        {"divergence": "renyi", "solver": "exact", "stem": "printed"},
    ),
}

SIDE_BY_SIDE = ("raw", "smoothing", "discode")
"""The methods that are shown side by side if none is chosen, the default last."""


def _adopt(name: str, plugin: object) -> Method:
    """Turn a plug-in, a :class:`Method` or a decoder dataclass, into a method."""
    if isinstance(plugin, Method):
        return plugin
    configurable = isinstance(plugin, type) and issubclass(plugin, Configurable)
    if configurable and hasattr(plugin, "decode") and not isabstract(plugin):
        return Method((plugin.__doc__ or "").partition("\n")[0], plugin, {})  # type: ignore[arg-type]
    raise InputError(f"{name} is not a decoder; use a dataclass based on DistributionDecoder")


METHODS = Table("method", "discode.decoders", _METHODS, _adopt)
"""The methods by name; ``discover`` adds those of plug-ins."""


def get_decoder(spec: str | Decoder, **options: Any) -> Decoder:
    """Make a decoder from a name, with options as keywords or after a colon; or from a file.

    A name that ends in ``.json`` is a preset file from ``discode choose``, with fixed options;
    ``module:Class`` is a decoder of your own. For names from untrusted sources use
    :func:`named_decoder`, which opens no files and imports nothing.

    >>> get_decoder("discode:tau=alpha", sigma2=0.05).options()["sigma2"]
    0.05
    >>> get_decoder("discode", sigm2=1)
    Traceback (most recent call last):
        ...
    discode.errors.UnknownNameError: method 'discode' has no option 'sigm2'; did you mean 'sigma2'?
    """
    if not isinstance(spec, str):
        if not isinstance(spec, Decoder):
            raise InputError(f"method must be a name or a Decoder, not {spec!r}")
        if options:
            raise InputError("a Decoder takes no options; set them when you create it")
        return spec
    if spec.partition(":")[0] in METHODS:
        return named_decoder(spec, **options)
    if is_preset(spec):
        if options:
            raise InputError(f"preset {spec} takes no options; its own are in the file")
        return read_preset(Path(spec), named_decoder)
    return _make(*METHODS.find(spec, imports=True), options)


def named_decoder(spec: str, **options: Any) -> Decoder:
    """Make a decoder from a name, as :func:`get_decoder`, without opening files or modules.

    >>> named_decoder("smoothing:stem=joint").options()
    {'stem': 'joint'}
    """
    return _make(*METHODS.find(spec), options)


def _make(
    name: str, method: Method, typed: Mapping[str, str], options: Mapping[str, Any]
) -> Decoder:
    options = {RENAMED.get(key, key): value for key, value in {**typed, **options}.items()}
    options = read_options(options_of(method.make), options, f"method {name!r}")
    decoder = method.make(**{**method.options, **options})
    for option in options:
        if options[option] is not None and option not in decoder.options():
            raise InputError(
                f"option {option!r} has no effect on {name!r} with these settings; remove it "
                f"(in effect: {', '.join(sorted(decoder.options()))})"
            )
    return decoder


def without_prior(decoder: Decoder) -> Smoothing:
    """Make the decoder without a prior: smoothing, over the same answers.

    >>> without_prior(get_decoder("discode:stem=joint")).options()
    {'stem': 'joint'}
    """
    return Smoothing(stem="joint") if decoder.options().get("stem") == "joint" else Smoothing()
