"""Learning from teachers: captions that they write, and what they think of an image's pool.

A teacher looks at the clean photograph. How much its opinion counts beside the
similarity to the references is what people's ratings of dev images say: a least-squares fit.

    python -m training.teachers RUN      dev images are asked about captions that RUN writes, too
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from discode.backends._embedded.tokenizer import Bpe
from training import common, evaluate, images, parts, people, questions, writer
from training.agreement import expected
from training.batches import Captions, Sampler, special_tokens
from training.labels import References
from training.model import CaptionJudge
from training.packing import Special
from training.sources import DRAWN, MOST

if TYPE_CHECKING:
    from training.train import World

TOGETHER, WRITTEN_TOGETHER = 128, 2048
"""Images at a time that teachers rate, and write captions of."""
UNWRITTEN = ("stated", *DRAWN)
"""Sources whose few captions cannot rate what a machine writes."""
KEPT, WRITTEN = "written.npz", ("ids", "lengths", "image")
"""Captions that another model wrote of training images before, if there are any."""


@contextmanager
def of_many_shapes() -> Iterator[None]:
    """Compile and time nothing: there are new shapes, a few times each."""
    torch.compiler.set_stance("force_eager")
    torch.backends.cudnn.benchmark = False
    yield
    torch.backends.cudnn.benchmark = True
    torch.compiler.set_stance("default")


@of_many_shapes()
def learn_written(sampler: Sampler, teachers: list[CaptionJudge], world: World) -> None:
    """Put captions by machines into the pool: known ones, kept ones, those that teachers write."""
    temperatures = common.config()["write"]["temperatures"]
    if (common.BUILD / KEPT).exists():
        kept = np.load(common.BUILD / KEPT)
        ids, lengths, image = (torch.from_numpy(kept[name]).long() for name in WRITTEN)
        add_written(sampler, ids, lengths, image, world)
    for teacher, temperature in product(teachers, temperatures):
        for rows in torch.split(written_of(world), WRITTEN_TOGETHER):
            shown = world.photos.pixels[rows]
            written = writer.write(teacher, shown, world.special, temperature)
            add_written(sampler, *written, rows, world)
    world.log(len(sampler.lists.machine_owner), "captions by machines:", world.written[::20_000])
    owner = sampler.lists.machine_owner
    if not len(owner):
        return
    texts = common.load_json("captions.json")["machine"] + world.written
    meaning = torch.from_numpy(parts.sentence_embeddings(texts)).to(world.device)
    s, left = zip(
        *(
            sampler.labels.likeness(i, m)
            for i, m in zip(torch.split(owner, 4096), torch.split(meaning, 4096), strict=True)
        ),
        strict=True,
    )
    sampler.add_machine(sampler.labels.rate(torch.cat(s), torch.cat(left)))
    world.log("the pool has", tuple(sampler.pool.captions.shape))


@of_many_shapes()
def ask_teachers(sampler: Sampler, teachers: list[CaptionJudge], world: World) -> None:
    """Rate the pool by similarity and by what teachers think."""
    opinions = [pool_opinion(teacher, sampler, world) for teacher in teachers]
    world.log("teachers have rated it")
    scale = torch.tensor(weights(teachers, world), device=world.device)
    rate_pool(sampler, opinions, scale)


def written_of(world: World) -> Tensor:
    """Return the numbers of the photographs that machines write captions of."""
    about = common.load_json("images.json")
    skipped = [i for i, name in enumerate(about["sources"]) if name in UNWRITTEN]
    source = torch.tensor(about["train_source"])
    return torch.nonzero(~torch.isin(source, torch.tensor(skipped)))[:, 0].to(world.device)


def add_written(sampler: Sampler, ids: Tensor, lengths: Tensor, rows: Tensor, world: World) -> None:
    """Add a caption (ids (n, T), lengths (n,)) of each of the images ``rows`` (n,)."""
    about, settings = common.load_json("images.json"), common.config()["write"]
    texts = writer.spelt(ids, lengths, common.load_json("tokenizer.json")["tokens"])
    numbers, first = rows.tolist(), sampler.labels.first.tolist()
    captions = common.load_json("captions.json")["train"]
    own = [captions[first[i] : first[i + 1]] for i in numbers]
    absent = [
        world.boxes.named_absent(about["train"][i], text, said)
        for i, text, said in zip(numbers, texts, own, strict=True)
    ]
    penalty = torch.tensor(absent).float() * settings["named_absent"] + settings["weak"]
    sampler.lists.add_machine(*(x.to(world.device) for x in (ids, lengths, rows, penalty)))
    world.written += texts


def pool_opinion(teacher: CaptionJudge, sampler: Sampler, world: World) -> Tensor:
    """Return a teacher's ratings of every image's pool (images, P), on 0 ... 1."""
    result = torch.empty(sampler.pool.captions.shape, device=world.device)
    values = torch.arange(11, device=world.device) / 10
    for rows in torch.split(torch.arange(len(result), device=world.device), TOGETHER):
        captions = sampler.lists.all[sampler.pool.captions[rows]]
        pixels = world.photos.pixels[rows]
        says = evaluate.ask(teacher, pixels, captions, world.special, exact=False)
        result[rows] = (says.joint().float().softmax(-1) * values).sum(-1)
    return result


def weights(teachers: list[CaptionJudge], world: World) -> list[list[float]]:
    """Return what 1, S, S² and each teacher's opinion are worth, by the number of references."""
    rows = people.calibrating(common.load_json("images.json")["dev"])
    if not rows:
        return [[c / 2 for c in people.PLAIN[0]] + [5.0 / len(teachers)] * len(teachers)] * (
            MOST + 1
        )
    tokenizer, slots = common.load_json("tokenizer.json"), common.config()["data"]["long_tokens"]
    bpe = Bpe(tokenizer["tokens"], tokenizer["merges"])
    flat, offset = common.ragged([bpe.encode(" " + row[1]) for row in rows])
    captions = Captions.pad(flat, offset, slots, world.device)
    pixels, image = images.rendered("dev"), np.array([row[0] for row in rows])
    said = [
        expected(*evaluate.read_pairs(teacher, pixels, image, captions, world.special))
        for teacher in teachers
    ]
    references = References("dev", world.device)
    meaning = people.meaning_of(rows, world.device)
    ratings = np.array([row[2] for row in rows])
    result = []
    for limit in range(MOST + 1):
        known = people.features(references, rows, meaning, max(1, limit))
        result.append(people.fit(np.column_stack([known, *said]), ratings).tolist())
    world.log("S and teachers weigh", [[round(w, 2) for w in row] for row in result])
    return result


