"""discode: judge image captions with vision-language models.

>>> import discode
>>> scores = discode.decode({"4": -0.3, "5": -1.6, "3": -3.5, "2": -7.0, "1": -9.0}, scale="five")
>>> round(float(scores), 1)
4.1
"""

from discode._judge import Judge, decode, load
from discode._pairs import Pair, make_pairs, read_pairs
from discode._preferences import PreferenceScores
from discode._prompts import Prompt
from discode._scales import Scale
from discode._scores import Metric, Scores
from discode._signature import Signature
from discode._version import __version__
from discode.backends import Backend
from discode.decoders import Decoder, get_decoder
from discode.errors import (
    BackendError,
    DiscodeError,
    ImageError,
    InputError,
    MissingExtraError,
    StoreError,
)
from discode.images import open_image
from discode.readings import Identity, Readings
from discode.readings._store import ReadingStore

__all__ = [
    "Backend",
    "BackendError",
    "Decoder",
    "DiscodeError",
    "Identity",
    "ImageError",
    "InputError",
    "Judge",
    "Metric",
    "MissingExtraError",
    "Pair",
    "PreferenceScores",
    "Prompt",
    "ReadingStore",
    "Readings",
    "Scale",
    "Scores",
    "Signature",
    "StoreError",
    "__version__",
    "decode",
    "get_decoder",
    "load",
    "make_pairs",
    "open_image",
    "read_pairs",
]
