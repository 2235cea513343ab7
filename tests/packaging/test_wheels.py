"""Distributions hold what they must and nothing else, and work where nothing of the checkout is."""

from __future__ import annotations

import json
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

from installs import Environment, run
from workspace import ROOT, Package, refuse

Built = dict[str, tuple[Path, Path]]


def test_wheels_hold_the_package_its_types_and_the_licence(packages: tuple[Package, ...], built: Built) -> None:
    for package in packages:
        with zipfile.ZipFile(built[package.name][1]) as archive:
            names = set(archive.namelist())
        assert f"{package.import_name}/py.typed" in names
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names), package.name
        modules = {
            f"{package.import_name}/{m.path.relative_to(package.folder / 'src' / package.import_name)}" for m in package.modules
        }
        assert modules <= names
        strange = {name for name in names if not name.startswith((f"{package.import_name}/", f"{package.import_name}-"))}
        refuse(sorted(name for name in strange if ".dist-info/" not in name), f"{package.name}: not part of the package:")


def test_sdists_hold_no_leftovers(packages: tuple[Package, ...], built: Built) -> None:
    for package in packages:
        with tarfile.open(built[package.name][0]) as archive:
            names = archive.getnames()
        refuse(
            [n for n in names if any(p in n for p in ("__pycache__", ".pytest_cache", ".hypothesis", ".db", ".venv"))],
            f"{package.name}: leftovers in the sdist:",
        )


def test_licences_are_the_one_of_the_repository(packages: tuple[Package, ...]) -> None:
    text = (ROOT / "LICENSE").read_text()
    assert [(package.folder / "LICENSE").read_text() == text for package in packages] == [True] * len(packages)


def test_metadata_asks_only_for_what_the_project_file_says(packages: tuple[Package, ...], built: Built) -> None:
    for package in packages:
        with zipfile.ZipFile(built[package.name][1]) as archive:
            name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            found = message_from_string(archive.read(name).decode())
        plain = [text for text in found.get_all("Requires-Dist", []) if "extra ==" not in text]
        assert len(plain) == len(package.project["dependencies"])
        assert found["License-Expression"] == "Apache-2.0"
        assert not [text for text in plain if "@" in text], "a requirement with a place in it"


def test_packages_import_in_a_fresh_environment(fresh: Environment, packages: tuple[Package, ...]) -> None:
    names = [package.import_name for package in packages if package.name != "anarchon-conformance"]
    code = f"import {', '.join(names)}; print([m.__file__ for m in ({', '.join(names)},)])"
    assert str(ROOT) not in fresh.eval(code)


def test_the_version_of_the_code_is_that_of_the_distribution(fresh: Environment, packages: tuple[Package, ...]) -> None:
    core = next(package for package in packages if package.name == "anarchon-core")
    assert fresh.eval("import anarchon; print(anarchon.__version__)") == core.project["version"]


def test_a_fresh_installation_runs_a_job(fresh: Environment, tmp_path: Path) -> None:
    code = f"""
import asyncio, anarchon

async def main():
    done = asyncio.Event()
    scheduler = anarchon.Scheduler("sqlite:///{tmp_path}/cron.db")

    @scheduler.job(anarchon.Every(seconds=1))
    async def tick(run):
        done.set()

    async with scheduler:
        async with asyncio.timeout(60):
            await done.wait()
    print("ran")

asyncio.run(main())
"""
    assert fresh.eval(code) == "ran"


def test_the_command_tells_version_and_backends(fresh: Environment, packages: tuple[Package, ...]) -> None:
    core = next(package for package in packages if package.name == "anarchon-core")
    anarchon = fresh.bin / "anarchon"
    assert core.project["version"] in run(anarchon, "--version")
    listed = run(anarchon, "backends", "--json")
    assert json.loads(listed)
    assert "sqlite" in listed
    assert "memory" in listed