def rate_pool(sampler: Sampler, opinions: list[Tensor], scale: Tensor) -> None:
    """Replace the pool's ratings by what S and the teachers say together.

    Own captions are good whatever anybody thinks, and what a teacher thinks of captions that
    machines wrote, itself among them, is no evidence: both keep their ratings.
    """
    pool, labels, true = sampler.pool, sampler.labels, sampler.lists.true
    high = float(labels.settings["other_high"])
    for rows in torch.split(torch.arange(len(pool.captions), device=labels.device), 4096):
        captions = pool.captions[rows].clamp(max=true - 1)
        s, left = labels.similarity(rows, captions)
        known = [torch.ones_like(s), s, s * s, *(opinion[rows] for opinion in opinions)]
        rating = (torch.stack(known, dim=-1) * scale.float()[left]).sum(-1).clamp(0, high)
        keeps = (labels.owner[captions] == rows[:, None]) | (pool.captions[rows] >= true)
        pool.rating[rows] = torch.where(keeps, pool.rating[rows], rating)


def questions_of(teacher: CaptionJudge, special: Special) -> dict[str, list[str]]:
    """Return captions that a teacher writes of the dev images, by kind."""
    tokens: list[Any] = common.load_json("tokenizer.json")["tokens"]
    pixels = images.rendered("dev")
    result: dict[str, list[str]] = {}
    for kind, temperature in (("machine: likeliest", 0.0), ("machine: drawn", 0.8)):
        texts: list[str] = []
        for part in torch.split(pixels, 512):
            shown = part.to(special.instruction.device)
            texts += writer.spelt(*writer.write(teacher, shown, special, temperature), tokens)
        result[kind] = texts
    return result


def main() -> None:
    """Add the captions that a run writes to what dev images are asked, once."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)  # some are drawn
    if not questions.complete():
        questions.add(questions_of(evaluate.load(sys.argv[1], device), special_tokens(device)))


if __name__ == "__main__":
    main()
