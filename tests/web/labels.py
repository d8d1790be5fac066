"""Labels of a page in a browser: none overlaps another, none leaves its drawing or its cell."""

from typing import Any

from playwright.sync_api import Page

_FAULTS = """() => {
    const faults = [];
    const box = (element) => element.getBoundingClientRect();
    const inside = (a, b) =>
        a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
    const overlap = (a, b) => {
        const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
        const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
        return width > 1 && height > 0.25 * Math.min(a.height, b.height);
    };
    for (const drawing of document.querySelectorAll("svg")) {
        if (!drawing.checkVisibility()) continue;
        const labels = [...drawing.querySelectorAll("text")].map((text) => [text.textContent, box(text)]);
        const cells = [...drawing.querySelectorAll("rect")].map(box);
        labels.forEach(([name, at], i) => {
            if (!inside(at, box(drawing))) faults.push(`leaves the drawing: ${name}`);
            for (const [other, where] of labels.slice(i + 1))
                if (overlap(at, where)) faults.push(`overlap: ${name} / ${other}`);
            const [x, y] = [(at.left + at.right) / 2, (at.top + at.bottom) / 2];
            const cell = cells.find((c) => x > c.left && x < c.right && y > c.top && y < c.bottom);
            if (cell && !inside(at, cell)) faults.push(`leaves its cell: ${name}`);
        });
    }
    for (const cell of document.querySelectorAll("td, th")) {
        const shown = cell.checkVisibility();
        if (shown && cell.scrollWidth > cell.clientWidth + 1) faults.push(`leaves its cell: ${cell.textContent}`);
    }
    return faults;
}"""


def label_faults(page: Page) -> list[str]:
    """Sentences about labels that overlap or leave their drawing or cell."""
    faults: list[str] = page.evaluate(_FAULTS)
    return faults


def cut_tables(page: Page) -> list[str]:
    """Headings of the visible tables that are wider than their box."""
    cut: list[str] = page.evaluate(
        """() => [...document.querySelectorAll(".scroll")]
            .filter((box) => box.checkVisibility() && box.scrollWidth > box.clientWidth + 1)
            .map((box) => box.querySelector("thead").textContent)"""
    )
    return cut


def line_colours(page: Page) -> dict[str, set[str]]:
    """Colours of the lines of all charts, by the name of the line."""
    pairs: list[Any] = page.evaluate(
        """() => [...document.querySelectorAll("polyline")]
            .map((line) => [line.querySelector("title").textContent, line.getAttribute("stroke")])"""
    )
    colours: dict[str, set[str]] = {}
    for name, colour in pairs:
        colours.setdefault(name, set()).add(colour)
    return colours
