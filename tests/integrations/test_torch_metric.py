"""The metric of torchmetrics, in one process and in two."""

from __future__ import annotations

import copy
import json
import math
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

import discode
from discode._arrays import widest_float
from discode.errors import InputError
from tests.helpers.fake_model import FakeModel
from tests.helpers.samples import png

torch = pytest.importorskip("torch", reason="the metric wants discode-eval[torchmetrics]")
torchmetrics = pytest.importorskip("torchmetrics", reason="it wants discode-eval[torchmetrics]")

CAPTIONS = ["a", "a cat", "a bad one", "a dog runs", "two dogs and a cat"]


def expected(captions: list[str]) -> float:
    return discode.load(FakeModel(rejects="bad")).score(png(), captions).mean()


def make_metric() -> Any:
    from discode.integrations import DiscodeScore

    return DiscodeScore(discode.load(FakeModel(rejects="bad")))


def test_a_batch_of_tensors_is_judged_as_it_is() -> None:
    metric = make_metric()
    metric.update(torch.rand(2, 3, 8, 9, requires_grad=True), ["a", "a cat"])
    assert metric.compute().item() == pytest.approx(expected(["a", "a cat"]))
    metric.update(torch.full((1, 3, 8, 9), math.nan), ["a"])  # NaN pixels: one failed pair
    assert (metric.judged.item(), metric.failed.item()) == (2, 1)


def test_update_compute_reset(caplog: pytest.LogCaptureFixture) -> None:
    metric = make_metric()
    metric.update([png()] * 3, CAPTIONS[:3])
    metric.update([png()] * 2, CAPTIONS[3:])
    assert metric.compute().item() == pytest.approx(expected(CAPTIONS), abs=1e-9)
    assert (metric.judged.item(), metric.failed.item()) == (4, 1)
    assert metric([png()], ["a cat"]).item() == pytest.approx(expected(["a cat"]))  # forward
    assert metric.judged.item() == 5
    metric.reset()
    assert metric.judged.item() == 0
    caplog.clear()
    metric.update([png(), None], ["a bad one", "x"])
    assert math.isnan(metric.compute().item())
    assert metric.failed.item() == 2
    (warned,) = caplog.messages
    assert warned.startswith("2 of 2 pairs")
    assert "rejected" in warned  # as the model gave it
    for images, captions in ((png(), "a cat"), ([png()], ["a", "b"])):
        with pytest.raises(InputError):
            metric.update(images, captions)


def test_its_states_are_of_types_that_mps_has() -> None:
    def moved(tensor: Any) -> Any:  # as torch's own refusal
        assert tensor.dtype != torch.float64
        return tensor

    metric = make_metric()
    metric.update([png()], ["a cat"])
    metric._apply(moved)
    assert {state.dtype for state in metric.metric_state.values()} == {torch.int64}
    assert metric.compute().item() == pytest.approx(expected(["a cat"]), abs=1e-9)
    assert (widest_float("mps"), widest_float("cpu")) == (torch.float32, torch.float64)


def test_copies_share_the_judge_and_collections_take_it() -> None:
    metric = make_metric()
    twin = copy.deepcopy(metric)
    assert twin.judge is metric.judge
    twin.update([png()], ["a cat"])
    assert (metric.judged.item(), twin.judged.item()) == (0, 1)
    both = torchmetrics.MetricCollection({"discode": metric})
    both.update([png()], ["a cat"])
    assert both.compute()["discode"].item() == pytest.approx(expected(["a cat"]))


def work(rank: int, folder: Path) -> None:
    """One of two processes: an unequal share of the pairs each."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2
    )
    metric = make_metric()
    mine = (CAPTIONS[:3], CAPTIONS[3:])[rank]
    metric.update([png()] * len(mine), mine)
    found = [metric.compute().item(), metric.judged.item(), metric.failed.item()]
    metric.reset()
    metric.update([png()], ["a cat"])
    found.append(metric.compute().item())
    (folder / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_two_processes_add_up(tmp_path: Path) -> None:
    make_metric()  # imports: the children inherit them
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work, args=(rank, tmp_path)) for rank in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
        assert child.exitcode == 0
    for rank in range(2):
        mean, judged, failed, again = json.loads((tmp_path / f"{rank}.json").read_text())
        assert mean == pytest.approx(expected(CAPTIONS), abs=1e-9)
        # outside compute() a process has its own counts again
        assert (judged, failed) == ((2, 1), (2, 0))[rank]
        assert again == pytest.approx(expected(["a cat"]))
