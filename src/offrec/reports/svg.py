"""Draw small SVG figures that stay readable on a phone.

Colours are CSS classes (`f-…` for a family of policies), so that one figure works in light mode, dark mode and print.
matplotlib cannot do that; it is used for files, such as a PNG of `offrec estimate --picture`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 30, 42
SMALL, CAPITAL = 6.0, 7.7  # approximate widths of narrow and wide letters
LINE = 12.5  # height of a line of text
BOLD, HEAD_LINE = 1.08, 14.0  # factor for the width of bold letters; height of a title line

Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """Maps values to positions on an axis."""

    low: float
    high: float
    log: bool = False

    @staticmethod
    def over(values: Sequence[float], *, log: bool = False, pad: float = 0.08, zero: bool = False) -> "Scale":
        """Return a scale that covers the finite values, with padding."""
        known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(known), max(known)
        if log:
            low, high = math.log10(low), math.log10(high)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        span = (high - low) or abs(high) or 1.0
        return Scale(low if zero and low == 0 else low - pad * span, high + pad * span, log)

    def position(self, value: float) -> float:
        """Return the position of a value: 0 at the low end of the axis, 1 at the high end."""
        place = math.log10(value) if self.log else value
        return (place - self.low) / (self.high - self.low)

    def ticks(self, wanted: int = 4) -> list[float]:
        """Return about `wanted` round values within the scale."""
        if self.log:
            return [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
        raw = (self.high - self.low) / wanted
        step = 10 ** math.floor(math.log10(raw))
        step = next(step * factor for factor in (1, 2, 5, 10) if step * factor >= raw * 0.75)
        first = math.ceil(self.low / step)
        return [round(first * step + n * step, 12) for n in range(int((self.high - first * step) / step + 1e-9) + 1)]


@dataclass
class Panel:
    """One figure: axes and the marks, lines and labels between them.

    Attributes:
        title: Heading.
        description: The content in words, for screen readers.
        x: Scale of the horizontal axis.
        y: Scale of the vertical axis.
        x_label: Label of the horizontal axis.
        y_label: Label of the vertical axis.
        height: Height without additional title lines.
        left: Left margin.
        right: Right margin.
        x_ticks: Positions and labels; None: round values.
        y_ticks: Positions and labels; None: round values.
        parts: SVG elements so far.
        boxes: Areas that points and labels occupy: left, top, right, bottom.
    """

    title: str
    description: str
    x: Scale
    y: Scale
    x_label: str
    y_label: str
    height: int = HEIGHT
    left: int = LEFT
    right: int = RIGHT
    x_ticks: Sequence[tuple[float, str]] | None = None
    y_ticks: Sequence[tuple[float, str]] | None = None
    parts: list[str] = field(default_factory=list)
    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.head = wrap_title(self.title, WIDTH - 32)  # a margin, because widths are approximate
        more = round(HEAD_LINE * (len(self.head) - 1))
        self.top, self.height = TOP + more, self.height + more

    def point(self, x: float, y: float) -> Point:
        """Return the coordinates of a pair of values."""
        wide, high = WIDTH - self.left - self.right, self.height - self.top - BOTTOM
        return self.left + wide * self.x.position(x), self.height - BOTTOM - high * self.y.position(y)

    def line(self, points: Sequence[Point], family: str, dashed: bool = False) -> None:
        """Draw a line through points."""
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.point(*point) for point in points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline class="line f-{family}" points="{path}"{dash}/>')

    def band(self, points: Sequence[tuple[float, float, float]], family: str) -> None:
        """Draw a band through (x, low, high)."""
        around = [self.point(x, low) for x, low, _ in points] + [self.point(x, high) for x, _, high in reversed(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in around)
        self.parts.append(f'<polygon class="band f-{family}" points="{path}"/>')

    def mark(self, point: Point, family: str, tip: str) -> None:
        """Draw the mark of a family, with a tooltip."""
        x, y = self.point(*point)
        self.parts.append(f'<g class="mark f-{family}">{SHAPES[family](x, y)}<title>{escape(tip)}</title></g>')
        self.boxes.append((x - 5, y - 5, x + 5, y + 5))

    def interval(self, low: Point, high: Point, family: str) -> None:
        """Draw an interval as a line between two points."""
        (x1, y1), (x2, y2) = self.point(*low), self.point(*high)
        self.parts.append(f'<line class="line f-{family}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def label_point(self, point: Point, text: str) -> bool:
        """Write a label next to a point if space is free, and return whether it was written. Call it after `mark`."""
        x, y = self.point(*point)
        wide = text_width(text)
        places = [(x + 8, y + 4), (x - 8 - wide, y + 4), (x - wide / 2, y - 9), (x - wide / 2, y + 17)]
        places += [(x + 6, y - 8), (x - 6 - wide, y - 8), (x + 6, y + 16), (x - 6 - wide, y + 16)]
        free = [place for place in places if self._inside(*place, wide) and self._free(*place, wide)]
        if not free:
            return False
        left, top = free[0]
        self.boxes.append((left, top - 10, left + wide, top + 2))
        self.text(left, top, text)
        return True

    def _inside(self, left: float, top: float, wide: float) -> bool:
        return self.left <= left and left + wide <= WIDTH - 2 and top - 10 >= self.top and top <= self.height - BOTTOM

    def _free(self, left: float, top: float, wide: float) -> bool:
        return not any(
            left < right_ and left + wide > left_ and top - 10 < bottom and top + 2 > top_
            for left_, top_, right_, bottom in self.boxes
        )

    def label_ends(self, labels: Sequence[tuple[float, str, str]]) -> None:
        """Write labels (y, text, family) at the right edge, moved apart so that they do not overlap."""
        placed: list[float] = []
        ordered = sorted(
            (self.point(0, y)[1] if not self.x.log else self.point(1, y)[1], text, f) for y, text, f in labels
        )
        for wanted_y, _, _ in ordered:
            placed.append(max(wanted_y, placed[-1] + LINE) if placed else max(wanted_y, self.top + 4))
        over = max(0.0, placed[-1] - (self.height - BOTTOM)) if placed else 0.0
        for index in range(len(placed) - 1, -1, -1):  # below the axis: move upwards
            limit = self.height - BOTTOM if index == len(placed) - 1 else placed[index + 1] - LINE
            placed[index] = min(placed[index], limit) if over else placed[index]
        edge = WIDTH - self.right
        for (wanted_y, text, family), y in zip(ordered, placed, strict=True):
            self.parts.append(
                f'<line class="lead f-{family}" x1="{edge}" y1="{wanted_y:.1f}" x2="{edge + 8}" y2="{y:.1f}"/>'
            )
            self.text(edge + 10, y + 4, text)

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> None:
        self.parts.append(f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def svg(self) -> str:
        """Return the figure as an SVG element."""
        content = "".join(self.parts)
        self.parts = []
        self._axes()
        axes = "".join(self.parts)
        return (
            f'<svg role="img" viewBox="0 0 {WIDTH} {self.height}" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(self.title)}</title><desc>{escape(self.description)}</desc>{axes}{content}</svg>"
        )

    def _axes(self) -> None:
        bottom, top, right = self.height - BOTTOM, self.top, WIDTH - self.right
        for number, line in enumerate(self.head):
            self.text(8, 16 + HEAD_LINE * number, line, kind=' class="head"')
        for value, label in self.x_ticks or [(tick, tick_label(tick)) for tick in self.x.ticks()]:
            x = self.left + (right - self.left) * self.x.position(value)
            self.parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}"/>')
            self.text(x, bottom + 14, label, "middle")
        for value, label in self.y_ticks or [(tick, tick_label(tick)) for tick in self.y.ticks()]:
            y = bottom - (bottom - top) * self.y.position(value)
            self.parts.append(f'<line class="grid" x1="{self.left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
            self.text(self.left - 5, y + 4, label, "end")
        self.text((self.left + right) / 2, self.height - 8, self.x_label, "middle", ' class="axis"')
        if self.y_label:
            turned = f' class="axis" transform="rotate(-90 11 {(top + bottom) / 2:.0f})"'
            self.text(11, (top + bottom) / 2, self.y_label, "middle", turned)


def text_width(text: str) -> float:
    """Return the approximate width of a label."""
    return sum(CAPITAL if letter.isupper() or letter in "mw" else SMALL for letter in text)


def wrap_title(title: str, space: float) -> list[str]:
    """Break a title into lines, at its colon if possible. A word that does not fit is cut and ends in "…"."""
    if text_width(title) * BOLD <= space:
        return [title]
    first, colon, rest = title.partition(": ")
    if colon and text_width(first + ":") * BOLD <= space:
        return [f"{first}:", *wrap_title(rest, space)]
    lines = [""]
    for word in title.split():
        longer = f"{lines[-1]} {word}".strip()
        if not lines[-1] or text_width(longer) * BOLD <= space:
            lines[-1] = longer
        else:
            lines.append(word)
    return [_cut(line, space) for line in lines]


def _cut(line: str, space: float) -> str:
    while text_width(line) * BOLD > space:
        line = line.rstrip("…")[:-1] + "…"
    return line


def tick_label(value: float) -> str:
    """Format the label of a tick: .25, 1.5, 20 or 10⁻³."""
    if value == 0:
        return "0"
    if abs(value) < 0.001 or abs(value) >= 1e5:
        power = round(math.log10(abs(value)))
        return f"10{str(power).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
    text = f"{value:.4g}".replace("-", "−")
    return text.replace("0.", ".", 1) if abs(value) < 1 else text


def _circle(x: float, y: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5"/>'


def _polygon(*corners: Point) -> Callable[[float, float], str]:
    def draw(x: float, y: float) -> str:
        return f'<polygon points="{" ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)}"/>'

    return draw


SHAPES: dict[str, Callable[[float, float], str]] = {
    "imitation": _polygon((-4.5, -4.5), (4.5, -4.5), (4.5, 4.5), (-4.5, 4.5)),
    "mixed": _polygon((0, -5.5), (5.2, 4), (-5.2, 4)),
    "unconstrained": _polygon((0, 5.5), (5.2, -4), (-5.2, -4)),
    "constrained": _circle,
    "planner": _polygon((0, -5.8), (5.5, -1.8), (3.4, 4.7), (-3.4, 4.7), (-5.5, -1.8)),
    "baseline": _polygon((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)),
    "shop": _polygon((-5, -1.5), (-1.5, -1.5), (-1.5, -5), (1.5, -5), (1.5, -1.5), (5, -1.5), (5, 1.5), (1.5, 1.5),
                    (1.5, 5), (-1.5, 5), (-1.5, 1.5), (-5, 1.5)),
}  # fmt: skip
