# SPDX-License-Identifier: Apache-2.0
"""tilewright.plot: what its pictures have, and that the tool has them drawn."""

import copy
import json
import math
import os
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest
from conftest import CLI
from tilewright import plot

SVG = "{http://www.w3.org/2000/svg}"


def row_range(first, last, microseconds, candidate, measured=True):
    return {"first": first, "last": last, "candidate": candidate, "microseconds": microseconds, "measured": measured}


ROWS = {
    "problem": 'gemm <x> & "w"',
    "device": "A device",
    "arch": "sm_90a",
    "version": "0.1.0",
    "rows_name": "m",
    "ranges": [
        row_range(1, 8, 30, "gemv unit=32 lanes=4"),
        row_range(9, 64, 34, "mma block_m=16 stages=3"),
        row_range(65, 128, 40, "mma block_m=32 stages=3"),
        row_range(129, 4096, 800, "mma block_m=16 stages=3"),
        row_range(4097, None, 1500, "mma block_m=64 stages=3", measured=False),
    ],
    "tbps": 4.65,
    "tflops": 0,
    "roofline": [{"m": m, "microseconds": us, "name": "memory"} for m, us in ((1, 20), (500, 20), (8192, 700))],
    "measured": [],
    "rivals": [],
}
BENCH = {
    "problem": "gemm x=f16 w=q4_0 y=f16 m=64 n=4096 k=4096",
    "device": "A device",
    "arch": "sm_90a",
    "version": "0.1.0",
    "rows_name": "m",
    "points": [
        {"m": m, "microseconds": us, "gbps": 900.0, "tflops": 1.5, "of_roofline": share, "kernel": f"gemv mt={m}"}
        for m, us, share in ((1, 10.0, 0.9), (8, 12.0, 0.8), (64, 40.0, 0.5))
    ],
}


def histogram(values, clip, width=1 / 256):
    counts = {"negative": [0] * 2048, "positive": [0] * 2048}
    for value in values:
        counts["negative" if value < 0 else "positive"][min(int(abs(value) / width), 2047)] += 1
    return {
        "tensor": 'a <b> & "c"',
        "how": "values",
        "count": len(values),
        "min": min(values),
        "max": max(values),
        "clip": list(clip),
        "bin_width": width,
        **counts,
    }


def results(*rows):
    row = {
        "m": 1024,
        "n": 6144,
        "k": 4096,
        "us": 10.0,
        "value": 1.05,
        "target": 0.97,
        "target_text": ">= 0.97x",
        "mark": "pass",
        "at_most": False,
        "rival_us": 10.5,
        "note": "",
    }
    return {
        "environment": {"device": "A device", "driver": "580", "commit": "0123456789", "date": "2026-11-23T07:43:36Z"},
        "results": {"gemm": {"rows": [{**row, **changed} for changed in rows]}},
    }


def texts(picture):
    return ["".join(e.itertext()) for e in xml.fromstring(picture.bytes()).iter(f"{SVG}text")]


def lines(picture, prefix, axes=0):
    return [line for line in picture.figure.axes[axes].lines if (line.get_gid() or "").startswith(prefix)]


def hint(picture, gid):
    group = next(e for e in xml.fromstring(picture.bytes()).iter(f"{SVG}g") if e.get("id") == gid)
    return group.find(f"{SVG}title").text


# ---- every picture


@pytest.mark.parametrize(
    "data",
    [ROWS, BENCH, histogram([-1, 0, 1], (-0.5, 0.5)), results({"label": "bf16"})],
    ids=["rows", "bench", "histogram", "results"],
)
class TestEveryPicture:
    def test_has_a_title_a_description_and_the_readers_colours(self, data):
        document = xml.fromstring(plot.draw([copy.deepcopy(data)]).bytes())
        assert document.get("role") == "img" and document.get("aria-labelledby") == "title description"
        title = document.find(f"{SVG}title")
        assert title.get("id") == "title"
        assert title.text == data.get("problem", data.get("tensor", "Matrix products against their targets"))
        assert document.find(f"{SVG}desc").text
        assert "prefers-color-scheme: dark" in document.find(f"{SVG}style").text

    def test_has_axes_with_numbers_a_reference_line_and_a_legend(self, data):
        picture = plot.draw([copy.deepcopy(data)])
        picture.bytes()
        for axes in picture.figure.axes:
            assert axes.get_ylabel() or [label.get_text() for label in axes.get_yticklabels()]
            assert any(line.get_linestyle() == "--" for line in axes.lines)
        last = picture.figure.axes[-1]
        assert last.get_xlabel()
        assert sum(any(c.isdigit() for c in label.get_text()) for label in last.get_xticklabels()) >= 2
        assert picture.figure.legends

    def test_is_the_same_each_time(self, data):
        first, second = (plot.draw([copy.deepcopy(data)]).bytes() for _ in range(2))
        assert first == second
        assert plot.draw([copy.deepcopy(data)]).bytes("png").startswith(b"\x89PNG")


