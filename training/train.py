"""Train a model: python -m training.train NAME --kind teacher|student [--seed S]

    --teachers A B    distil from the labels that teachers A and B left (see --label)
    --label           after training, label the pool of training pairs for students
    --minutes M       stop the schedule after M minutes, wherever it is

A run can be stopped and goes on from its checkpoint. The weights are saved before anything is
evaluated: build/NAME.pt (averaged over training, fp16) and build/NAME.json (figures on dev).
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from training import common, evaluate, pictures
from training.labels import Labels
from training.model import CaptionJudge
from training.packing import Answers, Packed, Special, run

POOL_HARD, POOL_RANDOM = 24, 8


@dataclass
class Captions:
    """Padded token ids (n, slots) and lengths (n,)."""

    ids: Tensor
    lengths: Tensor

    @classmethod
    def load(cls, name: str, slots: int, device: str) -> Captions:
        """Read a list of captions of text.npz."""
        data = np.load(common.BUILD / "text.npz")
        return cls.pad(data[name], data[f"{name}_offset"], slots, device)

    @classmethod
    def pad(cls, flat: np.ndarray, offset: np.ndarray, slots: int, device: str) -> Captions:
        """Pad ragged captions to ``slots``, cutting what is longer."""
        lengths = np.minimum(np.diff(offset), slots)
        ids = np.zeros((len(lengths), slots), np.int64)
        inside = np.arange(slots) < lengths[:, None]
        ids[inside] = flat[(offset[:-1, None] + np.arange(slots))[inside]]
        return cls(torch.from_numpy(ids).to(device), torch.from_numpy(lengths).long().to(device))

    def __getitem__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        return self.ids[rows], self.lengths[rows]


def special_tokens(device: str) -> Special:
    """Return the ids around a caption."""
    ids = {token: i for i, token in enumerate(common.load_json("tokenizer.json")["tokens"])}
    instruction = torch.from_numpy(np.load(common.BUILD / "text.npz")["instruction"]).long()
    start = torch.tensor([ids[common.START]])
    return Special(
        torch.cat([start, instruction]).to(device),
        ids[common.START],
        ids[common.END],
        (ids[common.STEMS[0]], ids[common.STEMS[1]]),
        torch.tensor([ids[str(d)] for d in range(10)], device=device),
    )


class Sampler:
    """Draws the captions of a batch and their targets."""

    def __init__(
        self, config: dict[str, Any], labels: Labels, captions: Captions, wrong: Captions, seed: int
    ) -> None:
        self.config, self.labels = config, labels
        self.device = labels.device
        self.generator = torch.Generator(device=self.device).manual_seed(seed)
        self.captions = len(captions.ids)
        self.all = Captions(
            torch.cat([captions.ids, wrong.ids]), torch.cat([captions.lengths, wrong.lengths])
        )
        text = np.load(common.BUILD / "text.npz")
        self.wrong_source = torch.from_numpy(text["wrong_source"]).long().to(self.device)
        self.wrong_penalty = torch.from_numpy(text["wrong_penalty"]).to(self.device)
        self.each = config["data"]["perturbations"] * 5  # wrong captions an image, in a row
        stop = common.load_json("tokenizer.json")["tokens"].index(".")
        self.stop = stop
        self.teacher: Tensor | None = None  # (images, pool, 11)
        pool = torch.Generator(device=self.device).manual_seed(0)
        images = torch.arange(labels.images, device=self.device)
        self.pool = torch.cat(  # (images, own + hard + random + wrong), the same for every run
            [
                images[:, None] * 5 + torch.arange(5, device=self.device),
                self._hard(images, POOL_HARD, pool),
                torch.randint(
                    0, self.captions, (len(images), POOL_RANDOM), device=self.device, generator=pool
                ),
                self.captions
                + images[:, None] * self.each
                + torch.arange(self.each, device=self.device),
            ],
            dim=1,
        )

    def _hard(self, images: Tensor, n: int, generator: torch.Generator) -> Tensor:
        ranks = self.labels.hard.shape[1]
        u = torch.rand(len(images), n, device=self.device, generator=generator)
        rank = ((u * math.log(ranks)).exp().long() - 1).clamp(0, ranks - 1)
        return self.labels.hard[images[:, None], rank]

    def rate(self, images: Tensor, captions: Tensor) -> Tensor:
        """Rate true and wrong captions (B, N) on 0 ... 10."""
        wrong = captions - self.captions
        is_wrong = wrong >= 0
        source = self.wrong_source[wrong.clamp(min=0)]
        spoiled = (self.labels.own[source] - self.wrong_penalty[wrong.clamp(min=0)]).clamp(min=0)
        return torch.where(
            is_wrong, spoiled, self.labels.of(images, captions.clamp(max=self.captions - 1))
        )

    def draw(self, images: Tensor) -> tuple[Packed, Tensor, Tensor]:
        """Return the packed captions, targets (B, S, 11), and true-caption ids (B, S) or -1."""
        kinds, b = self.config["batch"], len(images)
        g = self.generator

        def choose(first: int, count: int, n: int) -> Tensor:
            """Draw n different columns of the pool from ``count`` starting at ``first``."""
            order = torch.rand(b, count, device=self.device, generator=g).argsort(1)[:, :n]
            return first + order

        columns = torch.cat(
            [
                choose(0, 5, kinds["own"]),
                choose(5, POOL_HARD, kinds["hard"]),
                choose(5 + POOL_HARD, POOL_RANDOM, kinds["random"]),
                choose(5 + POOL_HARD + POOL_RANDOM, self.each, kinds["wrong_word"]),
            ],
            dim=1,
        )
        captions = self.pool[images[:, None], columns]
        # Half of the hard and random captions are drawn anew; teachers have not seen those.
        fresh = torch.zeros_like(captions, dtype=torch.bool)
        others = slice(kinds["own"], kinds["own"] + kinds["hard"] + kinds["random"])
        fresh[:, others] = (
            torch.rand(b, kinds["hard"] + kinds["random"], device=self.device, generator=g) < 0.5
        )
        new = torch.cat(
            [
                self._hard(images, kinds["hard"], g),
                torch.randint(
                    0, self.captions, (b, kinds["random"]), device=self.device, generator=g
                ),
            ],
            dim=1,
        )
        captions[:, others] = torch.where(fresh[:, others], new, captions[:, others])
        target = self.labels.soft(self.rate(images, captions))
        if self.teacher is not None:
            weight = self.config["loss"]["distil"] * (~fresh).float()[..., None]
            target = (1 - weight) * target + weight * self.teacher[images[:, None], columns].float()
        long, long_target = self._long(images, captions, kinds["own"])
        written = images[:, None] * 5 + torch.randint(0, 5, (b, 1), device=self.device, generator=g)
        packed = Packed([self.all[captions], long], self.all[written])
        true = torch.where(captions < self.captions, captions, -1)
        true = torch.cat([true, torch.full((b, long[0].shape[1]), -1, device=self.device)], dim=1)
        return packed, torch.cat([target, long_target], dim=1), true

    def _long(
        self, images: Tensor, captions: Tensor, own: int
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Join two or three captions to a long one, sometimes with a wrong part."""
        b, slots = len(images), self.config["data"]["long_tokens"]
        g = self.generator
        pick = torch.rand(b, own, device=self.device, generator=g).argsort(1)[:, :3]
        chosen = captions.gather(1, pick)
        any_ = torch.randint(0, captions.shape[1], (b, 1), device=self.device, generator=g)
        spoil = torch.rand(b, device=self.device, generator=g) < 0.5
        place = torch.randint(0, 3, (b,), device=self.device, generator=g)
        other = captions.gather(1, any_)
        for k in range(3):
            chosen[:, k] = torch.where(spoil & (place == k), other[:, 0], chosen[:, k])
        parts = 2 + (torch.rand(b, device=self.device, generator=g) < 0.5).long()
        rating = self.rate(images, chosen)
        used = torch.arange(3, device=self.device) < parts[:, None]
        mean = (rating * used).sum(1) / parts
        least = rating.masked_fill(~used, 99).amin(1)
        ids = torch.zeros(b, slots + 32, dtype=torch.long, device=self.device)
        at = torch.zeros(b, dtype=torch.long, device=self.device)
        for k in range(3):
            token, length = self.all[chosen[:, k]]
            length = torch.where(used[:, k], length, 0)
            inside = torch.arange(token.shape[1], device=self.device) < length[:, None]
            where = torch.where(
                inside, at[:, None] + torch.arange(token.shape[1], device=self.device), slots + 31
            )
            ids.scatter_(1, where.clamp(max=slots + 31), torch.where(inside, token, 0))
            at = at + length
            if k < 2:
                more = (k + 1 < parts) & (at < slots)
                ids.scatter_(1, torch.where(more, at, slots + 31)[:, None], self.stop)
                at = at + more.long()
        target = self.labels.soft(0.4 * mean + 0.6 * least)[:, None]
        return (ids[:, None, :slots], at.clamp(max=slots)[:, None]), target


