"""Draw the packages of offrec and the direction of their imports: architecture.svg.

    python docs/images/architecture.py

The rows follow the data: a package may import from its own row and from rows above it. `tests/test_layers.py` has the
exact order.
"""

from html import escape
from pathlib import Path

INK, SOFT, LINE, PAPER = "#1c2126", "#5b6570", "#9aa4ad", "#ffffff"
ROWS = [
    ("data", "#8a6d00", [("data", "raw files → sessions → dataset folder → transitions → batches")]),
    (
        "equations",
        "#1f66b0",
        [
            ("catalogue", "heads; top-k, ranks, sums over items"),
            ("losses.py", "the paper's equations"),
            ("algorithms", "one short file per learner"),
        ],
    ),
    (
        "policies",
        "#0f7f74",
        [
            ("backbones", "history → state"),
            ("models", "networks, critic, agent"),
            ("policy.py", "a head for every history"),
            ("baselines", "policies without training"),
        ],
    ),
    (
        "engines",
        "#b4571a",
        [
            ("shop", "simulated ground truth"),
            ("training", "loop, update, checkpoints"),
            ("evaluation", "ranks, metrics"),
        ],
    ),
    (
        "runs",
        "#6a4c93",
        [
            ("logging_policy", "fits π̂_b"),
            ("estimation", "value from the log"),
            ("runs", "options → trainer → run folder"),
        ],
    ),
    (
        "products",
        "#3b4650",
        [
            ("studies", "many runs, a queue"),
            ("reports", "tables, pictures, HTML"),
            ("serving", "server, decision log, ONNX"),
        ],
    ),
    ("command line", "#77808a", [("commands, cli.py", "one dataclass per command")]),
]
WIDTH, LEFT, TOP, HEIGHT, GAP, BETWEEN = 900, 120, 16, 62, 30, 14


def box(x: float, y: float, width: float, colour: str, name: str, text: str) -> list[str]:
    """Return one package: its name and what it does."""
    middle = x + width / 2
    return [
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{HEIGHT}" rx="6" fill="{colour}" fill-opacity=".09" '
        f'stroke="{colour}" stroke-width="1.4"/>',
        f'<text x="{middle:.1f}" y="{y + 26}" class="name" fill="{colour}">{escape(name)}</text>',
        f'<text x="{middle:.1f}" y="{y + 46}" class="text">{escape(text)}</text>',
    ]


def main() -> None:
    height = TOP * 2 + len(ROWS) * HEIGHT + (len(ROWS) - 1) * GAP
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="system-ui, sans-serif" '
        'role="img" aria-label="The packages of offrec from data to the command line">',
        f"<style>.name {{ font: 600 15px ui-monospace, monospace; text-anchor: middle }} .text {{ font-size: 12px; "
        f"fill: {SOFT}; text-anchor: middle }} .row {{ font-size: 13px; fill: {INK} }}</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{LINE}"/></marker></defs>',
        f'<rect width="{WIDTH}" height="{height}" fill="{PAPER}"/>',
    ]
    y = TOP
    for number, (row, colour, packages) in enumerate(ROWS):
        out.append(f'<text x="14" y="{y + HEIGHT / 2 + 5}" class="row">{escape(row)}</text>')
        width = (WIDTH - LEFT - 14 - BETWEEN * (len(packages) - 1)) / len(packages)
        for index, (name, text) in enumerate(packages):
            out += box(LEFT + index * (width + BETWEEN), y, width, colour, name, text)
        if number + 1 < len(ROWS):
            middle = LEFT + (WIDTH - LEFT - 14) / 2
            start = y + HEIGHT + 3
            out.append(
                f'<line x1="{middle}" y1="{start}" x2="{middle}" y2="{start + GAP - 6}" stroke="{LINE}" '
                'stroke-width="1.6" marker-end="url(#arrow)"/>'
            )
        y += HEIGHT + GAP
    Path(__file__).with_name("architecture.svg").write_text("\n".join([*out, "</svg>"]) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
