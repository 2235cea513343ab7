"""The page of guarantees: what the kit says of each of our targets. `python tests/guarantees.py [NAME ...]` writes it anew."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from anarchon.contract import CLAUSES

PAGE = Path(__file__).resolve().parents[1] / "anarchon-core" / "docs" / "guarantees.md"
BEGIN, END = "<!-- table: written by tests/guarantees.py from the kit's reports -->", "<!-- end -->"
HEAD = f"""# What each backend guarantees

Each cell is the verdict of `anarchon-conformance` on a real server, and a test compares it with a fresh run: *pass*; *not
claimed*, where a limit of the backend says so; *not run*, where the store has no side door for the test. The clauses stand in
[the contract](contract.md). [Write your own backend](write-a-backend.md) shows how to get such a column for another store.
The targets in [the nightly reports](../../tests/reports) were also put through every tier that they allow, with
thousands of duels and, where the server can be killed, fifty kills.

{BEGIN}
{END}

A claim-only backend (stream-id, script, idmp) only decides who is first: the clauses for lease backends are not claimed, and
it does not do overlap protection, takeover, retries, catch-up, hand-over or pause.
"""


def table_rows() -> dict[str, dict[str, str]]:
    """Return the page's verdicts: clause → target → verdict; one table a package."""
    found: dict[str, dict[str, str]] = {}
    names: list[str] = []
    for line in PAGE.read_text().partition(BEGIN)[2].partition(END)[0].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if cells and cells[0] == "clause":
            names = cells[2:]
        elif cells and cells[0].startswith("C"):
            found.setdefault(cells[0], {}).update(zip(names, cells[2:], strict=True))
    return found


def page_of(verdicts: Mapping[str, Mapping[str, str]], packages: Mapping[str, str]) -> str:
    """Return the page for verdicts (target → clause → verdict) and the package of each target."""
    lines: list[str] = []
    for package in dict.fromkeys(packages.values()):
        targets = [target for target, owner in packages.items() if owner == package]
        lines += ["", f"## {package}", "", f"| clause | | {' | '.join(targets)} |", f"|{'---|' * (len(targets) + 2)}"]
        for clause in (each for each in CLAUSES if each.number.startswith("C")):
            cells = [verdicts[target][clause.number] for target in targets]
            lines.append(f"| {clause.number} | {clause.title} | {' | '.join(cells)} |")
    return HEAD.replace(BEGIN, BEGIN + "\n" + "\n".join(lines) + "\n")


def main(chosen: list[str]) -> int:
    """Run the kit on every target, or on the chosen ones (the others keep what the page says), and write the page."""
    from anarchon_conformance import Profile
    from anarchon_conformance.render import json_of, text_of
    from stores.fleet import Fleet
    from targets import TARGETS

    page = table_rows() if chosen else {}
    verdicts: dict[str, dict[str, str]] = {}
    passed = True
    with Fleet() as fleet, tempfile.TemporaryDirectory() as folder:
        for number, ours in enumerate(TARGETS):
            if chosen and ours.name not in chosen:
                verdicts[ours.name] = {clause: cells[ours.name] for clause, cells in page.items()}
                continue
            place = Path(folder) / str(number)
            place.mkdir()
            report = ours.report(fleet, place, Profile.DEFAULT)
            print(text_of(report), flush=True)
            verdicts[ours.name] = {row["clause"]: row["verdict"] for row in json.loads(json_of(report))["clauses"]}
            passed = passed and report.passed
    PAGE.write_text(page_of(verdicts, {ours.name: ours.package for ours in TARGETS}))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
