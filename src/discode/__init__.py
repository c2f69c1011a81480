"""discode: judge image captions with vision-language models.

>>> import discode
>>> scores = discode.decode({"4": -0.3, "5": -1.6, "3": -3.5, "2": -7.0, "1": -9.0}, scale="five")
>>> round(float(scores), 1)
4.1
"""

from discode.errors import DiscodeError
from discode.judge import Judge, decode, load
from discode.pairs import Pair
from discode.readings import Readings
from discode.readings.store import ReadingStore
from discode.scales import Scale
from discode.scores import Metric, Scores
from discode.version import __version__

__all__ = [
    "DiscodeError",
    "Judge",
    "Metric",
    "Pair",
    "ReadingStore",
    "Readings",
    "Scale",
    "Scores",
    "__version__",
    "decode",
    "load",
]
