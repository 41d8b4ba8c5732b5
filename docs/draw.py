#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""draw.py pipeline|hopper [--out FILE]: draws docs/pipeline.svg, the way from a problem to a launch, or docs/hopper.svg, the
roles in a block of the Hopper kernel. tests/readme checks that the committed pictures are what this draws."""
import argparse
import html
from pathlib import Path

INK, FAINT, FILL, STORE, ACCENT = "#24292f", "#57606a", "#f6f8fa", "#ddf4ff", "#0969da"


def text(x, y, words, size=12, color=INK, weight="normal", anchor="middle"):
    return (f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{color}" '
            f'font-weight="{weight}">{html.escape(words)}</text>')


def arrow(path, color=INK):
    return (f'<path d="{path}" fill="none" stroke="{color}" stroke-width="1.6" '
            f'marker-end="url(#{"accent" if color == ACCENT else "ink"})"/>')


def box(x, y, width, height, title, lines=(), fill=FILL):
    """A box with a title and lines of text, both centered."""
    center, top = x + width / 2, y + (height - 17 * len(lines)) / 2 + 4
    return [f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{INK}"/>',
            text(center, top, title, 15 if lines else 13, weight="bold"),
            *(text(center, top + 22 + 17 * i, line) for i, line in enumerate(lines))]


def picture(width, height, title, elements):
    def marker(name, color):
        return (f'<marker id="{name}" markerWidth="8" markerHeight="8" refX="6" refY="4" orient="auto">'
                f'<path d="M0 0L8 4L0 8z" fill="{color}"/></marker>')

    head = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
            'font-family="system-ui, sans-serif">', f"<title>{title}</title>",
            f'<defs>{marker("ink", INK)}{marker("accent", ACCENT)}</defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>']
    return "\n".join([*head, *elements, "</svg>"]) + "\n"


# ---- from a problem to a launch: title, lines, folder

STEPS = [
    ("Problem", ["gemm x=f16 w=q4_0", "y=f16 m=1", "n=4096 k=14336"], "descriptor"),
    ("Candidates", ["legal knobs by family,", "ranked by a cost model;", "one source text each"], "templates/"),
    ("Binaries", ["NVRTC, on CPUs LLVM,", "compiles them in", "process"], "jit/"),
    ("Choice", ["each candidate verified", "against a reference,", "then timed, cold"], "tuner/"),
    ("Kernel", ["one per bucket of m;", "launch() compiles and", "allocates nothing"], "launch"),
]


def pipeline():
    width, top, box_width, box_height = 980, 48, 164, 104
    step = (width - 16 - box_width) / (len(STEPS) - 1)
    left = [8 + i * step for i in range(len(STEPS))]
    middle = [x + box_width / 2 for x in left]
    below, cache_left, cache_top, cache_width, cache_height = top + box_height, left[1], 216, 564, 62
    cache_middle = cache_top + cache_height / 2
    out = []
    for i, (title, lines, folder) in enumerate(STEPS):
        out += [text(middle[i], top - 10, folder, 11, FAINT), *box(left[i], top, box_width, box_height, title, lines)]
        if i + 1 < len(STEPS):
            out.append(arrow(f"M{left[i] + box_width:g} {top + box_height / 2:g}H{left[i + 1] - 5:g}"))
    out += box(cache_left, cache_top, cache_width, cache_height, "Cache: one SQLite file",
               ["binaries, choices, every measurement; each row is verified when it is read"], STORE)
    for i in (2, 3):
        out += [arrow(f"M{middle[i]:g} {below}V{cache_top - 6}"),
                text(middle[i] + 8, below + 36, "stored", 11, FAINT, anchor="start")]
    out += [arrow(f"M{middle[0]:g} {below}V{cache_middle:g}H{cache_left - 6:g}", ACCENT),
            arrow(f"M{cache_left + cache_width:g} {cache_middle:g}H{middle[4]:g}V{below + 6}", ACCENT),
            text(8, cache_middle + 20, "every later process:", 11, ACCENT, anchor="start"),
            text(8, cache_middle + 35, "nothing is compiled or measured", 11, ACCENT, anchor="start")]
    return picture(width, 300, "From a problem to a launch", out)


# ---- a block of the Hopper kernel

def hopper():
    ring_left, ring_top, ring_width, ring_height, math_left = 400, 52, 240, 196, 722
    out = [text(70, 24, "global memory", 11, FAINT), text(262, 24, "producer", 11, FAINT),
           text(ring_left + ring_width / 2, 24, "shared memory", 11, FAINT), text(math_left + 125, 24, "math", 11, FAINT)]
    out += box(8, 62, 124, 54, "x", ["activations"], STORE)
    out += box(8, 176, 124, 54, "w", ["plain, or tiles"], STORE)
    out += box(188, 92, 148, 106, "Producer warp", ["one thread starts", "tensor and", "bulk copies"])
    out += [arrow("M132 96H160V130H182"), arrow("M132 196H160V160H182")]
    # The ring of stages.
    out += [f'<rect x="{ring_left}" y="{ring_top}" width="{ring_width}" height="{ring_height}" rx="6" fill="white" '
            f'stroke="{INK}" stroke-dasharray="5 4"/>',
            text(ring_left + ring_width / 2, ring_top + 22, "Ring of stages", 15, weight="bold")]
    for i, name in enumerate(("stage 0", "stage 1", "...", "stage S-1")):
        out += box(ring_left + 24, ring_top + 36 + 38 * i, ring_width - 48, 30, f"{name}" if name == "..." else f"{name}: x, w")
    out += [arrow("M336 126H394"), text(365, 118, "fill", 11),
            arrow(f"M{ring_left} 176H342", ACCENT), text(370, 194, "empty", 11, ACCENT)]
    # Math warpgroups and the epilogue.
    for i in range(2):
        out += box(math_left, ring_top + 104 * i, 250, 92, f"Math warpgroup {i}",
                   ["unpacks coded w to registers;", "wgmma, or mma.sync by warp;", "scales"])
        y = ring_top + 104 * i + 34
        out += [arrow(f"M{ring_left + ring_width} {y}H{math_left - 6}"), text(681, y - 6, "full", 11),
                arrow(f"M{math_left} {y + 26}H{ring_left + ring_width + 6}", ACCENT), text(681, y + 42, "empty", 11, ACCENT)]
    out += box(math_left, 300, 250, 70, "Epilogue", ["add split sums; scales, bias,", "activation, residual"])
    out += [arrow(f"M{math_left + 125} 248V294"), text(math_left + 133, 276, "sums", 11, anchor="start")]
    out += box(ring_left, 312, ring_width, 46, "Store staging", ["y in rows, 16-byte pieces"])
    out += box(8, 308, 124, 54, "y", ["result"], STORE)
    out += [arrow(f"M{math_left} 335H{ring_left + ring_width + 6}"), arrow(f"M{ring_left} 335H138")]
    out += [text(8, 396, "The tile scheduler gives producer and math warpgroups the same tiles and parts of k; the next tile's copies "
                 "start while this one is stored.", 11, FAINT, anchor="start")]
    return picture(980, 408, "Roles in a block of the Hopper kernel", out)


PICTURES = {"pipeline": pipeline, "hopper": hopper}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", choices=PICTURES)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    out = arguments.out or Path(__file__).resolve().parent / f"{arguments.picture}.svg"
    out.write_text(PICTURES[arguments.picture]())


if __name__ == "__main__":
    main()
