"""The nightly reports: `python tests/nightly.py [NAME ...]` runs everything that the kit can do on our targets.

Each report is written to `tests/reports/`; without names all targets are run, which takes hours.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

REPORTS = Path(__file__).with_name("reports")


def main(names: list[str]) -> int:
    """Run the kit's nightly profile on the targets of these names and write down what it says."""
    from anarchon_conformance import Profile
    from anarchon_conformance.render import markdown_of, text_of
    from stores.fleet import Fleet
    from targets import SEED, TARGETS

    unknown = set(names) - {ours.name for ours in TARGETS}
    if unknown:
        print(f"no target {sorted(unknown)[0]!r}; there are: {', '.join(ours.name for ours in TARGETS)}", file=sys.stderr)
        return 2
    git = ("git", "-C", str(REPORTS.parent), "rev-parse", "--short", "HEAD")
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "no commit"
    passed = True
    for ours in TARGETS:
        if names and ours.name not in names:
            continue
        with Fleet() as fleet, tempfile.TemporaryDirectory() as folder:
            report = ours.report(fleet, Path(folder), Profile.NIGHTLY)
        print(text_of(report), flush=True)
        now = datetime.now(UTC)
        head = f"# {ours.name}: nightly run of {now:%Y-%m-%d}\n\nSeed {SEED}, commit {commit}, {os.cpu_count()} cores.\n\n"
        REPORTS.mkdir(exist_ok=True)
        page = REPORTS / f"{re.sub('[^a-z0-9.]+', '-', ours.name.lower())}.md"
        page.write_text(head + markdown_of(report))
        passed = passed and report.passed
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
