"""The table of reports is complete, and every test that it names exists; each report is the id of a collected case."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

from reports import REPORTS
from table import FURTHER, SECTIONS
from workspace import ROOT, refuse

FOLDER = Path(__file__).parent


def test_every_report_has_one_row() -> None:
    counts = Counter(row.report for section in SECTIONS for row in section.rows)
    refuse([f"{report}: {count} rows" for report, count in counts.items() if count > 1], "a report has one row:")
    refuse(sorted(set(REPORTS) ^ set(counts)), "reports without a row, or rows without a report in reports.py:")
    assert len(REPORTS) == len(set(REPORTS))


def test_every_report_is_the_id_of_a_collected_case() -> None:
    words = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", str(FOLDER)]
    listed = subprocess.run(words, cwd=ROOT, check=False, capture_output=True, text=True, timeout=100)
    place = FOLDER.relative_to(ROOT)
    collected = set(listed.stdout.splitlines())
    wanted = {f"{place}/{section.test}[{row.report}]" for section in SECTIONS for row in section.rows}
    refuse(sorted(wanted - collected), "these cases are not collected:")
    cases = {line for line in collected if line.startswith(f"{place}/") and line.endswith("]")}
    refuse(sorted(cases - wanted), "these cases have no row in table.py:")


def test_further_tests_exist() -> None:
    lost = []
    for report, nodes in FURTHER.items():
        assert report in REPORTS
        for node in nodes:
            path, _, name = node.partition("::")
            tree = ast.parse((ROOT / path).read_text()) if (ROOT / path).is_file() else ast.Module([], [])
            if name not in {each.name for each in tree.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}:
                lost.append(f"{report}: {node}")
    refuse(lost, "tests that the table names and that are not there:")
