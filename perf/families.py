"""How families of models begin an answer: python perf/families.py [--data FOLDER]

Prints a table, a row per family. Where a prompt ends and how "0.85" begins after it comes from the
real tokenizers in FOLDER/tokenizers. The rest is measured on tiny models of the same classes whose
planted weights begin an answer in the family's way: the probability that is read as a rating
("forced mass"), for how many of the pairs the model had to generate, and the time per pair; each
without and with the spelling that begins with a space.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import tempfile
import time
import warnings
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import transformers

from discode._pairs import Pair
from discode._prompts import FLEUR
from discode._scales import UNIT
from discode.backends import read_all
from discode.backends._local.backend import Local
from discode.backends._local.vocabulary import Vocabulary
from tests.helpers import tiny_lvlms
from tests.helpers.local_models import count_generated, noise_images
from tests.helpers.real_tokenizers import FAMILIES, real_processor
from tests.helpers.tiny_remote import make as tiny_remote

ROOT = Path(__file__).resolve().parents[1]
TINY = {
    "LLaVA-NeXT-8B": "llava_next_llama",
    "LLaVA-NeXT-13B, LLaVA-1.5": "llava_next_vicuna",
    "LLaVA-NeXT-Mistral": "llava_next_mistral",
    "LLaVA-NeXT-72B": "llava_next_qwen2",
    "Qwen2-VL": "qwen2_vl",
    "Qwen2.5-VL": "qwen2_5_vl",
    "InternVL-78B": "internvl",
    "MiniCPM-V-2.6": "minicpmv",
    "Idefics3": "idefics3",
    "CogVLM2": "cogvlm",
}
"""The tiny model of a family; Yi and InternLM2 have the classes of others."""


def measure(backend: Local, pairs: list[Pair]) -> tuple[float, int, float]:
    """Return the mean forced mass, how many pairs were generated, and milliseconds per pair."""
    with count_generated(backend) as count:
        start = time.perf_counter()
        read_all(backend, pairs, FLEUR, UNIT)
        took = time.perf_counter() - start
    usual, backend.options = backend.options, replace(backend.options, read="forced")
    lead = np.asarray(read_all(backend, pairs, FLEUR, UNIT).lead_logp)
    backend.options = usual
    return float(np.exp(lead).sum(axis=1).mean()), len(count), took / len(pairs) * 1e3


def before_and_after(folder: Path, family: str, begins: str) -> list[tuple[float, int, float]]:
    """Plant a tiny model and measure it with one spelling, then with all."""
    make = tiny_remote.make if family in tiny_remote.PACKED else tiny_lvlms.make
    made = make(family, folder / family / begins, answers=True, begins=begins)
    backend = Local(made, device="cpu", trust_remote_code=family in tiny_remote.PACKED)
    captions = [f"a dog runs on the beach with {number} men" for number in range(24)]
    pairs = [Pair(image, text) for image in noise_images((80, 60)) for text in captions]
    vocabulary = backend.runner.vocabulary
    every = vocabulary.tokenize_prompt(FLEUR, UNIT, references=False)
    one = replace(every, spellings=tuple(s for s in every.spellings if not s.space))
    measured = []
    for tokenized in (one, every):
        vocabulary._prompts = {(FLEUR.template(False), UNIT, False): tokenized}
        read_all(backend, pairs[:2], FLEUR, UNIT)
        measured.append(measure(backend, pairs))
    return measured


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("DISCODE_DATA", ROOT.parent / "shared" / "data")),
        help="the folder that holds tokenizers/",
    )
    data = parser.parse_args().data
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    print("| family | prompt ends | 0.85 begins | forced mass | generated of 24 | ms per pair |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for name, family in FAMILIES.items():
            vocabulary = Vocabulary(real_processor(name, data))
            text = vocabulary.tokenize_prompt(FLEUR, UNIT, references=False).text
            end = vocabulary.chat(text)[-12:].replace("|", "\\|").replace("\n", "\\n")
            for natural in family.natural_start.split(" | "):
                begins = "space" if natural[0] in "▁Ġ" else "number"
                cells = ["", "", ""]
                if name in TINY:
                    old, new = before_and_after(Path(folder), TINY[name], begins)
                    cells = [
                        f"{old[0]:.3f} -> {new[0]:.3f}",
                        f"{old[1]} -> {new[1]}",
                        f"{old[2]:.1f} -> {new[2]:.1f}",
                    ]
                print(f"| {name} | `{end}` | `{natural}` | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
