"""Captioners compared on the same images."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discode.bench import compare_systems, join_systems, plot_systems
from discode.bench._systems import JoinedScores, explain_join, label_systems
from discode.errors import InputError
from discode.stats import permutation_test_preference
from tests.helpers.instant import make_judge, to_folder
from tests.helpers.samples import png

Write = Callable[..., Path]
MADE = "discode:0.2.0|model:m|references:none|decoder:raw"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def file(name: str, rows: Sequence[Mapping[str, Any]], **more: Any) -> Path:
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(json.dumps({**more, **row}) + "\n" for row in rows))
        return path

    return file


def rows(scores: Mapping[str, float | None], signature: str = MADE) -> list[dict[str, Any]]:
    return [
        {"image": image, "caption": "a", "score": score, "signature": signature}
        for image, score in scores.items()
    ]


def joined(value: Any) -> JoinedScores:
    value = np.asarray(value, float)
    systems, images = value.shape
    return JoinedScores(
        tuple("abcdefgh"[:systems]), tuple(map(str, range(images))), value, ~np.isnan(value),
        (images,) * systems, (0,) * systems, "image", (MADE,),
    )  # fmt: skip


def test_files_are_joined_by_image(write: Write) -> None:
    a = write("a", rows({"1.jpg": 0.5, "2.jpg": 0.25, "3.jpg": None, "4.jpg": 1.0}))
    b = write("b", rows({"5.jpg": 0.5, "4.jpg": 0.5, "3.jpg": 0.5, "2.jpg": 0.75}))
    found = join_systems({"a": a, "b": b})
    assert found.images == ("1.jpg", "2.jpg", "3.jpg", "4.jpg", "5.jpg")
    expected = [[0.5, 0.25, np.nan, 1.0, np.nan], [np.nan, 0.75, 0.5, 0.5, 0.5]]
    assert np.array_equal(found.value, expected, equal_nan=True)
    assert found.shared.tolist() == [False, True, False, True, False]
    assert (found.rows, found.failed) == ((4, 4), (1, 0))
    assert found.signatures == (MADE,)
    assert explain_join(found) == [
        "2 images compared, joined by image",
        "left out: 2 images not in every file (a 1, b 1)",
        "rows without a score: a 1 (1 image left out, which favours a; --failed-as VALUE counts "
        "them)",
    ]
    done = compare_systems(found, resamples=100)
    assert (done.images, done.left_out) == (2, 3)


@pytest.mark.parametrize("column", ["image_id", "Image ID", "file_name"])
def test_images_are_found_under_every_name_of_their_column(write: Write, column: str) -> None:
    """The ids are row numbers, and the second file has other rows."""
    a = write("a", [{"id": i, column: i, "score": i / 10} for i in range(5)])
    b = write("b", [{"id": i, column: float(4 - i), "score": (4 - i) / 10} for i in range(5)])
    found = join_systems({"a": a, "b": b})
    assert found.by == "image"
    assert np.array_equal(*found.value)


def test_captions_of_an_image_count_once(write: Write) -> None:
    many = [row for score in (0.2, None, 0.6) for row in rows({"x.jpg": score})]
    a = write("a", [*many, *rows({"y.jpg": 0.5})])
    b = write("b", rows({"x.jpg": 0.1, "y.jpg": 0.5}), sentences=2)
    found = join_systems({"a": a, "b": b})
    assert explain_join(found)[-1] == "captions judged by their sentences: b 2"
    assert np.allclose(found.value, [[0.4, 0.5], [0.1, 0.5]])
    assert (found.rows, found.failed) == ((4, 2), (1, 0))
    assert compare_systems(found, resamples=10).pairs[0].difference == pytest.approx(0.15)
    assert explain_join(found)[-2].endswith("their mean (a 4 rows of 2, b 2 rows of 2 images)")


def test_one_system_has_its_mean_with_an_interval(write: Write) -> None:
    """The interval of a normal approximation over images, by its own formula, is close."""
    rng = np.random.default_rng(1)
    images = rng.normal(0.5, 0.1, 400)
    values = np.clip(images[:, None] + rng.normal(0, 0.02, (400, 3)), 0, 1)
    a = write("a", [row for n, few in enumerate(values.tolist()) for x in few
                    for row in rows({f"{n}.jpg": x})])  # fmt: skip
    done = compare_systems(join_systems({"a": a}), resamples=2000)
    (alone,) = done.systems
    error = values.mean(axis=1).std(ddof=1) / 20
    assert alone.mean == pytest.approx(values.mean())
    assert [alone.low, alone.high] == pytest.approx(
        [alone.mean - 1.96 * error, alone.mean + 1.96 * error], abs=0.1 * error
    )
    assert (done.pairs, done.groups, alone.rank) == ((), (("a",),), 1)
    with pytest.raises(InputError, match="score file"):
        join_systems({})


def test_rows_that_could_not_be_read_change_nothing_but_the_counts(write: Write) -> None:
    """They have no image and say "references:none", whatever the other rows have."""
    made = MADE.replace("none", "all")
    a = write("a", rows({"1.jpg": 0.5, "2.jpg": 0.25, "3.jpg": 0.75}, made), id="7")
    lost = {"id": "0", "image": None, "caption": None, "score": None, "signature": MADE}
    b = write("b", [lost, *rows({"3.jpg": 0.5, "2.jpg": 0.25, "1.jpg": 0.5}, made)], id="8")
    found = join_systems({"a": a, "b": b})
    assert (found.by, found.images) == ("image", ("1.jpg", "2.jpg", "3.jpg"))
    assert found.signatures == (made,)
    assert (found.rows, found.failed) == ((3, 4), (0, 1))
    assert found.value[1].tolist() == [0.5, 0.25, 0.5]
    assert any(line.startswith("rows without a score: b 1 (0 im") for line in explain_join(found))


def test_what_joins_files(write: Write, tmp_path: Path) -> None:
    a = write("a", rows({"1.jpg": 0.5, "2.jpg": 0.25, "7.jpg": 0.75}))
    b = write("b", rows({"/data/two/2.jpg": 0.5, "/data/two/1.jpg": 0.125, "/data/3.jpg": 0.5}))
    c = write("c", rows({"two/1.jpg": 0.5, "two/2.jpg": 1.0}))
    for files in ({"a": a, "b": b, "c": c}, {"b": b, "c": c, "a": a}):
        found = join_systems(files)  # a name is that of the path that ends in it
        shared = [image for image, both in zip(found.images, found.shared, strict=True) if both]
        assert sorted(shared) == ["/data/two/1.jpg", "/data/two/2.jpg"]
        values = found.value[list(files).index("a")][found.shared].tolist()
        assert dict(zip(shared, values, strict=True)) == {
            "/data/two/1.jpg": 0.5, "/data/two/2.jpg": 0.25,
        }  # fmt: skip
    same = write("same", rows({"x/1.jpg": 0.5, "y/1.jpg": 0.25}))
    for other in (a, c):  # "1.jpg" is either of them, "two/1.jpg" neither
        with pytest.raises(InputError, match="same begins with 'x/1"):
            join_systems({"same": same, "other": other})
    # an id is used where images have no names, and where it is asked for
    c = write("c", [{"id": str(n), "image": None, "score": n / 4} for n in range(3)])
    d = write("d", [{"id": n, "image": f"{n}.jpg", "score": n / 2} for n in range(3)])
    found = join_systems({"c": c, "d": c})
    assert (found.by, found.images) == ("id", ("0", "1", "2"))
    found = join_systems({"c": c, "d": d})
    assert (found.by, found.images) == ("id", ("0.jpg", "1.jpg", "2.jpg"))
    assert "no signatures" in explain_join(found)[-1]
    assert join_systems({"d": d, "e": d}).by == "image"
    assert join_systems({"d": d, "e": d}, by="id").by == "id"
    with pytest.raises(InputError, match="c: "):
        join_systems({"c": c, "d": d}, by="image")
    with pytest.raises(InputError, match="d: "):
        join_systems({"c": c, "d": write("d", [{"image": "x", "score": 1}])})
    nothing = write("nothing", [{"id": "1", "image": None, "score": None}])
    with pytest.raises(InputError, match="d begins with 'x', nothing begins with None"):
        join_systems({"d": d, "nothing": nothing})
    with pytest.raises(InputError, match="caption"):
        join_systems({"c": c, "d": d}, by="caption")


def test_captions_of_an_image_are_no_images_of_their_own(write: Write) -> None:
    """Ids join captions; what is resampled and swapped are images, as when these join them."""
    drawn = np.random.default_rng(0).normal(0.5, 0.1, (2, 12, 20)).tolist()
    a, b = (
        write(name, [{"id": f"{image}-{n}", "image": f"{image}.jpg", "score": value}
                     for image, values in enumerate(scores) for n, value in enumerate(values)])
        for name, scores in zip("ab", drawn, strict=True)
    )  # fmt: skip
    by_id, by_image = (join_systems({"a": a, "b": b}, by=key) for key in ("id", "image"))
    assert compare_systems(by_id, resamples=200) == compare_systems(by_image, resamples=200)
    other = write("c", [{"id": "3-1", "image": "4.jpg", "score": 0.5}])
    with pytest.raises(InputError, match=r"3-1.*4\.jpg"):
        join_systems({"a": a, "c": other}, by="id")


def test_every_format_and_a_folder_of_shards(write: Write, tmp_path: Path) -> None:
    scores = {f"{n}.jpg": n / 10 for n in range(6)} | {"6.jpg": None}
    a = write("a", rows(scores))
    table = tmp_path / "b.csv"
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows(scores)[0]))
        writer.writeheader()
        writer.writerows({**r, "score": "nan" if r["score"] is None else r["score"]}
                         for r in rows(scores))  # fmt: skip
    files: dict[str, Path] = {"a": a, "b": table}
    parts = list(rows(scores))
    write("run/part-00000-00000", parts[:4])
    write("run/part-00000-00001", parts[4:])
    write("run/.part-00000-00002.jsonl.x", [{"half": "written"}])
    files["run"] = tmp_path / "run"
    try:
        from pyarrow import Table, parquet
    except ImportError:
        pass
    else:
        parquet.write_table(Table.from_pylist(parts), tmp_path / "c.parquet")
        files["c"] = tmp_path / "c.parquet"
    found = join_systems(files)
    assert set(found.failed) == {1}
    for value in found.value[1:]:
        assert np.array_equal(value, found.value[0], equal_nan=True)


def test_other_judges_and_methods_are_refused(write: Write) -> None:
    scores: dict[str, float | None] = {"1.jpg": 0.5, "2.jpg": 0.25}
    two = [{**row, "method": name} for row in rows(scores) for name in ("raw", "discode")]
    files = {
        "a": write("a", rows(scores)),
        "b": write("b", rows(scores, MADE.replace("model:m", "model:other"))),
        "plain": write("plain", [{"image": image, "score": 1} for image in scores]),
        "some": write("some", [*rows(scores), *rows({"2.jpg": 1.0}, MADE.replace("none", "all"))]),
        "both": write("both", two),
    }
    files["none"], files["folder"] = files["a"].with_name("none.jsonl"), files["a"].parent
    cases: tuple[tuple[list[str], dict[str, Any], str], ...] = (
        (["a", "b"], {}, "a has model:m; b has model:other"),
        (["a", "plain"], {}, "plain has no signature"),
        (["a", "some"], {}, "a has nothing else; some has references:all"),
        (["a", "both"], {}, "both.jsonl has raw, discode"),
        (["both", "a"], {"method": "row"}, "both.jsonl has raw, discode"),
        (["a", "b"], {"column": "rating"}, "'rating'"),
        (["a", "none"], {}, "none.jsonl"),
        (["a", "folder"], {}, str(files["folder"])),
    )
    for names, options, place in cases:
        with pytest.raises(InputError, match=place) as error:
            join_systems({name: files[name] for name in names}, **options)
        assert "--join-by" not in str(error.value)  # files are scored again by discode score
    assert join_systems({"x": files["both"], "y": files["both"]}, method="raw").rows == (2, 2)


def test_signatures_are_compared_per_image(write: Write) -> None:
    """Both files hold rows of two judges; what counts is who scored each image."""

    def scored(name: str, big: int, images: int = 6) -> Path:
        judges = ["big" if n < big else "small" for n in range(images)]
        return write(name, [
            row for n, judge in enumerate(judges)
            for row in rows({f"{n}.jpg": 0.5 + 0.3 * (judge == "big")}, f"{MADE}|model:{judge}")
        ])  # fmt: skip

    a, b, same, more = scored("a", 2), scored("b", 4), scored("same", 4), scored("more", 4, 9)
    with pytest.raises(InputError, match=r"on 2\.jpg a has model:small; b .*big \(2 of 6 "):
        join_systems({"a": a, "b": b})
    with pytest.raises(InputError, match="same and a"):
        join_systems({"same": same, "b": b, "a": a})
    found = join_systems({"b": b, "same": same, "more": more})
    assert len(found.signatures) == 2
    assert any("2 signatures" in line for line in explain_join(found))
    alone = write("alone", [*rows({"5.jpg": 0.5}, f"{MADE}|model:small"), *rows({"x.jpg": 1.0})])
    assert join_systems({"more": more, "alone": alone}).signatures == (f"{MADE}|model:small",)


def test_failed_rows_are_named_in_the_verdict_or_counted(write: Write) -> None:
    """The captioner that leaves the ten hardest of 60 images out wins on the others."""
    rng = np.random.default_rng(0)
    ours = 0.3 + 0.6 * np.sort(rng.random(60))
    theirs = [None if n < 10 else min(1.0, x + 0.02 * rng.random()) for n, x in enumerate(ours)]
    files = {
        "a": write("a", rows({f"{n}.jpg": x for n, x in enumerate(ours.tolist())})),
        "b": write("b", rows({f"{n}.jpg": x for n, x in enumerate(theirs)})),
    }
    (left_out,) = compare_systems(join_systems(files), resamples=999).pairs
    assert left_out.adjusted < 0.05
    assert left_out.verdict() == "b scores higher than a, leaving out 10 failed rows of b"
    assert (left_out.failed_a, left_out.failed_b) == (0, 10)
    found = join_systems(files, failed_as=0)
    (counted,) = compare_systems(found, resamples=999).pairs
    assert counted.difference == pytest.approx(np.mean(ours - [x or 0.0 for x in theirs]))
    assert counted.verdict() == "a scores higher than b"
    assert "rows without a score: b 10 (counted as 0)" in explain_join(found)
    for failed, named in ((4, True), (5, False)):  # 10 of b are more than twice as many, or not
        some = {f"{n}.jpg": None if n < failed else 0.2 + n / 100 for n in range(20)}
        both = files | {"a": write("c", rows(some))}
        (each,) = compare_systems(join_systems(both), resamples=99).pairs
        assert ("10 failed rows of b and 4 of a" in each.verdict()) == named
        assert any("favours b" in line for line in explain_join(join_systems(both))) == named
    with pytest.raises(InputError, match="failed_as=nan"):
        join_systems(files, failed_as=math.nan)
    # a failed caption of an image with others is one of those that are averaged
    mixed = write("mixed", [*rows({"x.jpg": 0.5}), *rows({"x.jpg": None}), *rows({"y.jpg": 1.0})])
    assert join_systems({"m": mixed, "n": mixed}, failed_as=0.1).value[0].tolist() == [0.3, 1.0]


def test_names_of_systems(tmp_path: Path) -> None:
    assert list(label_systems(["blip=1.jsonl", "b.csv"])) == ["blip", "b"]
    (tmp_path / "v1.5").mkdir()
    assert list(label_systems([str(tmp_path / "v1.5"), "v2.csv"])) == ["v1.5", "v2"]
    for same in (["a=1.jsonl", "a=2.jsonl"], ["a.jsonl", "a.jsonl"]):
        with pytest.raises(InputError, match="'a'"):
            label_systems(same)


def test_p_is_that_of_every_possible_swap() -> None:
    scipy_stats = pytest.importorskip("scipy.stats", reason="the oracle wants discode-eval[dev]")
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.04, 0.1):
        a, b = rng.random(9), rng.random(9)
        a = np.clip(b + shift + rng.normal(0, 0.08, 9), 0, 1)
        exact = scipy_stats.permutation_test(
            (a, b), lambda x, y, axis: np.mean(x - y, axis=axis), permutation_type="samples",
            n_resamples=np.inf, vectorized=True,
        )  # fmt: skip
        (one,) = compare_systems(joined([a, b]), resamples=20_000).pairs
        assert one.difference == pytest.approx(exact.statistic)
        assert one.p == pytest.approx(exact.pvalue, abs=0.012)
        assert one.p == one.adjusted
        (back,) = compare_systems(joined([b, a]), resamples=20_000).pairs
        assert (back.difference, back.low, back.high, back.above, back.p) == pytest.approx(
            (-one.difference, -one.high, -one.low, one.below, one.p)
        )


@pytest.mark.parametrize("digits", [None, 1])
def test_equal_systems_seldom_differ(digits: int | None) -> None:
    """5 % of 400 comparisons of equal systems are 20; the chance of more than 34 is 0.1 %."""
    rng = np.random.default_rng(5)
    p, missed = [], 0
    for seed in range(400):
        hard = rng.beta(2, 2, 40)  # images differ, and both systems find the same ones hard
        scores = np.clip(hard + rng.exponential(0.15, (2, 40)) - 0.15, 0, 1)
        if digits is not None:
            scores = scores.round(digits)
        p.append(permutation_test_preference(*scores, resamples=199, seed=seed).p)
        if digits is None and seed % 4 == 0:
            (one,) = compare_systems(joined(scores), resamples=199, seed=seed).pairs
            missed += not one.low <= 0 <= one.high
    assert 8 <= sum(value <= 0.05 for value in p) <= 34
    assert missed <= 14  # of 100 intervals of 95 %


def test_groups_and_ranks() -> None:
    rng = np.random.default_rng(1)
    base = rng.random(100)
    value = np.stack([base + shift + rng.normal(0, 0.05, 100) for shift in (0, 0.2, 0.2, -0.3)])
    done = compare_systems(joined(value), resamples=999)
    assert [set(group) for group in done.groups] == [{"b", "c"}, {"a"}, {"d"}]
    assert {system.name: system.rank for system in done.systems} == {"b": 1, "c": 1, "a": 2, "d": 3}
    assert [system.mean for system in done.systems] == pytest.approx(
        sorted(value.mean(axis=1))[::-1]
    )
    assert len(done.pairs) == 6
    assert all(pair.adjusted >= pair.p for pair in done.pairs)
    found = {(pair.a, pair.b): pair.verdict() for pair in done.pairs}
    assert found["a", "b"] == "b scores higher than a"
    assert found["b", "c"] == "no difference between b and c was shown"


def test_no_difference_at_all_and_too_few_images() -> None:
    (one,) = compare_systems(joined([[0.5, 0.25], [0.5, 0.25]]), resamples=99).pairs
    assert (one.difference, one.p, one.above, one.standardised) == (0, 1, 0, 0)
    assert math.isnan(one.low)  # of two images there is no interval
    (one,) = compare_systems(joined([[0.5, 0.25], [0.25, 0.0]]), resamples=99).pairs
    assert math.isnan(one.standardised)
    with pytest.raises(InputError, match="1 of 2 images have a score of every system"):
        compare_systems(joined([[0.5, 0.25], [0.25, np.nan]]))


def test_a_run_that_is_not_finished_is_refused(write: Write, tmp_path: Path) -> None:
    table = [{"image": f"{n}.png", "caption": f"c {n}"} for n in range(12)]
    source = [write("1", table), write("2", []), write("3", table)]
    for number in range(12):
        (tmp_path / f"{number}.png").write_bytes(png())
    judge, run = make_judge(), tmp_path / "run"
    to_folder(judge, source, run, images=tmp_path, shard_size=4)
    assert join_systems({"a": run, "b": run}).value.shape == (2, 12)  # a file may have no rows
    for missing in ("part-00000-00001", "part-00000-00002", "part-00002-*"):
        partial = tmp_path / "partial"
        shutil.copytree(run, partial)
        for file in [*partial.glob(f"{missing}.jsonl"), *partial.glob(f"_done/{missing}.json")]:
            file.unlink()
        with pytest.raises(InputError, match="partial is not finished: 1 of 3"):
            join_systems({"a": partial, "b": partial})
        to_folder(judge, source, partial, images=tmp_path, shard_size=4)
        assert join_systems({"a": run, "b": partial}).value.shape == (2, 12)
        shutil.rmtree(partial)
    for share in ("0/2", "1/2"):
        if share == "1/2":
            with pytest.raises(InputError, match="is not finished"):
                join_systems({"a": partial, "b": run})
        to_folder(judge, source, partial, images=tmp_path, shard_size=4, shard=share)
    assert join_systems({"a": partial, "b": run}).value.shape == (2, 12)


@pytest.mark.parametrize("systems", [2, 4])
def test_a_plot_of_systems(systems: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="plots want discode-eval[plot]")
    found = joined(np.random.default_rng(0).random((systems, 30)))
    done = compare_systems(found, resamples=99)
    plot_systems(done, found, tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="plots are written"):
        plot_systems(done, found, tmp_path / "a.txt")