def test_a_users_matplotlibrc_changes_nothing():
    import matplotlib

    before = plot.draw([BENCH]).bytes()
    with matplotlib.rc_context({"font.size": 40, "svg.fonttype": "path", "axes.grid": False}):
        assert plot.draw([BENCH]).bytes() == before


# ---- rows


def test_rows_a_segment_for_each_range_in_a_colour_for_each_kernel():
    segments = lines(plot.draw([ROWS]), "range-")
    assert len(segments) == 5
    colors = [segment.get_color() for segment in segments]
    assert colors[1] == colors[3]  # one kernel
    assert len(set(colors)) == 4
    for i, segment in enumerate(segments):
        (first, last), (before, after) = segment.get_data()
        assert last > first and after >= before  # to more rows, and upwards, as these times grow
        assert segment.get_linestyle() == ("--" if i == 4 else "-")
        if i:
            assert segments[i - 1].get_xdata()[1] == first  # without a gap
    assert segments[-1].get_xdata()[1] == 8192


def test_rows_predicted_times_are_hollow_and_measured_ones_filled():
    for i, segment in enumerate(lines(plot.draw([ROWS]), "range-")):
        assert (segment.get_markerfacecolor() == "none") == (i == 4)


def test_rows_the_axes_are_logarithmic():
    axes = plot.draw([ROWS]).figure.axes[0]
    # 8 of 8192 rows are three of thirteen octaves.
    left, third, right = (axes.transData.transform((m, 100))[0] for m in (1, 8, 8192))
    assert math.isclose((third - left) / (right - left), 3 / 13, rel_tol=1e-9)
    assert axes.get_yscale() == "log"


def test_rows_the_legend_names_each_kernel_once_by_what_tells_it_apart():
    picture = plot.draw([ROWS])
    names = [text.get_text() for text in picture.figure.legends[0].get_texts()]
    assert names == ["gemv", "mma block_m=16", "mma block_m=32", "mma block_m=64"]
    assert plot.short_names(["a p=1 q=1 r=1", "a p=1 q=2 r=1", "a p=1 q=2 r=2"]) == [
        "a q=1 r=1",
        "a q=2 r=1",
        "a q=2 r=2",
    ]
    assert plot.short_names(["a p=1", "a p=1 schedule=1", "b p=1"]) == ["a", "a schedule=1", "b"]
    assert plot.short_names([]) == []


def test_rows_the_roofline_and_the_points_of_a_benchmark_are_drawn_and_explained():
    assert not any("benchmark" in text for text in texts(plot.draw([ROWS])))
    data = copy.deepcopy(ROWS)
    data["measured"] = [{"m": m, "microseconds": us, "name": "mma"} for m, us in ((4, 31), (100, 39))]
    data["rivals"] = [{"m": 4, "microseconds": 33, "name": "cuBLASLt <bf16>"}]
    picture = plot.draw([data])
    assert [len(lines(picture, part)) for part in ("roofline", "measured-", "rivals-")] == [1, 2, 1]
    assert hint(picture, "rivals-0") == "m=4: 33.00 us, cuBLASLt <bf16>"
    assert hint(picture, "range-0") == "m 1 to 8: 30.00 us, gemv unit=32 lanes=4"
    assert hint(picture, "range-4") == "m 4097 and more: 1500 us (predicted), mma block_m=64 stages=3"
    shown = texts(picture)
    assert "roofline: 4.65 TB/s" in shown
    assert "rivals, measured by the benchmark" in shown
    assert "A device, sm_90a, tilewright 0.1.0" in "\n".join(shown)
    assert "5 ranges of rows, served by 4 kernels" in picture.description


@pytest.mark.parametrize("scale", [1e-2, 1.0, 3.7, 1e5])
def test_rows_every_time_is_within_the_axes(scale):
    data = copy.deepcopy(ROWS)
    for part in ("ranges", "roofline"):
        for one in data[part]:
            one["microseconds"] *= scale
    del data["ranges"][1 if scale == 3.7 else 5 :]
    picture = plot.draw([data])
    least, most = picture.figure.axes[0].get_ylim()
    for segment in lines(picture, "range-") + lines(picture, "roofline"):
        assert all(least < us < most for us in segment.get_ydata())


# ---- bench


