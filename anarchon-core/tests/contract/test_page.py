"""The contract page says what `anarchon.contract.CLAUSES` says. `python -m …` writes the table anew: see `_write`."""

from __future__ import annotations

from pathlib import Path

from anarchon.contract import CLAUSES, Scope

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"
BEGIN = "<!-- clauses: written by anarchon-core/tests/contract/test_page.py from anarchon.contract.CLAUSES -->"
END = "<!-- end -->"


def table() -> str:
    parts: list[str] = []
    for scope in Scope:
        parts += [f"\n### For {scope}\n", "| clause | | rule |", "|---|---|---|"]
        parts += [f"| {each.number} | {each.title} | {each.rule} |" for each in CLAUSES if each.scope is scope]
    return "\n".join(parts) + "\n"


def test_the_page_holds_the_clauses_as_the_code_does() -> None:
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip() == table().strip(), "run this file to write it anew"


def test_clause_numbers_are_complete_and_in_order() -> None:
    numbers = [each.number for each in CLAUSES]
    assert numbers == [f"C{n}" for n in range(1, 26)] + [f"K{n}" for n in range(1, 14)]


def _write() -> None:
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + "\n" + table() + text[text.index(END) :])


if __name__ == "__main__":
    _write()
