# SPDX-License-Identifier: Apache-2.0
"""python -m tilewright.plot FILE... [-o PICTURE]: draws the tool's JSON as SVG, or as PNG by the picture's name.

FILE is what `tilewright plot --json` or `tilewright bench --json` prints, what `tilewright calibrate --plot X.json`
writes, or results of the benchmarks (`tilewright_bench gemm` or `conv`: several files make one picture, each row from
the first file that has it); - is standard input. The same data and matplotlib give the same bytes.

Needs matplotlib: pip install 'tilewright[plots]'. Importing this module does not."""

from __future__ import annotations

import argparse
import colorsys
import io
import json
import math
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

INK, GRID, PASS, NO_TARGET, SHORT, CLIPPED = "#1f2328", "#d0d7de", "#0969da", "#9ecbff", "#9198a1", "#bf3989"
EDGE = {"markeredgecolor": INK, "markeredgewidth": 0.3}
WIDTH = 9.6  # of every picture, in inches
FONTS = ["DejaVu Sans", "Verdana", "Arial"]  # the first comes with matplotlib
STYLE = {
    "font.sans-serif": FONTS,
    "svg.fonttype": "none",  # texts stay texts: they can be searched and are smaller
    "svg.hashsalt": "tilewright",  # names of elements repeat from run to run
    "font.size": 9.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": GRID,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}
# Pictures follow the reader's colour scheme; the turn of the colour wheel keeps the hues.
CSS = (
    f"text {{ font-family: {', '.join(map(repr, FONTS))}, sans-serif }} "
    "@media (prefers-color-scheme: dark) { svg { filter: invert(0.93) hue-rotate(180deg) } }"
)


@dataclass
class Picture:
    figure: Any
    title: str
    description: str
    hints: dict[str, str] = field(default_factory=dict)  # tooltips, by the element's gid

    def bytes(self, kind: str = "svg") -> bytes:
        out = io.BytesIO()
        with style():
            metadata = {"Date": None, "Creator": None} if kind == "svg" else {"Software": None}
            self.figure.savefig(out, format=kind, metadata=metadata, dpi=120)
        return self._explained(out.getvalue().decode()).encode() if kind == "svg" else out.getvalue()

    def _explained(self, svg: str) -> str:
        """Shortens the SVG, and adds tooltips and texts for screen readers."""
        svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), svg)
        svg = svg.replace(f"font-family: {', '.join(map(repr, FONTS))}, sans-serif; ", "")
        head = (
            f' role="img" aria-labelledby="title description"><title id="title">{escape(self.title)}</title>'
            f'<desc id="description">{escape(self.description)}</desc><style>{CSS}</style>'
        )
        svg = re.sub(r"<svg [^>]*(>)", lambda tag: tag[0][:-1] + head, svg, count=1)
        return re.sub(
            r'<g id="([\w-]+)">',
            lambda tag: tag[0] + (f"<title>{escape(self.hints[tag[1]])}</title>" if tag[1] in self.hints else ""),
            svg,
        )


def style() -> Any:
    """A context in which only STYLE, and no matplotlibrc, decides how a picture looks."""
    import matplotlib

    return matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg", **STYLE})


def new_figure(title: str, subtitle: str, height: float, rows: int = 1, **options: Any) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    figure.suptitle(f"{title}\n{subtitle}", x=0.01, ha="left", fontsize=9.5)
    return figure, figure.subplots(rows, 1, **options)


def plain(value: float, _: Any = None) -> str:
    return f"{value:g}"


def microseconds(value: float) -> str:
    return f"{value:.2f} us" if value < 100 else f"{value:.0f} us" if value < 1e5 else f"{value / 1e3:.1f} ms"


def produced(data: dict[str, Any]) -> str:
    """Where numbers come from, for the picture's second line."""
    version = f", tilewright {data['version']}" if "version" in data else ""
    return f"{data['device']}, {data['arch']}{version}"


def rows_axis(axes: Any, name: str, least: int, most: int) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xlim(least / 1.1, most * 1.1)
    axes.set_xticks([2**i for i in range(int(math.log2(least)), math.ceil(math.log2(most)) + 1)])
    axes.xaxis.set_major_formatter(plain)
    axes.set_xlabel(f"rows ({name})")


