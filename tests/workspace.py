"""The workspace as data for tests about it: packages, modules, imports."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = ["ROOT", "Import", "Module", "Package", "read_packages", "refuse"]

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Import:
    """One name that a module imports, with the line.

    `typing_only` means under `if TYPE_CHECKING`, `lazy` inside a function.
    """

    target: str
    line: int
    typing_only: bool
    lazy: bool


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file of a package."""

    name: str
    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        """The path within the checkout, for messages."""
        return str(self.path.relative_to(ROOT))


@dataclass(frozen=True, slots=True)
class Package:
    """One distribution of the workspace."""

    folder: Path
    project: dict[str, Any]
    import_name: str
    modules: tuple[Module, ...]

    @property
    def name(self) -> str:
        """The distribution's name."""
        return str(self.project["name"])

    def imports(self, module: Module) -> Iterator[Import]:
        """Yield what a module imports; `from package import module` counts as the module."""
        known = {each.name for each in self.modules}
        for node, typing_only, lazy in _walk(module.tree):
            if isinstance(node, ast.Import):
                yield from (Import(alias.name, node.lineno, typing_only, lazy) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(module, node)
                for alias in node.names:
                    full = f"{base}.{alias.name}"
                    yield Import(full if full in known else base, node.lineno, typing_only, lazy)


def _walk(node: ast.AST, typing_only: bool = False, lazy: bool = False) -> Iterator[tuple[ast.AST, bool, bool]]:
    """Yield every node below, whether it stands under `if TYPE_CHECKING`, and whether inside a function."""
    inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    guarded: list[ast.stmt] = node.body if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) else []
    for child in ast.iter_child_nodes(node):
        only = typing_only or child in guarded
        yield child, only, inside
        yield from _walk(child, only, inside)


def _absolute(module: Module, node: ast.ImportFrom) -> str:
    """Return the absolute name of what a `from … import` names."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    inside = parts if module.path.name == "__init__.py" else parts[:-1]
    return ".".join([*inside[: len(inside) - node.level + 1], *([node.module] if node.module else [])])


def read_packages() -> tuple[Package, ...]:
    """Read every distribution of the workspace."""
    folders = [path.parent for pattern in ("anarchon-*", "conformance") for path in ROOT.glob(f"{pattern}/pyproject.toml")]
    return tuple(_read_package(folder) for folder in sorted(folders))


def refuse(found: Sequence[object], remedy: str) -> None:
    """Fail the test with what was found, one a line, and what to do about it."""
    __tracebackhide__ = True
    if found:
        pytest.fail("\n".join([remedy, *(f"  {each}" for each in found)]), pytrace=False)


def _read_package(folder: Path) -> Package:
    source = next((path.parent for path in folder.glob("src/*/__init__.py")), None)
    if source is None:
        pytest.fail(f"{folder.name} has no package in src/: a distribution exists once it works", pytrace=False)
    modules = []
    for path in sorted(source.rglob("*.py")):
        parts = [source.name, *path.relative_to(source).with_suffix("").parts]
        text = path.read_text()
        modules.append(Module(".".join(parts).removesuffix(".__init__"), path, text, ast.parse(text)))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return Package(folder, project, source.name, tuple(modules))
