"""The picture in docs/design.md: what runs where, and what goes over which road. Light and dark."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple
from xml.sax.saxutils import escape

from dev.programs import ROOT

TARGET = ROOT / "docs" / "architecture.svg"
WIDTH, HEIGHT = 900, 546
STYLE = """
.page{fill:#ffffff}.zone{fill:#f4f5f7;stroke:#c3c8d1}.box{fill:#ffffff;stroke:#5b6c8f}.ours{fill:#e4ebf7;stroke:#5b6c8f}
text{font:13px sans-serif;fill:#2b2f36}.title{font-weight:bold;font-size:14px}.small{font-size:11.5px;fill:#565d68}
.road{stroke:#c8553d;stroke-width:1.8;fill:none}.tip{fill:#c8553d}
@media (prefers-color-scheme:dark){
.page{fill:#14171c}.zone{fill:#1c2129;stroke:#454d5a}.box{fill:#262d38;stroke:#8fa3c8}
.ours{fill:#2a3a56;stroke:#8fa3c8}text{fill:#e3e7ee}.small{fill:#aab3c0}.road{stroke:#e88a72}.tip{fill:#e88a72}}
"""


class Box(NamedTuple):
    x: int
    y: int
    width: int
    height: int
    kind: str
    title: str
    lines: tuple[str, ...] = ()


class Road(NamedTuple):
    """Horizontal or vertical, with its arrow at the end; `label` stands beside the middle."""

    x1: int
    y1: int
    x2: int
    y2: int
    label: str = ""


BOXES = (
    Box(16, 16, 230, 438, "zone", "Operator's machine"),
    Box(30, 50, 202, 76, "ours", "rackhand (./inv)", ("plans from what it observes,", "shows a report, ends")),
    Box(30, 146, 202, 58, "box", "inventory", ("YAML: hosts, servers, jobs",)),
    Box(30, 222, 202, 58, "box", "secrets", ("environment or a command",)),
    Box(30, 298, 202, 58, "box", "history", ("samples and events",)),
    Box(30, 374, 202, 58, "box", "wheel cache", ("pinned, checked by hash",)),
    Box(330, 16, 554, 438, "zone", "Proxmox host"),
    Box(344, 50, 160, 76, "box", "sshd, pct", ("pct exec: stdin, stdout;", "all in one stream")),
    Box(344, 150, 160, 58, "box", "PVE API", ("optional: to start it",)),
    Box(540, 50, 330, 390, "zone", "LXC container"),
    Box(554, 84, 302, 58, "ours", "remote.pyz", ("all that a verb asks, in one pct exec",)),
    Box(554, 176, 144, 76, "ours", "supervise", ("a server's parent:", "log, pids, end")),
    Box(712, 176, 144, 76, "ours", "generator", ("feeds, judges,", "keeps the ledger")),
    Box(554, 290, 144, 58, "box", "SGLang", ("one for each GPU",)),
    Box(712, 290, 144, 58, "box", "output", ("shards, done set",)),
    Box(554, 370, 144, 56, "box", "tmpfs", ("secrets, 0600",)),
    Box(712, 474, 144, 56, "box", "object store", ("optional",)),
)
ROADS = (
    Road(232, 88, 340, 88, "SSH"),
    Road(232, 112, 340, 172, "HTTPS"),
    Road(504, 100, 550, 100),
    Road(626, 142, 626, 172, "tmux"),
    Road(784, 142, 784, 172, "tmux"),
    Road(626, 252, 626, 286),
    Road(784, 252, 784, 286),
    Road(712, 236, 680, 286, "HTTP"),
    Road(784, 348, 784, 470, "HTTPS"),
)


def picture() -> str:
    """The SVG; always the same bytes."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Architecture">'
    )
    tip = (
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path class="tip" d="M0 0 8 4 0 8Z"/></marker></defs>'
    )
    page = f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>'
    lines = [head, f"<style>{STYLE}</style>", tip, page]
    for box in BOXES:
        lines += _box(box)
    for road in ROADS:
        lines += _road(road)
    return "\n".join((*lines, "</svg>")) + "\n"


def write_picture(say: Callable[[str], None] = print) -> int:
    TARGET.write_text(picture(), encoding="utf-8")
    say(f"wrote {TARGET.relative_to(ROOT)}")
    return 0


def _box(box: Box) -> list[str]:
    place = f'x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}"'
    lines = [
        f'<rect class="{box.kind}" {place} rx="6"/>',
        f'<text class="title" x="{box.x + 12}" y="{box.y + 22}">{escape(box.title)}</text>',
    ]
    for number, line in enumerate(box.lines):
        lines.append(f'<text class="small" x="{box.x + 12}" y="{box.y + 42 + 17 * number}">{escape(line)}</text>')
    return lines


def _road(road: Road) -> list[str]:
    lines = [f'<path class="road" marker-end="url(#tip)" d="M{road.x1} {road.y1} {road.x2} {road.y2}"/>']
    if road.label:
        flat = road.y1 == road.y2
        x, y = (road.x1 + road.x2) // 2, (road.y1 + road.y2) // 2
        shift = (-18, -7) if flat else (8, 4)
        lines.append(f'<text class="small" x="{x + shift[0]}" y="{y + shift[1]}">{escape(road.label)}</text>')
    return lines
