"""The documentation as data for tests about it: pages, code blocks, tables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from workspace import ROOT

__all__ = ["Block", "Page", "read_page", "read_pages"]
FENCE = re.compile(r"^```(?P<language>[a-z]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of code."""

    language: str
    code: str
    line: int


@dataclass(frozen=True, slots=True)
class Page:
    """One Markdown file."""

    path: Path
    text: str

    @property
    def place(self) -> str:
        """The path within the checkout."""
        return str(self.path.relative_to(ROOT))

    def blocks(self, *languages: str) -> list[Block]:
        """Return the blocks in these languages; `line` is the line of their first code."""
        return [
            Block(found["language"], found["code"], self.text.count("\n", 0, found.start()) + 2)
            for found in FENCE.finditer(self.text)
            if found["language"] in languages
        ]

    def rows(self, header: str) -> list[list[str]]:
        """Return the cells of the table whose header line begins with this text."""
        lines = iter(self.text.splitlines())
        rows: list[list[str]] = []
        for line in lines:
            if line.startswith(header):
                next(lines)
                for row in lines:
                    if not row.startswith("|"):
                        return rows
                    rows.append([cell.strip() for cell in row.strip("|").split("|")])
        return rows


def read_page(place: str) -> Page:
    """Read one page, named from the root of the checkout."""
    path = ROOT / place
    return Page(path, path.read_text())


def read_pages() -> tuple[Page, ...]:
    """Read every Markdown page of the repository."""
    found = {path for pattern in ("*.md", "tests/*.md", "[!.]*/README.md", "[!.]*/docs/**/*.md") for path in ROOT.glob(pattern)}
    return tuple(Page(path, path.read_text()) for path in sorted(found))