def test_bench_has_times_beside_the_roofline_and_shares_of_it():
    picture = plot.draw([BENCH])
    (time,), (roofline,) = lines(picture, "time"), lines(picture, "roofline")
    assert list(time.get_ydata()) == [10, 12, 40]
    assert list(roofline.get_ydata()) == pytest.approx([9, 9.6, 20])
    (share,) = [line for line in lines(picture, "share", axes=1) if line.get_gid() == "share"]
    assert list(share.get_ydata()) == pytest.approx([90, 80, 50])
    assert hint(picture, "point-1") == "m=8: 12.00 us, 900.0 GB/s, 1.5 TFLOP/s, 80 % of the roofline, gemv mt=8"


def test_bench_of_one_number_of_rows():
    assert plot.draw([{**BENCH, "points": BENCH["points"][:1]}]).bytes()


# ---- histogram


def test_histogram_has_all_values_the_clipped_ones_apart_and_a_line_at_each_end():
    values = [i / 100 for i in range(-500, 501)]
    edges, inside, outside = plot.histogram_columns(histogram(values, (-2.5, 2.5)))
    assert len(edges) == len(inside) + 1
    assert sum(inside) + sum(outside) == len(values)
    assert abs(sum(inside) - sum(outside)) <= 4
    assert all(a + b > 0 for a, b in zip(inside, outside))
    picture = plot.draw([histogram(values, (-2.5, 2.5))])
    assert [line.get_xdata()[0] for line in lines(picture, "clip-")] == [-2.5, 2.5]
    assert "range: -2.5 to 2.5" in texts(picture)
    _, inside, outside = plot.histogram_columns(histogram(values, (-5, 5)))
    assert not any(outside) and all(inside)
    _, inside, outside = plot.histogram_columns(histogram([0.0], (0, 0)))
    assert sum(n > 0 for n in inside) == 1 and not any(outside)


# ---- results of the benchmarks


def test_results_have_a_point_for_each_row_and_a_mark_for_each_target():
    picture = plot.draw(
        [
            results(
                {"label": "bf16"},
                {"label": "bf16", "m": 4096, "value": 0.5, "mark": "SHORT"},
                {"label": "q4_0 <x> f16", "value": 0.9, "target": 0, "mark": "-"},
                {"label": "unmeasured", "us": 0, "value": 0},
            )
        ]
    )
    points = lines(picture, "row-")
    assert [(line.get_xdata()[0], line.get_color()) for line in points] == [
        (1.05, plot.PASS),
        (0.5, plot.SHORT),
        (0.9, plot.NO_TARGET),
    ]
    marks = [line for line in picture.figure.axes[0].lines if list(line.get_xdata()) == [0.97, 0.97]]
    assert len(marks) == 1
    assert hint(picture, "row-0") == "bf16, m=1024 6144x4096: 1.05x, target >= 0.97x"
    shown = "\n".join(texts(picture))
    assert "A device, driver 580, commit 0123456 (2026-11-23)" in shown
    assert "without a result: unmeasured" in shown
    assert "q4_0 <x> f16" in shown


def test_a_row_counts_in_the_first_result_that_has_it():
    rows, where = plot.read_results(
        [results({"label": "a", "us": 0}), results({"label": "a", "value": 2}), results({"label": "a", "value": 3})]
    )
    assert [row["value"] for row in rows] == [2]
    assert where == "A device, driver 580, commit 0123456 (2026-11-23)"


# ---- the command


def run(*words, **options):
    environment = {**os.environ, "PYTHONPATH": str(Path(plot.__file__).parents[1])}
    return subprocess.run(
        [sys.executable, "-m", "tilewright.plot", *words], capture_output=True, env=environment, **options
    )


def test_command(tmp_path):
    data = tmp_path / "bench.json"
    data.write_text(json.dumps(BENCH))
    assert run(data).stdout == run("-", input=data.read_bytes()).stdout == plot.draw([BENCH]).bytes()
    assert run(data, "-o", tmp_path / "bench.png").returncode == 0
    assert (tmp_path / "bench.png").read_bytes().startswith(b"\x89PNG")
    for text in ("{", "{}", "[]", json.dumps({**ROWS, "ranges": []})):
        data.write_text(text)
        done = run(data)
        assert done.returncode == 1
        assert done.stderr.startswith(b"tilewright.plot: error: ") and b"Traceback" not in done.stderr, text
    assert run(tmp_path / "none.json").returncode == 1


@pytest.mark.skipif(CLI is None, reason="needs the tool")
def test_the_tool_has_its_pictures_drawn_here(tmp_path):
    file = tmp_path / "bench.svg"
    problem = "gemm x=q8_1 w=q4_0 y=f32 m=1 n=64 k=256"
    done = subprocess.run(
        [CLI, "bench", "--device", "cpu", "--m", "1,4", "--json", "--svg", file, problem],
        env={**os.environ, "TILEWRIGHT_PYTHON": sys.executable, "TILEWRIGHT_CACHE": ":memory:"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert file.read_bytes() == plot.draw([json.loads(done.stdout)]).bytes()