def loss_of(
    answers: Answers,
    target: Tensor,
    true: Tensor,
    e: Tensor,
    labels: Labels,
    images: Tensor,
    weights: dict[str, float],
    generator: torch.Generator,
) -> dict[str, Tensor]:
    """Return the parts of the loss, weighted."""
    score = -(target * answers.joint()).sum(-1).mean()
    one = -(target[..., 10] * answers.digits_one[..., 0]).mean()
    expected = (answers.joint().softmax(-1) * torch.arange(11, device=target.device)).sum(-1)
    wanted = (target * torch.arange(11, device=target.device)).sum(-1)
    ahead = wanted[:, :, None] - wanted[:, None] > 0.7
    rank = (torch.nn.functional.softplus(expected[:, None] - expected[:, :, None]) * ahead).sum()
    known = (true >= 0).float()
    cosine = (answers.meaning * labels.meaning[true.clamp(min=0)]).sum(-1)
    assert answers.caption_loss is not None
    b = len(images)
    align = torch.zeros((), device=target.device)
    centre = labels.meaning[images[:, None] * 5 + torch.arange(5, device=e.device)].mean(1)
    for _ in range(2):
        pick = torch.randint(0, 5, (b,), device=e.device, generator=generator)
        text = labels.meaning[images * 5 + pick]
        similar = torch.softmax(text @ centre.T * 20, -1)
        sim = text @ e.T * 20
        align = align - (similar * sim.log_softmax(-1)).sum(-1).mean() / 4
        back = torch.softmax((text @ centre.T).T * 20, -1)
        align = align - (back * sim.T.log_softmax(-1)).sum(-1).mean() / 4
    return {
        "score": score + one,
        "caption": weights["caption"] * answers.caption_loss,
        "align": weights["align"] * align,
        "adapter": weights["adapter"] * ((1 - cosine) * known).sum() / known.sum(),
        "rank": weights["rank"] * rank / ahead.sum().clamp(min=1),
    }


