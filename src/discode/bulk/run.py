"""A judge over inputs of any size, in bounded memory, into a folder of shards."""

from __future__ import annotations

from contextlib import closing

from discode.bulk.folder import OutputFolder
from discode.bulk.judging import Totals, by_method, judge_chunk, raise_if_stopped
from discode.bulk.plan import RunPlan
from discode.errors import InputError
from discode.judge import Judge
from discode.scores import Progress


def score_to_folder(judge: Judge, plan: RunPlan, progress: Progress | None = None) -> Totals:
    """Score a share of a run into its folder; go on where it stopped.

    Args:
        judge: Who judges. With a store, nothing it has read is asked for again.
        plan: What :func:`~discode.bulk.plan_run` returned.
        progress: Called with the number of rows just done; first with those of earlier runs.

    Returns:
        The counts of all shards of this share, those of earlier runs included.

    Raises:
        StoppedError: A served model's cap was reached, or its server refused for good. Shards
            that were not finished are left for the next run.
    """
    judges = by_method(judge, plan.methods)
    with closing(OutputFolder(plan)) as folder:
        folder.begin({name: str(each.signature) for name, each in judges.items()})
        if progress and (finished := folder.totals().rows):
            progress(finished)
        for number in range(len(plan.inputs.files)):
            wanted = folder.wanted(number)
            for chunk in plan.read(number, wanted) if wanted is not None else ():
                scored = judge_chunk(judges, chunk, min_score=plan.min_score, progress=progress)
                raise_if_stopped(judge)
                folder.add(scored)
        totals = folder.finish()
    check_complete(plan, totals)
    return totals


def check_complete(plan: RunPlan, totals: Totals) -> None:
    """Raise where the input of a run that has ended held nothing, or changed meanwhile."""
    if not totals.rows and plan.share.count == 1:
        raise InputError(f"{', '.join(plan.inputs.given)} holds no pairs")
    plan.inputs.check_unchanged()
