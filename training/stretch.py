"""One stretch on a machine with a GPU: python -m training.stretch TEACHER_MINUTES FINAL_MINUTES

Everything after ``training.data ... --only images`` and ``--only text``, in one process, so that
images, labels and compiled layers are shared: a teacher is trained, it and the former file teach
the final run, and the final and the former model are measured. Parcels of images may arrive while
it runs, ``python -m training.images`` may render styles beside it; weights are saved as it goes.
"""

from __future__ import annotations

import sys

import torch

from training import common, evaluate, questions, teachers
from training.train import World, measure, train


def main() -> None:
    """Run the stretch."""
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    minutes = [float(word) for word in sys.argv[1:]]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    world = World(common.config(), device)
    for name, time in zip(("deep", "final"), minutes, strict=True):
        train(world, name, time)
    torch.compiler.set_stance("force_eager")  # what follows has many shapes
    questions.add(teachers.questions_of(evaluate.load("former", device), world))
    for name in ("final", "former"):
        measure(world, name)
        evaluate.test(name, world.special)
        world.log(name, "is measured")


if __name__ == "__main__":
    main()