def optimiser(model: CaptionJudge, settings: dict[str, Any], fused: bool) -> torch.optim.AdamW:
    """Return AdamW with a learning rate for each part."""
    groups: dict[str, list[Tensor]] = {"vision": [], "language": [], "norms": [], "new": []}
    for name, parameter in model.named_parameters():
        part = name.split(".")[0]
        if part == "vision":
            groups["vision"].append(parameter)
        elif part in ("layers", "embedding", "norm"):
            groups["language" if parameter.dim() > 1 else "norms"].append(parameter)
        else:
            groups["new"].append(parameter)
    decay = settings["weight_decay"]
    rows = [
        ("vision", "vision", 0.01),
        ("language", "language", decay),
        ("norms", "language", 0.0),
        ("new", "new", decay),
    ]
    return torch.optim.AdamW(
        [
            {"params": groups[g], "lr": settings[rate], "weight_decay": wd, "base": settings[rate]}
            for g, rate, wd in rows
        ],
        betas=(0.9, 0.98),
        fused=fused,
    )


def main() -> None:
    """Train, save, label, evaluate on dev."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--kind", choices=("teacher", "student"), default="student")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--teachers", nargs="*", default=[])
    parser.add_argument("--label", action="store_true")
    parser.add_argument("--minutes", type=float, default=1e9)
    parser.add_argument("--no-styles", action="store_true")
    args = parser.parse_args()
    config = common.config()
    kind = config[args.kind]
    steps = args.steps or kind["steps"]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(args.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    began = time.time()

    def log(*words: object) -> None:
        print(f"[{args.name} {time.time() - began:6.1f}]", *words, flush=True)

    photos = pictures.decode("train").to(device)
    n = len(photos)
    styles = [] if args.no_styles else config["augment"]["styles"]
    sources = [photos, *(pictures.styled("train", s).to(device) for s in styles)]
    dev_images = len(pictures.files("dev"))
    slots = config["data"]["caption_tokens"]
    settings = config["labels"] | {"hard_ranks": config["batch"]["hard_ranks"]}
    labels = Labels(settings, n, dev_images, device)
    captions = Captions.load("train", slots, device)
    wrong = Captions.load("wrong", slots, device)
    sampler = Sampler(config, labels, captions, wrong, args.seed)
    if args.teachers:
        found = [np.load(common.BUILD / f"{name}_labels.npy") for name in args.teachers]
        mean = np.mean([rows.astype(np.float32) for rows in found], axis=0)
        sampler.teacher = torch.from_numpy(mean).half().to(device)
    special = special_tokens(device)
    optim = config["optim"]
    model = CaptionJudge(
        args.layers or kind["layers"],
        dropout=optim["dropout"],
        vision_dropout=optim["vision_dropout"],
    ).to(device)
    model.vision.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # a known gap in torch's stubs
    if device == "cuda":
        for layer in model.layers:
            layer.compile(dynamic=False)
    adam = optimiser(model, optim, fused=device == "cuda")
    parameters = list(model.parameters())
    average = [p.detach().clone() for p in parameters]
    log(f"{sum(p.numel() for p in parameters) / 1e6:.1f} M parameters, {n} images, {steps} steps")

    checkpoint = common.BUILD / f"{args.name}.checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        adam.load_state_dict(saved["adam"])
        average, step = [p.to(device) for p in saved["average"]], saved["step"]
        sampler.generator.set_state(saved["generator"])
        log("goes on from step", step)
    start, batch = time.time(), min(kind["batch"], n)
    tally: dict[str, float] = {}
    model.train()
    while step < steps:
        done = max(step / steps, (time.time() - start) / 60 / args.minutes)
        if done >= 1:
            break
        rate = min(1, (step + 1) / optim["warmup"]) * (0.49 * (1 + math.cos(math.pi * done)) + 0.02)
        for group in adam.param_groups:
            group["lr"] = group["base"] * rate
        g = sampler.generator
        images = torch.randperm(n, device=device, generator=g)[:batch]
        which = torch.zeros(batch, dtype=torch.long, device=device)
        if styles:
            restyle = torch.rand(batch, device=device, generator=g) < config["augment"]["style"]
            which = restyle * torch.randint(1, len(sources), (batch,), device=device, generator=g)
        pixels = photos[images]
        for number, source in enumerate(sources[1:], start=1):
            pixels = torch.where((which == number)[:, None, None, None], source[images], pixels)
        packed, target, true = sampler.draw(images)
        x = pictures.augment(pixels, config["augment"]["crop"], g)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            answers = run(model, x.contiguous(memory_format=torch.channels_last), packed, special)
        losses = loss_of(answers, target, true, answers.picture, labels, images, config["loss"], g)
        adam.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]  # torch's own
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adam.step()
        keep = min(optim["ema"], (step + 1) / (step + 20))
        with torch.no_grad():
            torch._foreach_lerp_(average, [p.detach() for p in parameters], 1 - keep)
        step += 1
        if step % 50 == 0 or step == steps:
            for name, value in losses.items():
                tally[name] = value.item()
            if step % 200 == 0 or step == steps:
                log(step, {name: round(value, 3) for name, value in tally.items()})
        if step % 1000 == 0:
            state = {"model": model.state_dict(), "adam": adam.state_dict(), "average": average}
            torch.save(state | {"step": step, "generator": g.get_state()}, checkpoint)
    with torch.no_grad():
        torch._foreach_copy_([p.data for p in parameters], average)
    weights = {
        name.replace("_orig_mod.", ""): value.half() for name, value in model.state_dict().items()
    }
    torch.save({"layers": len(model.layers), "weights": weights}, common.BUILD / f"{args.name}.pt")
    log("trained", step, "steps in", round(time.time() - start), "s")
    model.eval()
    if args.label:
        rows = [
            evaluate.joint(
                model, photos[i : i + 32], sampler.all[sampler.pool[i : i + 32]], special
            )
            for i in range(0, n, 32)
        ]
        np.save(
            common.BUILD / f"{args.name}_labels.npy",
            torch.cat(rows).softmax(-1).half().cpu().numpy(),
        )
        log("labelled the pool")
    figures = evaluate.dev(model, labels, special)
    (common.BUILD / f"{args.name}.json").write_text(json.dumps(figures, indent=1))
    log(figures)


if __name__ == "__main__":
    main()
