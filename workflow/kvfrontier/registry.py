"""Plugins found by file name: one module, one registered class, the same name.

Listing names reads a folder and imports nothing; a plugin's module is imported when it is asked for.
Files that start with an underscore, and `base.py`, are not plugins.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Generic, TypeVar, dataclass_transform

from pydantic import Field

from kvfrontier.errors import KVFrontierError, a, did_you_mean
from kvfrontier.parameters import settings

T = TypeVar("T")


class UnknownPlugin(KVFrontierError):
    """No plugin of that kind has that name."""


class Registry(Generic[T]):
    """The plugins of one kind, in one package (`Registry("strategy", "kvfrontier.strategies")`)."""

    def __init__(self, kind: str, package: str):
        self.kind = kind
        self.package = package
        self._classes: dict[str, type[T]] = {}

    def names(self) -> tuple[str, ...]:
        """Names of all plugins, sorted, without importing any of them."""
        folder = find_spec(self.package).submodule_search_locations
        found = (module.name for module in pkgutil.iter_modules(folder))
        return tuple(sorted(name for name in found if not name.startswith("_") and name != "base"))

    def module(self, name: str) -> str:
        """Dotted name of the module that holds plugin `name`; raises UnknownPlugin with the nearest spelling."""
        if name not in self.names():
            known = ", ".join(self.names())
            raise UnknownPlugin(f"no {self.kind} is called '{name}'. {did_you_mean(name, self.names())} Known: {known}")
        return f"{self.package}.{name}"

    def get(self, name: str) -> type[T]:
        """The class registered under `name`; imports its module on first use."""
        if name not in self._classes:
            module = self.module(name)
            try:
                import_module(module)
            except SyntaxError as error:
                where = f"{error.filename}:{error.lineno}"
                raise KVFrontierError(f"{self.kind} {name} cannot be read: {where}: {error.msg}") from error
        if name not in self._classes:
            raise KVFrontierError(f"{self.package}/{name}.py must register {a(self.kind)} called '{name}'")
        return self._classes[name]

    @dataclass_transform(frozen_default=True, field_specifiers=(Field,))
    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """Class decorator: `@strategy("h2o")` in `strategies/h2o.py`; makes the class a frozen, validated dataclass."""

        def add(cls: type[T]) -> type[T]:
            if cls.__module__ != f"{self.package}.{name}":
                raise KVFrontierError(f"{cls.__module__} registers '{name}': module and {self.kind} share one name")
            plugin = settings(cls)
            plugin.name = name
            self._classes[name] = plugin
            return plugin

        return add


STRATEGIES: Registry = Registry("strategy", "kvfrontier.strategies")
ENGINES: Registry = Registry("engine", "kvfrontier.engines")
WORKLOADS: Registry = Registry("workload", "kvfrontier.workloads")