def time_axis(axes: Any, values: Sequence[float]) -> None:
    """Logarithmic; begins and ends at a tick. Ticks are 1, 2 and 5 times a power of ten."""
    ticks = [step * 10.0**decade for decade in range(-3, 10) for step in (1, 2, 5)]
    first = max([i for i, tick in enumerate(ticks) if tick < min(values)], default=0)
    last = min([i for i, tick in enumerate(ticks) if tick > max(values)], default=len(ticks) - 1)
    axes.set_yscale("log")
    axes.set_ylim(ticks[first], ticks[last])
    axes.set_yticks(ticks[first : last + 1])
    axes.yaxis.set_major_formatter(plain)
    axes.minorticks_off()
    axes.set_ylabel("time per launch (µs)")


# ---- tilewright plot --json


def short_names(candidates: Sequence[str]) -> list[str]:
    """Each candidate's family, and the first knobs that distinguish it within the family."""
    knobs = [dict(word.split("=", 1) for word in text.split()[1:]) for text in candidates]
    names = [text.split()[0] for text in candidates]
    for family in set(names):
        members = [i for i, text in enumerate(candidates) if text.split()[0] == family]
        for knob in dict.fromkeys(knob for i in members for knob in knobs[i]):
            if len({names[i] for i in members}) == len(members):
                break
            if len({knobs[i].get(knob) for i in members}) > 1:
                for i in members:
                    names[i] += f" {knob}={knobs[i][knob]}" if knob in knobs[i] else ""
    return names


def color(index: int) -> tuple[float, float, float]:
    """Hues a golden angle apart: however many there are, neighbours differ. Neither light nor dark."""
    return colorsys.hls_to_rgb((210 + 137.508 * index) % 360 / 360, 0.48, 0.7)


def rows_text(row_range: dict[str, Any]) -> str:
    first, last = row_range["first"], row_range["last"]
    return f"{first} and more" if last is None else str(first) if first == last else f"{first} to {last}"


def draw_rows(data: dict[str, Any]) -> Picture:
    """Time over the number of rows: which kernel serves which rows, and what bounds them."""
    from matplotlib.lines import Line2D

    ranges, name, most = data["ranges"], data["rows_name"], data["roofline"][-1][data["rows_name"]]
    candidates = list(dict.fromkeys(r["candidate"] for r in ranges))  # in the order in which they first serve
    names = short_names(candidates)
    columns = max(1, int(125 / (8 + max(map(len, names)))))
    figure, axes = new_figure(data["problem"], produced(data), 5.2 + 0.17 * (5 + math.ceil(len(names) / columns)))
    rows_axis(axes, name, 1, most)
    time_axis(
        axes, [p["microseconds"] for part in (ranges, data["roofline"], data["measured"], data["rivals"]) for p in part]
    )

    rates = f"{data['tbps']:g} TB/s" + (f", {data['tflops']:.0f} TFLOP/s" if data["tflops"] > 0 else "")
    marks = axes.plot(
        [p[name] for p in data["roofline"]],
        [p["microseconds"] for p in data["roofline"]],
        color=INK,
        linestyle=(0, (6, 3)),
        gid="roofline",
        label=f"roofline: {rates}",
    )
    hints = {"roofline": f"roofline: {rates}"}
    before = ranges[0]["first"], ranges[0]["microseconds"]
    for i, r in enumerate(ranges):
        hue = color(candidates.index(r["candidate"]))
        here = (most if r["last"] is None else r["last"]), r["microseconds"]
        axes.plot(
            *zip(before, here),
            color=hue,
            linewidth=2,
            linestyle="-" if r["measured"] else (0, (1.5, 1.5)),
            marker="o",
            markevery=[1],
            markersize=4,
            markerfacecolor=hue if r["measured"] else "none",
            gid=f"range-{i}",
        )
        predicted = "" if r["measured"] else " (predicted)"
        hints[f"range-{i}"] = f"{name} {rows_text(r)}: {microseconds(r['microseconds'])}{predicted}, {r['candidate']}"
        before = here
    for part, marker, label in (
        ("measured", "o", "measured by the benchmark"),
        ("rivals", "x", "rivals, measured by the benchmark"),
    ):
        for i, p in enumerate(data[part]):
            gid = f"{part}-{i}"
            axes.plot(p[name], p["microseconds"], marker, color=INK, markersize=6, markerfacecolor="none", gid=gid)
            hints[gid] = f"{name}={p[name]}: {microseconds(p['microseconds'])}, {p['name']}"
        if data[part]:
            marks.append(
                Line2D([], [], color=INK, marker=marker, markerfacecolor="none", linestyle="none", label=label)
            )
    for line, face, label in (
        ("-", SHORT, "expected at the last row of a range, from measurements of this kernel"),
        ((0, (1.5, 1.5)), "none", "predicted: this kernel was not measured for the problem"),
    ):
        marks.append(
            Line2D(
                [],
                [],
                color=SHORT,
                linewidth=2,
                linestyle=line,
                marker="o",
                markersize=4,
                markerfacecolor=face,
                label=label,
            )
        )
    kernels = [Line2D([], [], color=color(i), linewidth=2, label=text) for i, text in enumerate(names)]
    figure.legend(handles=kernels, loc="outside lower left", ncols=columns, prop={"family": "monospace", "size": 8})
    axes.legend(handles=marks, loc="upper left", frameon=True, framealpha=0.9, edgecolor="none")
    description = (
        f"Time over {name} from 1 to {most} on {data['device']}: {len(ranges)} ranges of rows, served by "
        f"{len(candidates)} kernels."
    )
    return Picture(figure, data["problem"], description, hints)


