"""Signatures: fields, a long and a short form."""

from __future__ import annotations

import pickle

import discode
from discode.decoders import get_decoder
from discode.signature import Signature, SignedDecoder
from discode.version import __version__


def test_fields_are_asked_for_and_replaced() -> None:
    made = Signature.of(
        model="a model", references="as given", decoder=SignedDecoder("raw", (("x", "1"),))
    )
    assert str(made) == (
        f"discode:{__version__}|model:a_model|references:as_given|decoder:raw(x=1)"
    )
    assert made["model"] == "a_model"
    assert made.get("metric") == ""
    assert made.decoder == SignedDecoder("raw", (("x", "1"),))
    assert str(made.asked) == f"discode:{__version__}|model:a_model|references:as_given"
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


def test_what_was_written_is_read_back() -> None:
    made = discode.decode({"4": -0.3, "5": -1.6}, "paper", scale="five", missing="spread").signature
    assert Signature.read(str(made)) == Signature.read(dict(made)) == made
    assert made.decoder is not None
    assert made.decoder.make() == get_decoder("paper")


def test_the_former_name_of_an_option_is_read() -> None:
    text = "discode:0.1.0|decoder:discode(prior_variance=1,reading=joint,sigma2=0.1)|ties:wrong"
    read = Signature.read(text)
    assert read.decoder is not None
    assert dict(read.decoder.options)["stem"] == "joint"
    assert read == Signature.read(text.replace("reading", "stem"))
    assert get_decoder("smoothing:reading=joint") == get_decoder("smoothing:stem=joint")
