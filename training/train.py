"""Train a run of config.toml: python -m training.train RUN [--minutes M | --steps N]

The schedule is a cosine over the run's minutes, so that no run is cut before its end; with --steps
it is one over so many steps, the same on every machine. A run with teachers learns the ratings of
similarity and teachers together, as people's ratings weigh them (``people.py``), and learns from
captions that the teachers wrote, too (``writer.py``), or that another model wrote before.

A run can be stopped and goes on from its checkpoint. The weights are saved before anything is
evaluated: build/RUN.pt (averaged over training, fp16) and build/RUN.json (figures on dev).
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections import defaultdict
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from training import common, evaluate, images, mix, parts, statements
from training.batches import Batch, Lists, Sampler, special_tokens
from training.images import Photos
from training.labels import Labels
from training.model import BLOCKS, GRID, WIDTH, CaptionJudge
from training.packing import Answers, run
from training.teachers import ask_teachers, learn_written

CHECKPOINT_EVERY = 1000
COMPILING = 40
"""Seconds that a run compiles before its clock starts."""
WORDS, TELLING = 1000, 3
"""The commonest words of captions, looked for in images that have at least so many captions."""
BANK = 4096
"""Captions of other images that an image's own meaning is held against."""
UNTIMED = 3
"""Steps before the clock starts: compiling is not training."""


class Seen:
    """What is known to be in the training images: things that have a box, words of captions."""

    def __init__(self, labels: Labels, boxes: statements.Boxes) -> None:
        words = labels.words[:, :WORDS] > 0
        names = common.load_json("images.json")["train"]
        place = {name: column for column, name in enumerate(boxes.things)}
        boxed = [i for i, name in enumerate(names) if name in boxes.count]
        at = [(i, place[thing]) for i in boxed for thing in boxes.count[names[i]]]
        size = len(place) + words.shape[1]
        self.there = torch.zeros(labels.images, size, dtype=torch.bool, device=labels.device)
        self.known = torch.zeros_like(self.there)
        rows, columns = torch.tensor(at, device=labels.device).view(-1, 2).T
        self.there[rows, columns] = True
        self.known[boxed, : len(place)] = True
        caption, word = torch.nonzero(words, as_tuple=True)
        self.there[labels.owner[caption], len(place) + word] = True
        self.known[labels.count >= TELLING, len(place) :] = True

    def loss(self, head: nn.Linear, tokens: Tensor, images: Tensor) -> Tensor:
        """Return how badly a head tells from image tokens (B, 65, 576) what is there, per thing.

        A thing is there if any token says so.
        """
        said = head(tokens.float()).logsumexp(1)
        there, known = self.there[images].float(), self.known[images].float()
        loss = F.binary_cross_entropy_with_logits(said, there, known, reduction="sum")
        return loss / (there * known).sum().clamp(min=1)


class Guide:
    """A frozen copy of a model, which looks at clean photographs while the model sees drawings."""

    def __init__(self, model: CaptionJudge, device: str) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        compile_for(self.model, device)

    def loss(self, tokens: Tensor, e: Tensor, photos: Tensor, changed: Tensor) -> Tensor:
        """Return how far image tokens (B, 65, 576) and e (B, 384) of changed images are from its.

        A caption tells little of a quick drawing; the photograph behind it tells each token.
        """
        with torch.no_grad():
            wanted, meaning = self.model.image(photos)
        place = self.model.place
        near = F.cosine_similarity(tokens.float() - place, wanted.float() - place, dim=-1)
        far = (1 - near).mean(1) + 1 - (e * meaning).sum(-1)
        return (far * changed).sum() / changed.sum().clamp(min=1)


