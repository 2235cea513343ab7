"""Every page: links lead somewhere, code is code, the index is complete."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterable, Iterator

from documents import Page, read_page
from workspace import ROOT, refuse

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
README_LINES_MAX = 120


def anchor(heading: str) -> str:
    """Return the anchor that a heading gets where Markdown is shown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_relative_links_lead_to_a_file_and_a_heading(pages: Iterable[Page]) -> None:
    lost = []
    for page in pages:
        for target in LINK.findall(page.text):
            if "://" in target:
                continue
            name, _, wanted = target.partition("#")
            path = (page.path.parent / name) if name else page.path
            if not path.exists():
                lost.append(f"{page.place}: {target}")
            elif wanted and wanted not in map(anchor, HEADING.findall(path.read_text())):
                lost.append(f"{page.place}: {target} (no such heading)")
    refuse(lost, "these links lead nowhere:")


def test_python_blocks_are_python_and_import_what_exists(pages: Iterable[Page]) -> None:
    wrong = []
    for page in pages:
        for block in page.blocks("python"):
            try:
                tree = compile(block.code, page.place, "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
            except SyntaxError as error:
                wrong.append(f"{page.place}:{block.line + (error.lineno or 1) - 1} {error.msg}")
                continue
            wrong += [f"{page.place}:{block.line} {name}" for name in missing(tree)]
    refuse(wrong, "code in the documentation that cannot work:")


def missing(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a block imports from our packages and that are not there."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] == "anarchon":
            module = importlib.import_module(node.module)
            for alias in node.names:
                if not hasattr(module, alias.name):
                    yield f"{node.module} has no {alias.name}"


def test_the_index_names_every_page_of_the_documentation() -> None:
    index = read_page("anarchon-core/docs/index.md")
    linked = {(index.path.parent / target).resolve() for target in LINK.findall(index.text) if "://" not in target}
    pages = {path.resolve() for path in index.path.parent.rglob("*.md")} - {index.path.resolve()}
    refuse(sorted(str(path.relative_to(ROOT)) for path in pages - linked), "the index does not name these pages:")


def test_the_front_page_is_short(readme: Page) -> None:
    assert readme.text.count("\n") <= README_LINES_MAX


def places(readme: Page) -> list[str]:
    """Return the files and folders that the front page's table names."""
    return [name for row in readme.rows("| | |") for name in re.findall(r"`([^`]+)`", row[0])]


def test_places_in_the_front_page_exist(readme: Page) -> None:
    named = places(readme)
    assert named
    refuse([name for name in named if not (ROOT / name).exists()], "the front page names what is not there:")


def test_every_folder_of_the_root_is_in_the_front_page(readme: Page) -> None:
    named = {name.partition("/")[0] for name in places(readme)}
    there = {path.parent.name for path in ROOT.glob("*/pyproject.toml")}
    refuse(sorted(there - named), "the front page does not name these packages:")


def test_the_changelog_has_the_agreed_form() -> None:
    titles = HEADING.findall(read_page("CHANGELOG.md").text)
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    odd = [t for t in titles[1:] if t not in kinds and not re.fullmatch(r"\[(Unreleased|\d+\.\d+\.\d+)\].*", t)]
    refuse(odd, "CHANGELOG.md: only versions and the kinds of Keep a Changelog are headings:")