# ---- tilewright bench --json


def draw_bench(data: dict[str, Any]) -> Picture:
    """The time for each number of rows beside the roofline, and the share of the roofline."""
    name, points = data["rows_name"], data["points"]
    rows = [p[name] for p in points]
    figure, (times, shares) = new_figure(data["problem"], produced(data), 5.6, 2, sharex=True, height_ratios=[3, 2])
    rows_axis(shares, name, min(rows), max(rows))
    roofline = [p["microseconds"] * p["of_roofline"] for p in points]
    time_axis(times, [*roofline, *(p["microseconds"] for p in points)])
    hints = {}
    times.plot(rows, [p["microseconds"] for p in points], color=PASS, gid="time", label="measured")
    times.plot(rows, roofline, color=INK, linestyle=(0, (6, 3)), gid="roofline", label="roofline of the cost model")
    shares.plot(rows, [100 * p["of_roofline"] for p in points], color=PASS, gid="share")
    shares.axhline(100, color=INK, linestyle=(0, (6, 3)))
    for i, p in enumerate(points):
        times.plot(p[name], p["microseconds"], "o", color=PASS, gid=f"point-{i}")
        shares.plot(p[name], 100 * p["of_roofline"], "o", color=PASS, gid=f"share-{i}")
        hints[f"point-{i}"] = hints[f"share-{i}"] = (
            f"{name}={p[name]}: {microseconds(p['microseconds'])}, {p['gbps']:.1f} GB/s, {p['tflops']:.3g} TFLOP/s, "
            f"{100 * p['of_roofline']:.0f} % of the roofline, {p['kernel']}"
        )
    shares.set_ylim(0, max(110, *(105 * p["of_roofline"] for p in points)))
    shares.set_ylabel("of the roofline (%)")
    figure.legend(loc="outside lower left", ncols=2)
    description = f"Time per launch over {name} on {data['device']}, measured for {len(points)} numbers of rows."
    return Picture(figure, data["problem"], description, hints)


# ---- tilewright calibrate --plot X.json

COLUMNS = 240


def histogram_columns(data: dict[str, Any]) -> tuple[list[float], list[float], list[float]]:
    """Edges, and the counts of values inside and outside of the clip."""
    width, (low, high) = data["bin_width"], data["clip"]
    least, most = min(data["min"], low), max(data["max"], high)
    if least == most:
        least, most = least - width, most + width
    inside, outside = [0.0] * COLUMNS, [0.0] * COLUMNS
    for sign, counts in ((-1, data["negative"]), (1, data["positive"])):
        for i, count in enumerate(counts):
            middle = sign * (i + 0.5) * width
            kept = low - width / 2 <= middle <= high + width / 2
            at = min(max(int((middle - least) / (most - least) * COLUMNS), 0), COLUMNS - 1)
            (inside if kept else outside)[at] += count
    return [least + (most - least) * i / COLUMNS for i in range(COLUMNS + 1)], inside, outside


def draw_histogram(data: dict[str, Any]) -> Picture:
    """A tensor's values and the range that calibration keeps of them."""
    edges, inside, outside = histogram_columns(data)
    low, high = data["clip"]
    figure, axes = new_figure(data["tensor"], data["how"], 4.2)
    floor = 0.5  # below 1, so that a lone value is seen
    top = [max(a + b, floor) for a, b in zip(inside, outside)]
    kept = [max(a, floor) for a in inside]
    axes.stairs(kept, edges, baseline=floor, fill=True, color=PASS, label="kept")
    axes.stairs(top, edges, baseline=kept, fill=True, color=CLIPPED, label="clipped")
    for i, end in enumerate((low, high)):
        axes.axvline(
            end,
            color=INK,
            linestyle=(0, (6, 3)),
            gid=f"clip-{i}",
            label=f"range: {low:.6g} to {high:.6g}" if i else None,
        )
    axes.set_yscale("log")
    axes.set_ylim(floor, 1.5 * max(top))
    axes.yaxis.set_major_formatter(plain)
    axes.minorticks_off()
    axes.set_xlim(edges[0], edges[-1])
    axes.set_xlabel("value")
    axes.set_ylabel("values per column")
    figure.legend(loc="outside lower left", ncols=3)
    description = (
        f"Histogram of {data['count']} values from {data['min']:.6g} to {data['max']:.6g}; kept are those from "
        f"{low:.6g} to {high:.6g}."
    )
    return Picture(figure, data["tensor"], description)


