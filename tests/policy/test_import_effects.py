"""Importing a package does nothing: no file, socket, process, thread or environment; and no heavy dependency."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable

import pytest
from workspace import Package, refuse

WATCHED = """
import importlib, sys
from importlib.util import find_spec

import pytest, hypothesis  # the kit's hosts do things of their own when they are imported
for name in sys.argv[2].split(","):
    importlib.import_module(name)

CODE = (".py", ".pyc", ".so", ".pth", ".zip", ".sql", ".lua")
BAD = ("socket.", "subprocess.", "sqlite3.connect", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.putenv",
       "os.mkdir", "os.remove", "os.rename", "_thread.start_new_thread", "shutil.", "tempfile.")
seen = []

def watch(event, arguments):
    if event != "open" and not event.startswith(BAD):
        return
    where = sys._getframe(1)
    ours = None
    while where is not None:
        name = where.f_globals.get("__name__", "")
        ours = ours or (name if name.startswith("anarchon") else None)
        where = where.f_back
    if ours is None:
        return
    if event == "open" and not str(arguments[0]).endswith(CODE):
        seen.append(f"{ours} opens {arguments[0]}")
    elif event != "open":
        seen.append(f"{ours} causes {event} {arguments!r:.100}")

sys.addaudithook(watch)
for name in sys.argv[1].split(","):
    importlib.import_module(name)
print("\\n".join(seen))
"""

LIGHT = """
import sys
import anarchon
print("\\n".join(name for name in sys.argv[1].split(",") if name in sys.modules))
"""

HEAVY = (
    "rich",  # only the command line draws
    "click",
    "croniter",  # loaded with the first schedule
    "dateutil",
    "sqlite3",
    "pytest",
    "unittest",
    "multiprocessing",
    "urllib.request",
    "xml",
)
"""What `import anarchon` must not load: its budget is spent on asyncio and pluggy (measured in tests/bench)."""


def python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *arguments], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_any_module_touches_nothing(packages: Iterable[Package]) -> None:
    names = [module.name for package in packages for module in package.modules if not module.name.endswith("__main__")]
    drivers = {"pluggy", "click", "rich.console", "rich.live", "rich.table", "croniter", "tzdata"}
    for package in packages:
        drivers |= {
            each.target
            for module in package.modules
            for each in package.imports(module)
            if not (each.target.startswith("anarchon") or each.typing_only or each.lazy)
        } - {"__future__"}
    seen = python(WATCHED, ",".join(names), ",".join(sorted(drivers))).splitlines()
    refuse(seen, "importing a module of ours must touch nothing:")


def test_importing_anarchon_loads_nothing_heavy() -> None:
    assert python(LIGHT, ",".join(HEAVY)) == ""


@pytest.mark.parametrize("variable", ["ANARCHON_URL", "ANARCHON_DISABLE_PLUGINS"])
def test_importing_anarchon_does_not_read_its_variables(variable: str) -> None:
    code = (
        "import os\n"
        "class Env(dict):\n"
        "    def _seen(self, key):\n"
        f"        assert key != {variable!r}, 'read at import'\n"
        "    def __getitem__(self, key): self._seen(key); return dict.__getitem__(self, key)\n"
        "    def get(self, key, default=None): self._seen(key); return dict.get(self, key, default)\n"
        "os.environ = Env(os.environ)\n"
        "import anarchon\n"
        "print('quiet')"
    )
    assert python(code) == "quiet"
