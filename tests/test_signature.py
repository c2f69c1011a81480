"""Signatures: fields, a long and a short form."""

from __future__ import annotations

import pickle

import discode
from discode.signature import Signature
from discode.version import __version__


def test_fields_are_asked_for_and_replaced() -> None:
    made = Signature.of(model="a model", references="as given", decoder="raw(x=1)")
    assert str(made) == (
        f"discode:{__version__}|model:a_model|references:as_given|decoder:raw(x=1)"
    )
    assert made["model"] == "a_model"
    assert made.get("metric") == ""
    assert str(made.with_fields(references="none")).endswith("|references:none|decoder:raw(x=1)")
    assert dict(made.with_fields(ties="half"))["ties"] == "half"
    assert pickle.loads(pickle.dumps(made)) == made
    assert hash(made) == hash(Signature(made.fields))


def test_the_short_form_tells_signatures_apart() -> None:
    logp = {"4": -0.3, "5": -1.6, "3": -3.5, "2": -7.0, "1": -9.0}
    one, two = (
        discode.decode(logp, scale="five", sigma2=sigma2).signature for sigma2 in (0.1, 0.2)
    )
    assert one.short.startswith("given|discode|")
    assert one.short != two.short
