#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""draw_pipeline.py [--out docs/pipeline.svg]: draws the way from a problem to a launch. tests/readme checks that the
committed picture is what this prints."""
import argparse
import html
from pathlib import Path

WIDTH, HEIGHT = 980, 300
BOX_WIDTH, BOX_HEIGHT, TOP = 164, 104, 48
CACHE_LEFT, CACHE_TOP, CACHE_WIDTH, CACHE_HEIGHT = 208, 216, 564, 62
INK, FAINT, FILL, STORE, ACCENT = "#24292f", "#57606a", "#f6f8fa", "#ddf4ff", "#0969da"

# Title, lines of text, folder.
STEPS = [
    ("Problem", ["gemm x=f16 w=q4_0", "y=f16 m=1", "n=4096 k=14336"], "descriptor"),
    ("Candidates", ["legal knobs by family,", "ranked by a cost model;", "one source text each"], "templates/"),
    ("Binaries", ["NVRTC compiles them", "in process for", "this GPU"], "jit/"),
    ("Choice", ["each candidate verified", "against a reference,", "then timed, cold"], "tuner/"),
    ("Kernel", ["one per bucket of m;", "launch() compiles and", "allocates nothing"], "launch"),
]


def text(x, y, words, size=12, color=INK, weight="normal", anchor="middle"):
    return (f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{color}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')


def arrow(path, color=INK, dashed=False):
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6"{dash} '
            f'marker-end="url(#{"accent" if color == ACCENT else "ink"})"/>')


def left(step):
    gap = (WIDTH - 16 - len(STEPS) * BOX_WIDTH) / (len(STEPS) - 1)
    return 8 + step * (BOX_WIDTH + gap)


def middle(step):
    return left(step) + BOX_WIDTH / 2


def box(step, title, lines, folder):
    x = left(step)
    out = [f'<rect x="{x:g}" y="{TOP}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{FILL}" stroke="{INK}"/>',
           text(middle(step), TOP - 10, folder, 11, FAINT),
           text(middle(step), TOP + 24, title, 15, weight="bold")]
    out += [text(middle(step), TOP + 48 + 17 * i, line) for i, line in enumerate(lines)]
    if step + 1 < len(STEPS):
        out.append(arrow(f"M{x + BOX_WIDTH:g} {TOP + BOX_HEIGHT / 2:g}H{left(step + 1) - 5:g}"))
    return out


def cache():
    below, top = TOP + BOX_HEIGHT, CACHE_TOP
    center = CACHE_LEFT + CACHE_WIDTH / 2
    return [
        f'<rect x="{CACHE_LEFT}" y="{top}" width="{CACHE_WIDTH}" height="{CACHE_HEIGHT}" rx="6" fill="{STORE}" '
        f'stroke="{INK}"/>',
        text(center, top + 25, "Cache: one SQLite file", 15, weight="bold"),
        text(center, top + 46, "binaries, choices, every measurement; each row is verified when it is read"),
        arrow(f"M{middle(2):g} {below}V{top - 6}"),
        arrow(f"M{middle(3):g} {below}V{top - 6}"),
        arrow(f"M{middle(0):g} {below}V{top + CACHE_HEIGHT / 2:g}H{CACHE_LEFT - 6}", ACCENT),
        arrow(f"M{CACHE_LEFT + CACHE_WIDTH} {top + CACHE_HEIGHT / 2:g}H{middle(4):g}V{below + 6}", ACCENT),
        text(middle(2) + 8, below + 36, "stored", 11, FAINT, anchor="start"),
        text(middle(3) + 8, below + 36, "stored", 11, FAINT, anchor="start"),
        text(8, top + CACHE_HEIGHT / 2 + 20, "every later process:", 11, ACCENT, anchor="start"),
        text(8, top + CACHE_HEIGHT / 2 + 35, "nothing is compiled or measured", 11, ACCENT, anchor="start"),
    ]


def marker(name, color):
    return (f'<marker id="{name}" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">'
            f'<path d="M0 0L8 4L0 8z" fill="{color}"/></marker>')


def draw():
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="system-ui, sans-serif">',
           "<title>From a problem to a launch</title>",
           f'<defs>{marker("ink", INK)}{marker("accent", ACCENT)}</defs>',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>']
    for step, (title, lines, folder) in enumerate(STEPS):
        out += box(step, title, lines, folder)
    return "\n".join(out + cache() + ["</svg>"]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "pipeline.svg")
    parser.parse_args().out.write_text(draw())


if __name__ == "__main__":
    main()