# ---- results of bench gemm and bench conv


@dataclass
class Panel:
    title: str
    axis: str
    belongs: Callable[[dict[str, Any]], Any]
    reference: tuple[float, str] | None  # a value and its name
    percent: bool = False

    def show(self, value: float) -> str:
        return f"{100 * value:.0f} %" if self.percent else f"{value:.0f} TFLOP/s" if value > 10 else f"{value:.2f}x"


def times_over_one(row: dict[str, Any]) -> Any:
    return row["at_most"]


GEMM = [
    Panel(
        "Speed relative to cuBLASLt (higher is better)",
        "cuBLASLt's time / time",
        lambda r: r["rival_us"] > 0,
        (1, "cuBLASLt"),
    ),
    Panel("TFLOP/s (higher is better)", "TFLOP/s", lambda r: r["target"] > 10, None),
    Panel(
        "m = 1: share of the read bandwidth (higher is better)",
        "bytes per second / read bandwidth (%)",
        lambda r: r["m"] == 1 and r["value"] > 0,
        (1, "read bandwidth"),
        True,
    ),
    Panel(
        "m = 16, 64: time over that of m = 1 (lower is better)", "time / time of m = 1", times_over_one, (1, "m = 1")
    ),
]
CONV = [
    Panel(
        "Speed relative to cuDNN's fastest plan (higher is better)",
        "cuDNN's time / time",
        lambda r: r["rival_us"] > 0 and not r["share"],
        (1, "cuDNN"),
    ),
    Panel(
        "Share of a copy's rate, or of the single-precision units' (higher is better)",
        "rate / a copy's rate (%)",
        lambda r: r["share"],
        (1, "a copy"),
        True,
    ),
    Panel(
        "Time over that of a larger part of the layer (lower is better)",
        "time / time",
        times_over_one,
        (1, "the larger part"),
    ),
]


