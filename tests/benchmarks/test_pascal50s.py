from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from discode.benchmarks import Preferences, load_benchmark
from discode.errors import InputError
from tests.helpers import mini_benchmarks as mini

scipy = pytest.importorskip("scipy.io", reason="MATLAB files want discode-eval[bench]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return mini.pascal50s(tmp_path)


def test_every_draw_has_its_own_references_and_choices(folder: Path) -> None:
    made = load_benchmark("pascal50s", folder, {"draws": "3"})
    judged = made.judgments
    assert isinstance(judged, Preferences)
    assert len(judged) == 9
    assert judged.chosen.tolist() == [1, 0, 1] * 3
    assert judged.category == ("HC", "MM", "MM") * 3
    assert len(made.pairs) == 5 * 3  # "a dog" of a.jpg is in two choices
    assert made.repeats().tolist() == [1, 2, 1, 1, 1] * 3
    assert made.image.tolist() == [0, 0, 0, 1, 1] * 3
    for pair in made.pairs:
        letter = "r" if "a.jpg" in str(pair.image) else "s"
        assert len(set(pair.references)) == 5
        assert set(pair.references) <= {f"{letter}{i}" for i in range(50)}
    draws = [{p.references for p in made.pairs[i : i + 5]} for i in (0, 5, 10)]
    assert [len(draw) for draw in draws] == [2, 2, 2]  # the same for all captions of an image
    assert len(set.union(*draws)) == 6
    assert len({pair.id for pair in made.pairs}) == 15


def test_draws_follow_the_seed(folder: Path) -> None:
    one, same, other = (
        load_benchmark("pascal50s", folder, {"seed": seed}).pairs for seed in ("1", "1", "2")
    )
    assert one == same
    assert one != other
    # The first draws are those of a shorter run.
    assert load_benchmark("pascal50s", folder, {"seed": "1", "draws": "2"}).pairs == one[:10]


def test_draws_are_uniform(folder: Path) -> None:
    made = load_benchmark("pascal50s", folder, {"draws": "400"})
    seen = {(pair.id.rpartition("@")[2], pair.references) for pair in made.pairs}
    counts = np.zeros(50)
    for _, references in seen:
        for reference in references:
            counts[int(reference[1:])] += 1
    assert counts.sum() == 400 * 2 * 5
    chi2 = ((counts - 80) ** 2 / 80).sum()
    assert chi2 < 85  # 49 degrees of freedom: 85 is the 0.999 quantile


def test_given_references(folder: Path) -> None:
    (folder / "pascal50S.mat").unlink()
    made = load_benchmark("pascal50s", folder, {"references": "given"})
    assert len(made.judgments) == 3
    assert made.options == {"references": "given", "labels": "consensus"}
    assert made.pairs[0].references == ("r0", "r1", "r2", "r3", "r4")
    with pytest.raises(InputError, match=r"pascal50S.mat not in .*vrama91/cider-matlab"):
        load_benchmark("pascal50s", folder)


def test_votes(folder: Path) -> None:
    (folder / "pascal_50s.json").unlink()
    made = load_benchmark("pascal50s", folder, {"labels": "votes", "draws": "1"})
    assert isinstance(made.judgments, Preferences)
    assert made.judgments.chosen.tolist() == [0, 0, 1]
    assert made.judgments.category == ("HC", "MM", "MM")
    assert made.pairs[0].caption == "one dog"
    with pytest.raises(InputError, match="give references=draw or labels=consensus"):
        load_benchmark("pascal50s", folder, {"labels": "votes", "references": "given"})


def test_broken_matlab_files(folder: Path) -> None:
    whole = (folder / "pascal50S.mat").read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"text"):
        (folder / "pascal50S.mat").write_bytes(content)
        with pytest.raises(InputError, match=r"pascal50S.mat is not a complete MATLAB file"):
            load_benchmark("pascal50s", folder)
    scipy.savemat(folder / "pascal50S.mat", {"other": 1})
    with pytest.raises(InputError, match="no variable 'refs'"):
        load_benchmark("pascal50s", folder)
    few = np.array([[("a.jpg", np.array(["x", "y"], object))]], [("image", "O"), ("sent", "O")])
    scipy.savemat(folder / "pascal50S.mat", {"refs": few})
    with pytest.raises(InputError, match="image 0: sent"):
        load_benchmark("pascal50s", folder)


def test_an_image_without_references_and_votes_without_a_majority(folder: Path) -> None:
    other = mini.changed(mini.PASCAL, lambda c: c["MM"][1].update(image="q.jpg"))
    mini.write(folder / "pascal_50s.json", other)
    with pytest.raises(InputError, match=r"q\.jpg"):
        load_benchmark("pascal50s", folder)
    kind = [("name", "O"), ("sent1", "O"), ("sent2", "O")]
    scipy.savemat(
        folder / "pair_pascal.mat",
        {
            "new_input": np.array([[("a.jpg", "x", "y")]], kind),
            "category": np.array([[1]]),
            "result": np.array([[(np.array([[1, -1]]),)]], [("result", "O")]),
        },
    )
    with pytest.raises(InputError, match="choice 0"):
        load_benchmark("pascal50s", folder, {"labels": "votes"})
