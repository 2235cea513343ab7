"""Who may import whom: between the packages, and inside the core only downwards."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from importlib.metadata import packages_distributions, requires

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from workspace import Import, Module, Package, refuse

LAYERS: tuple[tuple[str, ...], ...] = (
    # words, rules and the border to a store
    ("errors", "types", "contract", "url", "backend", "hookspecs", "clock"),
    # finding plugins and backends; the reference backend
    ("plugins", "observers", "registry", "memory"),
    # what an application writes
    ("schedule", "run", "handlers", "job"),
    # the store as the scheduler sees it
    ("storetime", "store", "context", "effects"),
    # one slot, from tick to record
    ("notes", "info", "lease", "watch", "ticker", "attempt", "claiming", "queue", "runner", "catchup"),
    # the thread and loop that own all of these
    ("engine", "manual", "runtime", "signals", "health", "why"),
    # the façade
    ("portal", "scheduler"),
    ("", "testing"),
    # programs
    ("crontab", "cli", "__main__"),
)
"""The modules of the core from the bottom up, "" being the package itself: each imports only those before it."""

BORDER = frozenset({"backend", "types", "errors", "url", "hookspecs", "clock"})
"""What a backend may import of the core: the public border, and the one source of time."""

NOT_FOR_THE_KIT = frozenset({"memory"})
"""Modules of the core that are backends: the kit knows none."""


def unit(target: str) -> str:
    """Return the module of the core that an absolute name belongs to, "" for the package itself."""
    return target.split(".")[1] if "." in target else ""


def of(target: str, package: str) -> bool:
    return target.partition(".")[0] == package


def test_core_imports_no_other_package_of_ours(core: Package, packages: Iterable[Package]) -> None:
    others = {package.import_name for package in packages} - {"anarchon"}
    found = [
        f"{module.place}:{each.line} imports {each.target}"
        for module in core.modules
        for each in core.imports(module)
        if each.target.partition(".")[0] in others
    ]
    refuse(found, "the core knows no other package of ours:")


def test_core_modules_import_only_downwards(core: Package) -> None:
    order = {name: place for place, name in enumerate(name for layer in LAYERS for name in layer)}
    nowhere = [module.place for module in core.modules if unit(module.name) not in order]
    refuse(nowhere, "these modules have no layer; add them to LAYERS in tests/policy/test_imports.py, above all they import:")
    found = []
    for module in core.modules:
        mine = unit(module.name)
        for each in core.imports(module):
            theirs = unit(each.target)
            if of(each.target, "anarchon") and not each.typing_only and theirs != mine and order[theirs] >= order[mine]:
                found.append(f"{module.place}:{each.line} imports {each.target}, which lies above it")
    refuse(found, "imports of the core go downwards only (LAYERS):")


def test_no_package_has_an_import_cycle(packages: Iterable[Package]) -> None:
    cycles = []
    for package in packages:
        graph = {
            module.name: {
                each.target
                for each in package.imports(module)
                if of(each.target, package.import_name) and not (each.typing_only or each.lazy) and each.target != module.name
            }
            for module in package.modules
        }
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            cycles.append(f"{package.name}: {' → '.join(error.args[1])}")
    refuse(cycles, "modules import each other in a circle:")


def test_backends_import_only_the_border_of_the_core(backends: Iterable[Package]) -> None:
    found = [
        f"{module.place}:{each.line} imports {each.target}"
        for package in backends
        for module in package.modules
        for each in package.imports(module)
        if of(each.target, "anarchon") and unit(each.target) not in BORDER and not border_name(module, each)
    ]
    refuse(found, "a backend sees the border of the core and nothing else:")


def border_name(module: Module, each: Import) -> bool:
    """Return whether `from anarchon import NAME` names modules of the border."""
    line = module.text.splitlines()[each.line - 1]
    names = line.partition(" import ")[2].split("#")[0].replace(",", " ").split()
    return each.target == "anarchon" and bool(names) and set(names) <= BORDER


def test_kit_imports_public_core_and_no_backend(kit: Package, backends: Iterable[Package]) -> None:
    stores = {package.import_name for package in backends}
    found = [
        f"{module.place}:{each.line} imports {each.target}"
        for module in kit.modules
        for each in kit.imports(module)
        if each.target.partition(".")[0] in stores
        or (of(each.target, "anarchon") and (unit(each.target) in NOT_FOR_THE_KIT or "._" in each.target))
    ]
    refuse(found, "the kit sees the core's public modules and no backend:")


def brought(requirement: Requirement) -> Iterator[str]:
    """Yield what a requirement brings by name: itself, and what its extras ask for."""
    yield requirement.name
    for extra in requirement.extras:
        for asked in map(Requirement, requires(requirement.name) or []):
            if asked.marker is not None and "extra" in str(asked.marker) and asked.marker.evaluate({"extra": extra}):
                yield asked.name


def test_packages_import_only_what_they_depend_on(packages: Iterable[Package]) -> None:
    packages = tuple(packages)
    providers = {**packages_distributions(), **{package.import_name: [package.name] for package in packages}}
    found = []
    for package in packages:
        optional = package.project.get("optional-dependencies", {}).values()
        declared = map(Requirement, [*package.project["dependencies"], *(text for texts in optional for text in texts)])
        wanted = {canonicalize_name(name) for requirement in declared for name in brought(requirement)}
        for module in package.modules:
            for each in package.imports(module):
                top = each.target.partition(".")[0]
                if top in sys.stdlib_module_names or top == package.import_name:
                    continue
                if not {canonicalize_name(name) for name in providers.get(top, [top])} & wanted:
                    found.append(f"{module.place}:{each.line} imports {top}, which {package.name} does not depend on")
    refuse(found, "declare the dependency, or do without:")
