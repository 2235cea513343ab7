"""The page about `why` shows what the code says, reason by reason. Run this file to write its table anew."""

from __future__ import annotations

from pathlib import Path

from anarchon.why import Verdict, explain
from reasons import REASONS

PAGE = Path(__file__).parents[2] / "docs" / "why.md"
BEGIN = "<!-- reasons: written by anarchon-core/tests/why/test_page.py from anarchon.why.explain -->"
END = "<!-- end -->"


def table() -> str:
    rows = ["| reason | verdict | what it says | a claim-only backend |", "|---|---|---|---|"]
    for reason in REASONS:
        answer = explain(reason.facts)
        rows.append(f"| {reason.name} | `{answer.verdict}` | {answer.text} | {reason.claim_only or 'the same'} |")
    return "\n".join(rows)


def test_the_page_shows_what_the_code_says() -> None:
    text = PAGE.read_text()
    assert text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip() == table().strip(), "run this file to write it anew"


def test_every_verdict_is_on_the_page() -> None:
    assert {reason.verdict for reason in REASONS} == set(Verdict)


def _write() -> None:
    text = PAGE.read_text()
    PAGE.write_text(text[: text.index(BEGIN) + len(BEGIN)] + "\n" + table() + "\n" + text[text.index(END) :])


if __name__ == "__main__":
    _write()
