"""Pictures as SVG, drawn by hand: small panels that stay readable on a phone, coloured by the page that holds them.

Colours are CSS classes (`f-…` for a family of policies), so one picture serves light, dark and paper.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 14, 30, 42
SMALL, CAPITAL = 6.0, 7.7  # widths of letters at the size used, about
LINE = 12.5  # height of a line of text
BOLD, HEAD_LINE = 1.08, 14.0  # the title's letters are wider, its lines higher

Point = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """Values → places on an axis."""

    low: float
    high: float
    log: bool = False

    @staticmethod
    def over(values: Sequence[float], *, log: bool = False, pad: float = 0.08, zero: bool = False) -> "Scale":
        known = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
        low, high = min(known), max(known)
        if log:
            low, high = math.log10(low), math.log10(high)
        if zero:
            low, high = min(low, 0.0), max(high, 0.0)
        span = (high - low) or abs(high) or 1.0
        return Scale(low if zero and low == 0 else low - pad * span, high + pad * span, log)

    def share(self, value: float) -> float:
        place = math.log10(value) if self.log else value
        return (place - self.low) / (self.high - self.low)

    def ticks(self, wanted: int = 4) -> list[float]:
        if self.log:
            return [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
        raw = (self.high - self.low) / wanted
        step = 10 ** math.floor(math.log10(raw))
        step = next(step * factor for factor in (1, 2, 5, 10) if step * factor >= raw * 0.75)
        first = math.ceil(self.low / step)
        return [round(first * step + n * step, 12) for n in range(int((self.high - first * step) / step + 1e-9) + 1)]


@dataclass
class Panel:
    """One picture: axes, and what is drawn between them."""

    title: str
    described: str  # for who cannot see it
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
    boxes: list[tuple[float, float, float, float]] = field(default_factory=list)  # taken by points and labels

    def __post_init__(self) -> None:
        self.head = wrapped(self.title, WIDTH - 32)  # widths of letters are estimates
        more = round(HEAD_LINE * (len(self.head) - 1))
        self.top, self.height = TOP + more, self.height + more

    def at(self, x: float, y: float) -> Point:
        wide, high = WIDTH - self.left - self.right, self.height - self.top - BOTTOM
        return self.left + wide * self.x.share(x), self.height - BOTTOM - high * self.y.share(y)

    def line(self, points: Sequence[Point], family: str, dashed: bool = False) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<polyline class="line f-{family}" points="{path}"{dash}/>')

    def band(self, points: Sequence[tuple[float, float, float]], family: str) -> None:
        """(x, low, high) …"""
        around = [self.at(x, low) for x, low, _ in points] + [self.at(x, high) for x, _, high in reversed(points)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in around)
        self.parts.append(f'<polygon class="band f-{family}" points="{path}"/>')

    def mark(self, point: Point, family: str, tip: str) -> None:
        x, y = self.at(*point)
        self.parts.append(f'<g class="mark f-{family}">{SHAPES[family](x, y)}<title>{escape(tip)}</title></g>')
        self.boxes.append((x - 5, y - 5, x + 5, y + 5))

    def span(self, low: Point, high: Point, family: str) -> None:
        """An interval, as a line between two points."""
        (x1, y1), (x2, y2) = self.at(*low), self.at(*high)
        self.parts.append(f'<line class="line f-{family}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def name(self, point: Point, text: str) -> bool:
        """A label at a point, where it is in nobody's way, if there is such a place; further off it would name another.
        To be called after all marks are there."""
        x, y = self.at(*point)
        wide = width(text)
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

    def ends(self, labels: Sequence[tuple[float, str, str]]) -> None:
        """Labels (y, text, family) at the right edge, pushed apart so that none covers another."""
        placed: list[float] = []
        ordered = sorted((self.at(0, y)[1] if not self.x.log else self.at(1, y)[1], text, f) for y, text, f in labels)
        for wished, _, _ in ordered:
            placed.append(max(wished, placed[-1] + LINE) if placed else max(wished, self.top + 4))
        over = max(0.0, placed[-1] - (self.height - BOTTOM)) if placed else 0.0
        for index in range(len(placed) - 1, -1, -1):  # too low: push upwards
            limit = self.height - BOTTOM if index == len(placed) - 1 else placed[index + 1] - LINE
            placed[index] = min(placed[index], limit) if over else placed[index]
        edge = WIDTH - self.right
        for (wished, text, family), y in zip(ordered, placed, strict=True):
            self.parts.append(
                f'<line class="lead f-{family}" x1="{edge}" y1="{wished:.1f}" x2="{edge + 8}" y2="{y:.1f}"/>'
            )
            self.text(edge + 10, y + 4, text)

    def text(self, x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> None:
        self.parts.append(f'<text{kind} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>')

    def svg(self) -> str:
        drawn = "".join(self.parts)
        self.parts = []
        self._axes()
        axes = "".join(self.parts)
        return (
            f'<svg role="img" viewBox="0 0 {WIDTH} {self.height}" xmlns="http://www.w3.org/2000/svg">'
            f"<title>{escape(self.title)}</title><desc>{escape(self.described)}</desc>{axes}{drawn}</svg>"
        )

    def _axes(self) -> None:
        bottom, top, right = self.height - BOTTOM, self.top, WIDTH - self.right
        for number, line in enumerate(self.head):
            self.text(8, 16 + HEAD_LINE * number, line, kind=' class="head"')
        for value, label in self.x_ticks or [(tick, short(tick)) for tick in self.x.ticks()]:
            x = self.left + (right - self.left) * self.x.share(value)
            self.parts.append(f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}"/>')
            self.text(x, bottom + 14, label, "middle")
        for value, label in self.y_ticks or [(tick, short(tick)) for tick in self.y.ticks()]:
            y = bottom - (bottom - top) * self.y.share(value)
            self.parts.append(f'<line class="grid" x1="{self.left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
            self.text(self.left - 5, y + 4, label, "end")
        self.text((self.left + right) / 2, self.height - 8, self.x_label, "middle", ' class="axis"')
        if self.y_label:
            turned = f' class="axis" transform="rotate(-90 11 {(top + bottom) / 2:.0f})"'
            self.text(11, (top + bottom) / 2, self.y_label, "middle", turned)


def width(text: str) -> float:
    """Of a label, about."""
    return sum(CAPITAL if letter.isupper() else SMALL for letter in text)


def wrapped(title: str, room: float) -> list[str]:
    """A title's lines, the first ending at its colon where that fits. A word that no line holds is cut, with "…"."""
    if width(title) * BOLD <= room:
        return [title]
    first, colon, rest = title.partition(": ")
    if colon and width(first + ":") * BOLD <= room:
        return [f"{first}:", *wrapped(rest, room)]
    lines = [""]
    for word in title.split():
        longer = f"{lines[-1]} {word}".strip()
        if not lines[-1] or width(longer) * BOLD <= room:
            lines[-1] = longer
        else:
            lines.append(word)
    return [_cut(line, room) for line in lines]


def _cut(line: str, room: float) -> str:
    while width(line) * BOLD > room:
        line = line.rstrip("…")[:-1] + "…"
    return line


def short(value: float) -> str:
    """A tick's label: .25, 1.5, 20, 10⁻³."""
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
    "baseline": _polygon((0, -5.5), (5.5, 0), (0, 5.5), (-5.5, 0)),
    "own": _polygon((-5, -1.5), (-1.5, -1.5), (-1.5, -5), (1.5, -5), (1.5, -1.5), (5, -1.5), (5, 1.5), (1.5, 1.5),
                    (1.5, 5), (-1.5, 5), (-1.5, 1.5), (-5, 1.5)),
}  # fmt: skip
