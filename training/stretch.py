"""One stretch on a machine with a GPU: python -m training.stretch TEACHER_MINUTES FINAL_MINUTES

Everything after ``training.data ... --only images`` and ``--only text``, in one process, so that
images, labels and compiled layers are shared: the former file is measured, a teacher is trained,
both teach the final run, which is measured. Parcels of images may arrive while it runs, and
``python -m training.images`` may render styles beside it. Weights are saved as it goes.
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
    former = evaluate.load("former", device)
    torch.compiler.set_stance("force_eager")
    questions.add(teachers.questions_of(former, world))
    measure(world, "former")
    for name, time in zip(("deep", "final"), minutes, strict=True):
        train(world, name, time)
    measure(world, "final")
    for name in ("former", "final"):
        evaluate.test(name, world.special)
        world.log("read test", name)


if __name__ == "__main__":
    main()
