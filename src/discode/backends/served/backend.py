"""Served models as judges: any server that returns log-probabilities in OpenAI's chat format.

A request shows the picture first, then the question, and lets the model write a few tokens,
greedily; the likeliest other tokens at each place are the reading (:mod:`.spelled`). What a server
can do is found out once, by a request without a picture. Where it knows vLLM's
``logprob_token_ids``, the answers' own tokens are asked for, and nothing is left out.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from discode.backends.served.blocks import Done, in_blocks
from discode.backends.served.client import PICTURE, Answer, Endpoint, Message, Prices
from discode.backends.served.estimate import (
    ANSWER_TOKENS,
    Estimate,
    Picture,
    data_url,
    picture_tokens,
    text_tokens,
)
from discode.backends.served.parse_logprobs import to_reading
from discode.backends.served.throttle import Gate
from discode.errors import DiscodeError, InputError, RejectedError
from discode.images import Digests
from discode.pairs import Pair
from discode.prompts import FLEUR, Prompt
from discode.readings import Identity, Readings, ReadingsCollector
from discode.scales import UNIT, Scale

LOG = logging.getLogger("discode")
OPENAI = "https://api.openai.com/v1"
TOKENS = 10
"""Enough for "Score: 0.75"."""
TOP = 20
"""Log-probabilities a place; no hosted server gives more."""
MOST_IDS = 128
"""Token ids that vLLM takes."""
_TRIAL = "Print the number 0.7 and nothing else."
_SPACES = " \n▁ĠĊ"


@dataclass(frozen=True)
class Able:
    """What a server turned out to be able to do."""

    model: str
    """Its own name for the model, e.g. with a date."""
    top: int
    options: Mapping[str, Any]
    """What every request carries."""
    ids: bool
    """Whether it tells the probabilities of tokens that are named by their ids."""


@dataclass(eq=False)
class _Job:
    """One request; ``rows`` are the pairs it answers."""

    text: str
    picture: Picture
    rows: list[int] = field(default_factory=list)


class Served:
    """A backend for a model behind an address.

    Args:
        name: The model, as the server calls it.
        base_url: The server's address up to the version, "http://localhost:8000/v1".
        key_variable: The environment variable that holds the key.
        image_size: Longer sides of pictures are shrunk to this; as they are if None.
        concurrency: Requests at a time, at most; the server's own pace is found out below that.
        rate: Requests a second, at most.
        timeout: Seconds to wait for an answer.
        max_requests: Requests in all, retries and the first trial included.
        max_cost: What may be spent; needs ``prices``.
        prices: "READ,WRITTEN", of a million tokens.
        top: Log-probabilities a place to ask for; llama.cpp gives more than 20.
        tries: How often a server is asked that is busy, broken, or cut the line.
        pause: Seconds before the second try, more or less; doubled each time.

    Nothing is sent before the first reading, or before :attr:`identity` is asked for.
    """

    capabilities = frozenset[str]()
    prompt = FLEUR
    scale = UNIT
    batch_size = 2048
    """Pairs a batch: at the end of each, the server runs empty."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str = OPENAI,
        key_variable: str = "OPENAI_API_KEY",
        image_size: int | None = None,
        concurrency: int = 64,
        rate: float | None = None,
        timeout: float = 120.0,
        max_requests: int | None = None,
        max_cost: float | None = None,
        prices: str | None = None,
        top: int = TOP,
        tries: int = 8,
        pause: float = 0.5,
    ) -> None:
        if image_size is not None and image_size < 1:
            raise InputError(f"image_size={image_size} is not allowed; give pixels, 1 or more")
        if concurrency < 1:
            raise InputError(f"concurrency={concurrency} is not allowed; give 1 or more")
        if max_cost is not None and prices is None:
            raise InputError("max_cost needs prices: READ,WRITTEN for a million tokens, as 2.5,10")
        if top < 1:
            raise InputError(f"top={top} is not allowed; give 1 or more")
        self.prices = None if prices is None else Prices.of(prices)
        self.endpoint = Endpoint(
            base_url, name, key_variable, timeout, tries, pause,
            Gate(concurrency, rate, max_requests, max_cost), self.prices,
        )  # fmt: skip
        self.model = f"openai:{name}" if base_url == OPENAI else f"{name}@{self.endpoint.place}"
        self._image_size, self._top = image_size, top
        self._able: Able | None = None
        self._ids: dict[Scale, list[int]] = {}
        self._lock = threading.Lock()

    @property
    def identity(self) -> Identity:
        """The model, whom the server says that is, and what becomes of pictures."""
        named = self.able().model
        parts = [named if named != self.endpoint.name else ""]
        parts.append("" if self._image_size is None else f"{self._image_size}px")
        return Identity(self.model, "+".join(filter(None, parts)) or "none")

    @property
    def stopped(self) -> str:
        """Why nothing more is sent: a cap, a key that ran out; empty while there is something."""
        return self.endpoint.gate.stopped

    def able(self) -> Able:
        """Return what the server can do; asks it once, without a picture."""
        with self._lock:
            if self._able is None:
                self._able = self._try()
            return self._able

    def _try(self) -> Able:
        """Ask for everything, and for less of what the server refuses."""
        options: dict[str, Any] = {"max_tokens": TOKENS}
        if ids := self._answer_ids(UNIT):
            options["logprob_token_ids"] = ids
        top = self._top
        for _ in range(5):
            try:
                answer = self.endpoint.ask([_user(_TRIAL)], options, logprobs=top)
                break
            except RejectedError as error:
                said = error.complaint
                if "max_completion_tokens" in said and "max_tokens" in options:
                    options["max_completion_tokens"] = options.pop("max_tokens")
                elif options.pop("logprob_token_ids", None) is None:
                    if "logprob" not in said:
                        raise InputError(f"{self.model} cannot be asked: {error}") from None
                    if not (fewer := _fewer(said, top)):
                        raise InputError(self._useless(f": {error}")) from None
                    top = fewer
            except DiscodeError as error:
                raise InputError(f"{self.model} cannot be asked: {error}") from None
        else:
            raise InputError(self._useless(""))
        if not answer.tokens or not any(token.top for token in answer.tokens):
            raise InputError(self._useless(""))
        if top < self._top:
            LOG.warning("%s gives %d log-probabilities a place, not %d", self.model, top, self._top)
        options.pop("logprob_token_ids", None)
        # A server that does not know the field may ignore it, and send its own choice.
        sent = {text.strip(_SPACES) for text in answer.tokens[0].top}
        exact = bool(ids) and {*"0123456789."} <= sent
        # llama.cpp names the file, with all its folders
        named = answer.model.rpartition("/")[2] if answer.model[:1] == "/" else answer.model
        return Able(named or self.endpoint.name, top, options, exact)

    def _useless(self, why: str) -> str:
        return (
            f"{self.model} returns no log-probabilities{why}; a judge needs them: take a model "
            "that does not reason, or a server that has them (vLLM, SGLang, llama.cpp)"
        )

    def _answer_ids(self, scale: Scale) -> list[int]:
        """Return the ids that a scale's answers are written with, where the server tells (vLLM).

        None where an answer is not one token: then the likeliest tokens tell more.
        """
        if scale in self._ids or self.model.startswith("openai:"):
            return self._ids.get(scale, [])
        words = [stem + answer for stem in scale.stems for answer in scale.answers]
        wanted = {*scale.answers, *"".join(scale.stems)}
        if any(scale.stems):  # "85" behind "0." is an 8
            words += [f"{stem}{number:02}" for stem in scale.stems for number in range(100)]
        text = " ".join(words) + "\n" + "\n".join(words)
        body = {"model": self.endpoint.name, "prompt": text, "add_special_tokens": False}
        found = self.endpoint.look("tokenize", body | {"return_token_strs": True})
        ids: list[int] = []
        try:
            named = dict(zip(found["tokens"], found["token_strs"], strict=True))
            texts = {int(i): str(piece).strip(_SPACES) for i, piece in named.items()}
            if wanted <= set(texts.values()):
                two = r"\d\d" if any(scale.stems) else r"(?!)"
                ids = [i for i, t in texts.items() if t in wanted or re.fullmatch(two, t)]
                ids.sort(key=lambda i: (texts[i] not in wanted, i))  # what does not fit is rarest
        except (TypeError, KeyError, ValueError):
            pass
        self._ids[scale] = ids[:MOST_IDS]
        return self._ids[scale]

    def check(self, prompt: Prompt, scale: Scale) -> None:
        """Raise where no server could be asked; nothing is sent."""
        if len(scale.answers) > MOST_IDS:
            raise InputError(
                f"scale {scale.name!r} has {len(scale.answers)} answers; a server tells at most "
                f"{MOST_IDS}: take unit, ten, five, letters or a shorter range"
            )

    def read(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale, *, hidden: bool = False
    ) -> Readings:
        """Read N pairs; captions of a picture go one behind the other."""
        gather = ReadingsCollector(scale, len(pairs))
        for rows, block in self.blocks(pairs, prompt, scale):
            gather.add(block, [[row] for row in rows])
        return gather.readings()

    def blocks(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale
    ) -> Iterator[tuple[list[int], Readings]]:
        """Yield readings and the numbers of their pairs, as answers come in."""
        jobs, refused = self._jobs(pairs, prompt, scale)
        if refused:
            yield list(refused), Readings.failed(scale, list(refused.values()))
        if not jobs:
            return
        able = self.able()
        options = dict(able.options)
        if able.ids and (ids := self._answer_ids(scale)):
            options["logprob_token_ids"] = ids
        if self.prices is not None:  # until answers tell what one costs
            guess = self.estimate([pairs[jobs[0].rows[0]]], prompt, scale).cost(self.prices)
            self.endpoint.gate.dearest = max(self.endpoint.gate.dearest, guess or 0.0)
        waiting: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        done: Done = queue.SimpleQueue()
        for job in jobs:
            waiting.put(job)
        left = threading.Event()

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while not left.is_set():
                    job = waiting.get_nowait()
                    try:
                        done.put((job.rows, self._ask(job, options, scale)))
                    except BaseException as error:
                        done.put((job.rows, error))

        gate, started = self.endpoint.gate, 0

        def hire() -> None:
            # As many threads as may send: one that has its answer goes on with the next request,
            # and need not wake another.
            nonlocal started
            while started < min(len(jobs), gate.limit + gate.resting):
                threading.Thread(target=work, daemon=True).start()
                started += 1

        hire()
        try:
            yield from in_blocks(done, len(jobs), scale, hire)
        finally:
            left.set()  # Ctrl-C: what has not begun is not sent

    def _jobs(
        self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale
    ) -> tuple[list[_Job], dict[int, str]]:
        """Return a request for each different question, a picture's together; and what has none."""
        refused: dict[int, str] = {}
        digests = Digests()
        pictures: dict[str, tuple[Picture, dict[str, _Job]]] = {}
        for row, pair in enumerate(pairs):
            try:
                text = prompt.render(pair.caption, pair.references, scale)
                text.encode()
                digest = digests.of(pair.image)
            except (DiscodeError, UnicodeEncodeError) as error:
                refused[row] = str(error)
                continue
            picture, texts = pictures.setdefault(
                digest, (Picture(pair.image, self._image_size), {})
            )
            job = texts.setdefault(text, _Job(text, picture))
            job.rows.append(row)
        jobs = [job for _, texts in pictures.values() for job in texts.values()]
        for job in jobs:
            job.picture.uses += 1
        return jobs, refused

    def _ask(self, job: _Job, options: Mapping[str, Any], scale: Scale) -> Readings:
        """Return the reading of one request, NaN with its reason where there is none."""
        try:
            messages = [_user(job.text, PICTURE)]
            url, top = job.picture.url(), self.able().top
            answer = self.endpoint.ask(messages, options, logprobs=top, picture=url)
            return _reading(answer, scale)
        except InputError as error:  # a key that ran out, a model that is gone: no use in going on
            self.endpoint.gate.stop(f"not asked: {error}")
            return Readings.failed(scale, [str(error)])
        except DiscodeError as error:
            return Readings.failed(scale, [str(error)])
        finally:
            job.picture.used()

    def estimate(self, pairs: Sequence[Pair], prompt: Prompt, scale: Scale) -> Estimate:
        """Return what reading the pairs would send; sends nothing."""
        jobs, refused = self._jobs(pairs, prompt, scale)
        sizes: dict[Picture, tuple[int, int]] = {}
        total = read = unusable = 0
        for job in jobs:
            if job.picture not in sizes:
                try:
                    url, *size = data_url(pairs[job.rows[0]].image, self._image_size)
                    sizes[job.picture] = (len(url), picture_tokens(*size))
                except DiscodeError:
                    sizes[job.picture] = (0, 0)
            length, tokens = sizes[job.picture]
            unusable += not length
            total += (length + len(job.text.encode())) * bool(length)
            read += (text_tokens(job.text) + tokens) * bool(length)
        requests = len(jobs) - unusable
        return Estimate(
            requests,
            sum(length > 0 for length, _ in sizes.values()),
            total,
            read,
            ANSWER_TOKENS * requests,
            unusable + len(refused),
        )


def _fewer(said: str, top: int) -> int:
    """Return how many log-probabilities a refusal allows, by the numbers near that word; or 0.

    >>> _fewer("top_logprobs must be at most 5, see http://host/12", 20)
    5
    """
    plain = re.sub(r"\S*://\S*", "", said)
    near = " ".join(re.findall(r".{0,80}logprob.{0,80}", plain))
    return max(
        (int(n) for n in re.findall(r"(?<![\w.])\d{1,2}(?![\w.]*\d)", near) if int(n) < top),
        default=0,
    )


def _reading(answer: Answer, scale: Scale) -> Readings:
    if not answer.tokens:
        return Readings.failed(scale, ["the server returned no log-probabilities this time"])
    try:
        return to_reading(answer.tokens, scale)
    except Exception as error:  # probabilities that add up to more than 1, and what is odder
        return Readings.failed(scale, [f"the server's numbers cannot be: {error}"])


def _user(text: str, picture: str | None = None) -> Message:
    if picture is None:
        return {"role": "user", "content": text}
    shown = {"type": "image_url", "image_url": {"url": picture}}
    return {"role": "user", "content": [shown, {"type": "text", "text": text}]}