class Pupil:
    """A model, the average of its weights over training, and its optimiser.

    ``names`` is trained beside it and not kept: it tells from the image tokens alone what is there.
    """

    def __init__(self, name: str, config: dict[str, Any], names: int, device: str) -> None:
        optim, about = config["optim"], config["run"]
        torch.manual_seed(about["seed"])
        model = CaptionJudge(
            about["layers"], dropout=optim["dropout"], vision_dropout=optim["vision_dropout"]
        ).to(device)
        if "start" in about:
            model.load_state_dict(mix.mean(about["start"])[1])
        else:
            model.begin()
        self.name, self.model = name, model.train()
        self.average = copy.deepcopy(model).requires_grad_(False).eval()
        self.names = nn.Linear(WIDTH, names, device=device)
        nn.init.constant_(self.names.bias, -8.0)  # hardly anything is in an image, in any token
        self.guide = Guide(model, device) if config["loss"]["guide"] else None
        compile_for(model, device)
        self.adam = optimiser(model, self.names, optim, device == "cuda")
        untouched = parts.tower(GRID)
        own = {id(p): name for name, p in model.vision.named_parameters()}
        self._anchors = [
            [untouched[own[id(p)]].to(device) for p in group["params"] if id(p) in own]
            for group in self.adam.param_groups
        ]
        self._pull = optim["pull"]

    def learn(self, losses: dict[str, Tensor], keep: float) -> None:
        """Take one step down the loss and move the average."""
        self.adam.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]  # torch's own
        parameters = list(self.model.parameters())
        torch.nn.utils.clip_grad_norm_([*parameters, *self.names.parameters()], 1.0)
        self.adam.step()
        with torch.no_grad():
            for group, anchors in zip(self.adam.param_groups, self._anchors, strict=True):
                if anchors:  # what ImageNet's successors taught the tower is worth keeping
                    torch._foreach_lerp_(group["params"], anchors, group["lr"] * self._pull)
            torch._foreach_lerp_(
                list(self.average.parameters()), [p.detach() for p in parameters], 1 - keep
            )

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            "model": self.model.state_dict(),
            "names": self.names.state_dict(),
            "average": self.average.state_dict(),
            "adam": self.adam.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        self.names.load_state_dict(state["names"])
        self.average.load_state_dict(state["average"])
        self.adam.load_state_dict(state["adam"])

    def save(self) -> None:
        """Write the averaged weights."""
        weights = {name: value.half() for name, value in self.average.state_dict().items()}
        temp = common.BUILD / f"{self.name}.pt.part"
        torch.save({"layers": len(self.model.layers), "weights": weights}, temp)
        temp.replace(common.BUILD / f"{self.name}.pt")


def compile_for(model: CaptionJudge, device: str) -> None:
    """Compile what is compiled on a GPU."""
    if device == "cuda":
        torch._dynamo.config.recompile_limit = 64
        for layer in model.layers:
            layer.compile(dynamic=False)
        for block in model.vision.blocks:
            block.compile(dynamic=False)


def autocast(device: str) -> torch.autocast:
    """Return bf16 on the GPU, nothing on the CPU."""
    return torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda")


def one_hump(said: Tensor, widest: float = 1.5) -> Tensor:
    """Return the distribution (..., 11) with one hump that has, within 0.2, the mean of another.

    A model that cannot see says "0.2 or 0.9": its likeliest digit is then a guess, though its mean
    is not. So a part of what it learns is a bell around its own mean, as wide as its doubt, and no
    wider than ``widest``.
    """
    values = torch.arange(11, device=said.device, dtype=said.dtype)
    mean = (said * values).sum(-1, keepdim=True)
    doubt = (said * (values - mean) ** 2).sum(-1, keepdim=True).clamp(0.36, widest**2)
    centre, bell = mean, said
    for _ in range(4):  # near the ends a bell is cut off: its centre moves until its mean is near
        bell = torch.softmax(-((values - centre) ** 2) / (2 * doubt), dim=-1)
        centre = (centre + mean - (bell * values).sum(-1, keepdim=True)).clamp(-3, 13)
    return bell


def loss_of(
    answers: Answers, batch: Batch, labels: Labels, weights: dict[str, float]
) -> dict[str, Tensor]:
    """Return the parts of the loss, weighted."""
    e, target, kept = answers.image, batch.target, answers.kept
    values = torch.arange(11, device=target.device)
    joint = answers.joint()
    said = joint.softmax(-1)
    wanted = (target * values).sum(-1)
    target = (1 - weights["shape"]) * target + weights["shape"] * one_hump(said.detach())
    score = -(target * joint).sum(-1) - target[..., 10] * answers.digits_one[..., 0]
    expected = (said * values).sum(-1)
    ahead = (wanted[:, :, None] - wanted[:, None] > 0.5) * kept[:, :, None] * kept[:, None]
    rank = (F.softplus(expected[:, None] - expected[:, :, None]) * ahead).sum()
    pairs = batch.spoiled * kept[:, :, None] * kept[:, None]
    contrast = (F.softplus(1 + expected[:, None] - expected[:, :, None]) * pairs).sum()
    known = (batch.true >= 0) * kept
    cosine = (answers.meaning * labels.meaning[batch.true.clamp(min=0)]).sum(-1)
    assert answers.caption_loss is not None
    align = torch.zeros((), device=target.device)
    centre, count, g = labels.centre(batch.images), labels.count[batch.images], batch.generator
    for _ in range(2):
        pick = torch.rand(len(count), device=e.device, generator=g) * count
        bank = torch.randint(0, len(labels.owner), (BANK,), device=e.device, generator=g)
        text = labels.meaning[torch.cat([labels.first[batch.images] + pick.long(), bank])]
        similar, sim = text @ centre.T * 20, text @ e.T * 20
        align = align - _agreement(similar[: len(e)], sim[: len(e)]) / 4
        align = align - _agreement(similar.T, sim.T) / 4
    return {
        "score": (score * kept).sum() / kept.sum(),
        "caption": weights["caption"] * answers.caption_loss,
        "align": weights["align"] * align,
        "adapter": weights["adapter"] * ((1 - cosine) * known).sum() / known.sum(),
        "rank": weights["rank"] * rank / ahead.sum().clamp(min=1),
        "contrast": weights["contrast"] * contrast / pairs.sum().clamp(min=1),
    }


