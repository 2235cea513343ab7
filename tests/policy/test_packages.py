"""What every distribution must have: types, one version, the licence, a lock that covers it."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from workspace import Package, refuse

PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


@pytest.fixture(scope="session")
def locked(root: Path) -> dict[str, str]:
    """The locked version of each dependency."""
    return {canonicalize_name(name): version for name, version in PINNED.findall((root / "requirements.lock").read_text())}


def test_every_package_is_typed(packages: Iterable[Package]) -> None:
    assert not [p.name for p in packages if not (p.folder / "src" / p.import_name / "py.typed").is_file()]


def test_every_package_has_a_readme_and_the_licence(packages: Iterable[Package]) -> None:
    for package in packages:
        assert (package.folder / package.project["readme"]).is_file(), package.name
        assert package.project["license"] == "Apache-2.0", package.name


def test_versions_go_in_lock_step(packages: Iterable[Package]) -> None:
    assert len({package.project["version"] for package in packages}) == 1


def test_packages_ask_for_this_minor_version_of_each_other(packages: Iterable[Package]) -> None:
    ours = {package.name: package.project["version"] for package in packages}
    for package in packages:
        for requirement in map(Requirement, package.project["dependencies"]):
            if requirement.name in ours:
                major, minor = ours[requirement.name].split(".")[:2]
                wanted = {f">={major}.{minor}", f"<{major}.{int(minor) + 1}"}
                assert set(map(str, requirement.specifier)) == wanted, f"{package.name}: {requirement}"


def test_the_changelog_knows_the_version(root: Path, core: Package) -> None:
    version = core.project["version"]
    assert re.search(rf"^## \[(Unreleased|{re.escape(version)})\]", (root / "CHANGELOG.md").read_text(), re.MULTILINE)


def test_the_lock_covers_every_dependency(root: Path, packages: Iterable[Package], locked: dict[str, str]) -> None:
    packages = tuple(packages)
    groups = tomllib.loads((root / "pyproject.toml").read_text())["dependency-groups"]
    wanted = [(package.name, text) for package in packages for text in package.project["dependencies"]]
    wanted += [(p.name, t) for p in packages for texts in p.project.get("optional-dependencies", {}).values() for t in texts]
    wanted += [("the root", text) for texts in groups.values() for text in texts]
    ours = {package.name for package in packages}
    stale = []
    for owner, text in wanted:
        requirement = Requirement(text)
        version = locked.get(canonicalize_name(requirement.name))
        if requirement.name not in ours and (version is None or not requirement.specifier.contains(version)):
            stale.append(f"{owner} asks for {text}, locked is {version}")
    refuse(stale, "refresh the lock as tests/README.md says:")


def test_the_lock_holds_hashes_and_no_place(root: Path) -> None:
    text = (root / "requirements.lock").read_text()
    entries = re.split(r"\n(?=[A-Za-z0-9])", text)
    assert not [entry.split()[0] for entry in entries if "--hash=sha256:" not in entry]
    assert "://" not in text
    assert "--index" not in text
