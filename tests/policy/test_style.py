"""The rules of style that no linter knows: sizes, public names, reasons for exceptions, words that must not leak."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterable, Iterator
from io import StringIO
from pathlib import Path

from workspace import Module, Package, refuse

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

STORES = re.compile(r"(?i)sqlite|postgres|redis|valkey|rabbit|amqp|\bnats\b|jetstream|mysql|mariadb|mongo")

# Words that would tie the project to one machine or to one registry, in pieces so that this file passes too.
PRIVATE = [
    "/wo" + "rk/",
    "../sha" + "red",
    "sha" + "red/design",
    "." + "library/",
    "/ro" + "ot/",
    "pypi" + ".org",
    "python" + "hosted",
    "npmjs" + ".org",
    "deb.debian" + ".org",
]
MAY_HOLD_BYTES = {".png", ".ico", ".db", ".gz", ".whl"}

EXCEPTION = re.compile(r"#\s*(noqa|type:\s*ignore)\b(?P<rest>.*)")
NOQA_REASON = re.compile(r":\s*[A-Z]+[0-9]+(,\s*[A-Z]+[0-9]+)*\s+-\s+\S.*")
IGNORE_REASON = re.compile(r"\[[a-z0-9-]+(,\s*[a-z0-9-]+)*\]\s*#\s*\S.*")


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    yield from (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_modules_have_at_most_400_lines(root: Path, files: Iterable[Path]) -> None:
    # Tests are lists of cases and may be longer.
    sources = [path for path in files if path.suffix == ".py" and "tests" not in path.relative_to(root).parts]
    lines = {path: path.read_text().count("\n") for path in sources}
    long = [f"{path.relative_to(root)}: {count} lines" for path, count in lines.items() if count > MODULE_LINES_MAX]
    refuse(long, f"a module has one idea and at most {MODULE_LINES_MAX} lines:")


def test_functions_have_at_most_60_lines(sources: Iterable[Module]) -> None:
    long = [
        f"{module.place}:{node.lineno} {node.name}: {length} lines"
        for module in sources
        for node in functions(module.tree)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    refuse(long, f"a function fits a screen, at most {FUNCTION_LINES_MAX} lines:")


def test_public_modules_say_what_is_public(sources: Iterable[Module]) -> None:
    silent = []
    for module in sources:
        if module.path.stem == "__main__" or (module.path.stem.startswith("_") and module.path.stem != "__init__"):
            continue
        targets = {
            target.id
            for node in module.tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        if "__all__" not in targets:
            silent.append(module.place)
    refuse(silent, "these modules have no __all__:")


def test_exceptions_from_lint_and_types_have_a_code_and_a_reason(sources: Iterable[Module]) -> None:
    bare = []
    for module in sources:
        for token in tokenize.generate_tokens(StringIO(module.text).readline):
            found = EXCEPTION.search(token.string) if token.type == tokenize.COMMENT else None
            if found is None:
                continue
            wanted = NOQA_REASON if found[1] == "noqa" else IGNORE_REASON
            if not wanted.fullmatch(found["rest"]):
                bare.append(f"{module.place}:{token.start[0]} {token.string}")
    refuse(bare, "write '# noqa: CODE - reason' or '# type: ignore[code]  # reason':")


def test_nothing_names_a_machine_or_a_registry(root: Path, files: Iterable[Path]) -> None:
    found = []
    for path in files:
        if path.suffix in MAY_HOLD_BYTES:
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            found += [f"{path.relative_to(root)}:{number} holds {word!r}" for word in PRIVATE if word in line]
    refuse(found, "nothing in the repository may depend on one machine or name a registry:")


def test_kit_names_no_store(kit: Package) -> None:
    found = [
        f"{path.relative_to(kit.folder)}:{number} {line.strip()}"
        for path in [*(kit.folder / "src").rglob("*"), kit.folder / "README.md", kit.folder / "pyproject.toml"]
        if path.is_file() and path.suffix != ".pyc"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if STORES.search(line)
    ]
    refuse(found, "the kit must not know a store:")