def _agreement(wanted: Tensor, said: Tensor) -> Tensor:
    """Return the mean of what rows of logits say of what others want."""
    return (wanted.softmax(-1) * said.log_softmax(-1)).sum(-1).mean()


def optimiser(
    model: CaptionJudge, names: nn.Linear, settings: dict[str, Any], fused: bool
) -> torch.optim.AdamW:
    """Return AdamW with a learning rate for each part; the tower's falls from block to block.

    The tower is not decayed towards zero: it is pulled towards what it began with.
    """
    groups: dict[str, list[Tensor]] = {"language": [], "norms": []}
    groups["new"] = list(names.parameters())
    tower: dict[int, list[Tensor]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        part, *rest = name.split(".")
        if part == "vision":
            above = int(rest[1]) + 1 if rest[0] == "blocks" else BLOCKS if rest[0] == "norm" else 0
            tower[BLOCKS - above].append(parameter)
        elif part in ("layers", "embedding", "norm"):
            groups["language" if parameter.dim() > 1 else "norms"].append(parameter)
        else:
            groups["new"].append(parameter)
    decay = settings["weight_decay"]
    rows = [
        (groups["language"], settings["language"], decay),
        (groups["norms"], settings["language"], 0.0),
        (groups["new"], settings["new"], decay),
    ]
    for below, parameters in tower.items():
        rows.append((parameters, settings["vision"] * settings["falling"] ** below, 0.0))
    return torch.optim.AdamW(
        [{"params": p, "lr": rate, "weight_decay": wd, "base": rate} for p, rate, wd in rows],
        betas=(0.9, 0.98),
        fused=fused,
    )


def restyle(
    photos: Photos, chosen: Tensor, augment: dict[str, Any], seed: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the chosen images, each style's share of them restyled; which are to be rough.

    The last are those (B,) that are not as photographed. Where only a part was rendered, that part
    is restyled the more often.
    """
    pixels = photos.pixels[chosen]
    changed = torch.zeros(len(chosen), dtype=torch.bool, device=chosen.device)
    drawn = np.random.default_rng(seed).random(len(chosen))
    edge = 0.0

    def within(share: float) -> np.ndarray:
        nonlocal edge
        edge += share
        return (drawn >= edge - share) & (drawn < edge)

    for style, share in augment["styles"].items():
        part = max(photos.share[style], augment["rendered"])
        row = photos.row[style][chosen]
        restyled = torch.from_numpy(within(share / part)).to(chosen.device) & (row >= 0)
        styled = photos.styled[style][row.clamp(min=0)]  # nothing here waits for the GPU
        pixels = torch.where(restyled[:, None, None, None], styled, pixels)
        changed |= restyled
    rough = torch.from_numpy(np.flatnonzero(within(augment["rough"]))).to(chosen.device)
    changed[rough] = True
    return pixels, rough, changed


class Schedule:
    """How far training is, by steps or by time, and the learning rate there."""

    def __init__(self, steps: int | None, minutes: float, warmup: int, elapsed: float = 0) -> None:
        self.steps, self.minutes, self.warmup = steps, minutes, warmup
        self.elapsed = elapsed
        self._since: float | None = None

    def done(self, step: int) -> float:
        """Return the share of the schedule that is done at ``step``: 1 at its end."""
        if self.steps is not None:
            return step / self.steps
        now = time.monotonic()
        if self._since is not None:
            self.elapsed += now - self._since
        self._since = now if step >= UNTIMED else None
        return self.elapsed / 60 / self.minutes

    def rate(self, step: int, done: float) -> float:
        """Return the factor of the learning rates: a warm-up, then a cosine down to 0.02."""
        return min(1, (step + 1) / self.warmup) * (0.49 * (1 + math.cos(math.pi * done)) + 0.02)


class World:
    """What runs share: images, labels, captions."""

    def __init__(self, config: dict[str, Any], device: str) -> None:
        began = time.time()
        self.device, self._began = device, began
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
        torch.backends.cudnn.benchmark = True
        self.photos = Photos(images.styles(), device)
        self.labels = Labels(config["labels"], device)
        self.lists = Lists(config["data"]["caption_tokens"], device)
        self.boxes = statements.Boxes()
        self.seen = Seen(self.labels, self.boxes)
        self.special = special_tokens(device)
        self.written: list[str] = []  # captions by teachers, as texts
        self.log("labels of", self.labels.images, "images;", len(self.lists.all.ids), "captions")

    def log(self, *words: object) -> None:
        """Print with the time."""
        print(f"[{time.time() - self._began:6.1f}]", *words, flush=True)


def prepare(world: World, name: str, *, styles: bool = False) -> Sampler:
    """Wait for the images, and let a run's teachers speak; return what is drawn from."""
    config = common.config(name)
    sampler = Sampler(config, world.labels, world.lists)
    world.photos.wait(styles=styles)
    sampler.arrived(world.photos.ready)
    teachers = [evaluate.load(other, world.device) for other in config["run"].get("teachers", ())]
    torch.manual_seed(config["run"]["seed"])  # what teachers write is drawn
    learn_written(sampler, teachers, world)
    if teachers:
        ask_teachers(sampler, teachers, world)
    return sampler


def train(
    world: World,
    name: str,
    sampler: Sampler,
    minutes: float | None = None,
    steps: int | None = None,
    end: float | None = None,
) -> None:
    """Train a run and save it: for so many minutes or steps, or until a time (as time.time())."""
    config, device, photos = common.config(name), world.device, world.photos
    optim, augment, seed = config["optim"], config["augment"], config["run"]["seed"]
    pupil = Pupil(name, config, world.seen.there.shape[1], device)
    size = sum(p.numel() for p in pupil.model.parameters())
    world.log(f"{name}: {size / 1e6:.1f} M parameters, {int(photos.ready.sum())} images so far")

    checkpoint = common.BUILD / f"{name}.checkpoint.pt"
    step, elapsed = 0, 0.0
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        pupil.load(saved["pupil"])
        step, elapsed = saved["step"], saved["elapsed"]
        torch.set_rng_state(saved["dropout"])
        if device == "cuda":
            torch.cuda.set_rng_state(saved["dropout_cuda"])
        world.log("goes on from step", step)
    if end is not None:
        minutes = max(1.0, end - time.time() - COMPILING + elapsed) / 60  # a late run ends at once
    schedule = Schedule(steps, minutes or optim["minutes"], optim["warmup"], elapsed)
    while (done := schedule.done(step)) < 1:
        for group in pupil.adam.param_groups:
            group["lr"] = group["base"] * schedule.rate(step, done)
        if photos.arrive():
            sampler.arrived(photos.ready)
        batch = sampler.draw(1_000_000 * (seed + 1) + step)
        pixels, rough, changed = restyle(photos, batch.images, augment, [seed, step])
        sided = sampler.lists.sided[batch.images]
        drawn = batch.generator.get_state()
        x = images.augment(pixels, augment["crop"], batch.generator, rough, sided)
        with autocast(device):
            answers = run(pupil.model, x, batch.packed, world.special)
        losses = loss_of(answers, batch, world.labels, config["loss"])
        if pupil.guide is not None:
            pixels, g = photos.pixels[batch.images], batch.generator.set_state(drawn)
            x = images.augment(pixels, augment["crop"], g, sided=sided)  # the same crop, clean
            with autocast(device):
                loss = pupil.guide.loss(answers.tokens, answers.image, x, changed)
            losses["guide"] = config["loss"]["guide"] * loss
        seen = world.seen.loss(pupil.names, answers.tokens, batch.images)
        losses["seen"] = config["loss"]["seen"] * seen
        pupil.learn(losses, min(optim["ema"], (step + 1) / (step + 20)))
        step += 1
        if step % 100 == 0:
            shown = {key: round(value.item(), 3) for key, value in losses.items()}
            world.log(step, f"{100 * done:.1f} %", shown, int(photos.ready.sum()))
        if step % CHECKPOINT_EVERY == 0:
            state = {
                "pupil": pupil.state(),
                "step": step,
                "elapsed": schedule.elapsed,
                "dropout": torch.get_rng_state(),
            }
            if device == "cuda":
                state["dropout_cuda"] = torch.cuda.get_rng_state()
            part = checkpoint.with_suffix(".part")
            torch.save(state, part)
            part.replace(checkpoint)
            pupil.save()
    pupil.save()
    world.log(name, "trained", step, "steps in", round(schedule.elapsed), "s")


def measure(world: World, name: str) -> None:
    """Write a trained run's figures on dev."""
    figures = evaluate.dev(name, world.special)
    (common.BUILD / f"{name}.json").write_text(json.dumps(figures, indent=1))
    world.log(name, figures)


def main() -> None:
    """Train, save, evaluate on dev."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    world = World(common.config(args.run), device)
    sampler = prepare(world, args.run, styles=args.steps is not None)
    train(world, args.run, sampler, args.minutes, args.steps)
    torch.compiler.set_stance("force_eager")  # what follows has many shapes
    measure(world, args.run)


if __name__ == "__main__":
    main()
