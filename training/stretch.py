"""One stretch on a machine with a GPU: python -m training.stretch RUN[,RUN ...] END [SHARE ...]

Everything after ``training.data``, in one process: the runs are trained one after the other, each
for as long, until END (in seconds since 1970: date +%s; +450 is 450 seconds after the preparation),
on batches like the first one's and with what its teachers said. Then the last and its mixes with
what it started from are measured, RUN_50 for a SHARE of 0.5. Parcels of images may arrive until it
trains, ``python -m training.images`` decodes and renders them beside it; weights are saved as it
goes. Test images take no part.
"""

from __future__ import annotations

import sys
import time

import torch

from training import common, evaluate, mix, questions, teachers
from training.train import World, measure, prepare, train


def main() -> None:
    """Run the stretch."""
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    first, *later = sys.argv[1].split(",")
    start = [common.config(run)["run"].get("start", [run]) for run in (first, *later)][-1]
    end, *shares = map(float, sys.argv[2:])  # what is wrong is told before anything is trained
    after = sys.argv[2].startswith("+")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    world = World(common.config(first), device)
    sampler = prepare(world, first)
    end += time.time() if after else 0
    for left, run in zip(range(len(later) + 1, 0, -1), (first, *later), strict=True):
        now = time.time()
        train(world, run, sampler, end=now + (end - now) / left)
    torch.compiler.set_stance("force_eager")  # what follows has many shapes
    if not questions.complete():
        questions.add(teachers.questions_of(evaluate.load("former", device), world.special))
    names = [run]
    for share in shares:
        names.append(f"{run}_{100 * share:.0f}")
        mix.write(names[-1], [*start, run], [(1 - share) / len(start) for _ in start] + [share])
    for name in names:
        measure(world, name)
        world.log(name, "is measured")


if __name__ == "__main__":
    main()