def read_results(results: Iterable[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """Rows of bench gemm or bench conv, each from the first result that has it, and where they were measured."""
    rows: dict[Any, dict[str, Any]] = {}
    device, commits = "", []
    for result in results:
        environment = result["environment"]
        device = f"{environment.get('device', 'no device')}, driver {environment.get('driver', '?')}"
        commits.append(f"{environment.get('commit', '')[:7] or 'not recorded'} ({environment.get('date', '?')[:10]})")
        for row in result["results"].get("gemm", {}).get("rows", []):
            row["detail"] = f"m={row['m']} {row['n']}x{row['k']}"
            row["share"] = False
            key = row["label"], row["m"], row["n"], row["k"], row["target_text"]
            if key not in rows or rows[key]["us"] == 0:
                rows[key] = row
        for row in result["results"].get("conv", {}).get("rows", []):
            row["share"] = "%" in row["target_text"]
            row.setdefault("at_most", False)
            if not row["share"] and not row["at_most"]:
                row["value"] = row["ratio"]
            row.update(detail=f"{row['layer']}: {row['title']}", m=0, n=0, k=0)
            conv_key = row["label"], row["layer"]
            if conv_key not in rows or rows[conv_key]["us"] == 0:
                rows[conv_key] = row
    return list(rows.values()), f"{device}, commit {' and '.join(dict.fromkeys(commits))}"


def draw_panel(axes: Any, panel: Panel, rows: list[dict[str, Any]], hints: dict[str, str]) -> None:
    scale = 100 if panel.percent else 1
    labels = list(dict.fromkeys(r["label"] for r in rows))
    for y, label in enumerate(labels):
        # Rows of one target lie together, beside its mark.
        group = sorted((r for r in rows if r["label"] == label), key=lambda r: (r["target"], r["m"], r["n"] * r["k"]))
        step = min(0.16, 0.7 / len(group))
        places: dict[float, list[float]] = {}
        for i, r in enumerate(group):
            gid = f"row-{len(hints)}"
            place = y + (i + 0.5 - len(group) / 2) * step
            if r["target"] > 0:
                places.setdefault(r["target"] * scale, []).append(place)
            face = {"pass": PASS, "-": NO_TARGET}.get(r["mark"], SHORT)
            axes.plot(r["value"] * scale, place, "o", markersize=5, color=face, gid=gid, **EDGE)
            aim = f", target {r['target_text']}" if r["target"] > 0 else ""
            hints[gid] = f"{label}, {r['detail']}: {panel.show(r['value'])}{aim}"
        for target, at in places.items():
            axes.plot([target] * 2, [min(at) - 0.2, max(at) + 0.2], color=INK, linewidth=1.6)
    if panel.reference:
        value, name = panel.reference
        axes.axvline(value * scale, color=INK, linestyle=(0, (6, 3)), linewidth=1)
        side = "right" if panel.percent else "left"
        axes.annotate(
            name,
            (value * scale, 1),
            xycoords=("data", "axes fraction"),
            xytext=(-3 if panel.percent else 3, -1),
            textcoords="offset points",
            ha=side,
            va="top",
            fontsize=8,
        )
    axes.set_title(panel.title, fontsize=9.5, weight="bold")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.9)
    axes.set_xlim(0, None)
    axes.xaxis.set_major_formatter(plain)
    axes.set_xlabel(panel.axis)


def draw_results(results: Iterable[dict[str, Any]]) -> Picture:
    """Each row of targets as a point on its label's line, with a mark where the target is."""
    from matplotlib.lines import Line2D

    rows, where = read_results(results)
    if not rows:
        raise ValueError("the results have no rows of bench gemm or bench conv")
    is_conv = "layer" in rows[0]
    panels = [
        (panel, chosen)
        for panel in (CONV if is_conv else GEMM)
        if (chosen := [r for r in rows if r["us"] > 0 and panel.belongs(r)])
    ]
    if not panels:
        raise ValueError("no row has a result")
    lines = [len({r["label"] for r in chosen}) for _, chosen in panels]
    missing = sorted({r["label"] for r in rows if r["target"] > 0 and r["us"] == 0})
    subtitle = where + (f"\nwithout a result: {', '.join(missing)}" if missing else "")
    title = f"{'Convolutions' if is_conv else 'Matrix products'} against their targets"
    height = 0.9 + sum(0.25 * n + 0.95 for n in lines)
    figure, axes = new_figure(
        title, subtitle, height, len(panels), height_ratios=[n + 1.3 for n in lines], squeeze=False
    )
    hints: dict[str, str] = {}
    for one, (panel, chosen) in zip(axes[:, 0], panels):
        draw_panel(one, panel, chosen, hints)
    marks = [
        Line2D([], [], marker="o", linestyle="none", color=face, label=label, **EDGE)
        for face, label in ((PASS, "reaches its target"), (SHORT, "misses it"), (NO_TARGET, "has none"))
    ]
    marks.append(
        Line2D([], [], color=INK, marker="|", markersize=9, markeredgewidth=1.6, linestyle="none", label="target")
    )
    figure.legend(handles=marks, loc="outside lower left", ncols=4)
    return Picture(figure, title, f"{len(hints)} measurements on {where}.", hints)


# ---- which picture


def draw(data: Sequence[dict[str, Any]]) -> Picture:
    """The picture of one JSON object of the tool, or of several results of the benchmarks."""
    first = data[0]
    if "results" not in first and len(data) > 1:
        raise ValueError("one file makes this picture; several are for results of the benchmarks")
    with style():
        if "ranges" in first and "roofline" in first:
            return draw_rows(first)
        if "points" in first:
            return draw_bench(first)
        if "bin_width" in first:
            return draw_histogram(first)
        if "results" in first:
            return draw_results(data)
    raise ValueError("neither JSON of tilewright plot, bench or calibrate --plot, nor results of the benchmarks")


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tilewright.plot", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("-o", "--out", type=Path, help="the picture to write (default: standard output)")
    parser.add_argument("--format", choices=("svg", "png"), help="default: by the name of --out, else svg")
    arguments = parser.parse_args()
    try:
        data = [json.loads(sys.stdin.read() if name == "-" else Path(name).read_text()) for name in arguments.files]
        kind = arguments.format or ("png" if arguments.out and arguments.out.suffix == ".png" else "svg")
        picture = draw(data).bytes(kind)
    except ModuleNotFoundError as error:
        print(
            f"tilewright.plot: error: {error.name} is not installed: pip install 'tilewright[plots]'", file=sys.stderr
        )
        return 4
    except (OSError, ValueError, KeyError) as error:
        print(f"tilewright.plot: error: {', '.join(arguments.files)}: {error}", file=sys.stderr)
        return 1
    if arguments.out:
        arguments.out.write_bytes(picture)
    else:
        sys.stdout.buffer.write(picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
