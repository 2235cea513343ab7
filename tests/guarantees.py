"""The page of guarantees: what the kit says of each of our targets. `python tests/guarantees.py` writes it anew."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "anarchon-core" / "docs" / "guarantees.md"
BEGIN, END = "<!-- table: written by tests/guarantees.py from the kit's reports -->", "<!-- end -->"
HEAD = f"""# What each backend guarantees

Each cell is the verdict of `anarchon-conformance` on a real server, and a test compares it with a fresh run: *pass*; *not
claimed*, where a limit of the backend says so; *not run*, where the store has no side door for the test. The clauses stand in
[the contract](contract.md). [Write your own backend](write-a-backend.md) shows how to get such a column for another store.

{BEGIN}
{END}

A claim-only backend (stream-id, script, idmp) only decides who is first: the clauses for lease backends are not claimed, and
it does not do overlap protection, takeover, retries, catch-up, hand-over or pause.
"""


def table_rows() -> dict[str, dict[str, str]]:
    """Return the page's verdicts: clause → target → verdict."""
    lines = [line for line in PAGE.read_text().partition(BEGIN)[2].partition(END)[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = cells[0][2:]
    return {row[0]: dict(zip(names, row[2:], strict=True)) for row in cells[2:]}


def page_of(reports: Mapping[str, dict[str, object]]) -> str:
    """Return the page for the reports by target name."""
    rows: dict[tuple[str, str], list[str]] = {}
    for report in reports.values():
        clauses = report["clauses"]
        assert isinstance(clauses, list)
        for row in clauses:
            rows.setdefault((row["clause"], row["title"]), []).append(row["verdict"])
    lines = [f"| clause | | {' | '.join(reports)} |", f"|{'---|' * (len(reports) + 2)}"]
    lines += [f"| {number} | {title} | {' | '.join(verdicts)} |" for (number, title), verdicts in rows.items()]
    return HEAD.replace(BEGIN, BEGIN + "\n" + "\n".join(lines))


def main() -> int:
    """Run the kit on every target and write the page."""
    from anarchon_conformance import Profile
    from anarchon_conformance.render import json_of, text_of
    from stores.fleet import Fleet
    from targets import TARGETS

    reports: dict[str, dict[str, object]] = {}
    with Fleet() as fleet, tempfile.TemporaryDirectory() as folder:
        for number, ours in enumerate(TARGETS):
            place = Path(folder) / str(number)
            place.mkdir()
            report = ours.report(fleet, place, Profile.DEFAULT)
            print(text_of(report), flush=True)
            reports[ours.name] = json.loads(json_of(report))
    PAGE.write_text(page_of(reports))
    return 0 if all(report["passed"] for report in reports.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
