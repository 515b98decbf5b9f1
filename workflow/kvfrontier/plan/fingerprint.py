"""What makes a measurement stale: the parts of a cell's fingerprint (architecture, section 4)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kvfrontier.errors import ConfigError, did_you_mean
from kvfrontier.plan.campaign import Campaign
from kvfrontier.plan.catalog import device_part
from kvfrontier.plan.cell import Cell, content_hash
from kvfrontier.plan.code import CodeBase
from kvfrontier.plan.environment import NOT_INSTALLED, Environment, qualified
from kvfrontier.plan.options import Option
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS

STRATEGY_CODE = ("strategies", "cache")
ENGINE_CODE = ("engines", "cache", "models", "costmodel")
WORKLOAD_CODE = ("workloads", "sources")


class Fingerprints:
    """Parts and fingerprints of a campaign's cells. All but the cell is worked out once a combination of plugins."""

    def __init__(self, campaign: Campaign, code: CodeBase, ignore: Iterable[str] = ()):
        self._campaign = campaign
        self._code = code
        self._ignore = tuple(ignore)
        self._parts: dict[tuple, tuple[dict[str, str], str]] = {}

    def parts(
        self, model: str, engine: Option, device: str, workload: Option, strategy: Option
    ) -> tuple[dict[str, str], str]:
        """All parts but `cell`, and the hash of those that count."""
        key = (model, engine.plugin.name, device, id(workload.plugin), _strategies(strategy.plugin))
        if key not in self._parts:
            parts = self._work_out(model, engine.plugin, device, workload, key[-1])
            counted = {name: value for name, value in parts.items() if not is_ignored(name, self._ignore)}
            self._parts[key] = parts, content_hash(counted)
        return self._parts[key]

    def _work_out(
        self, model: str, engine: Any, device: str, workload: Option, strategies: tuple[str, ...]
    ) -> dict[str, str]:
        campaign, code = self._campaign, self._code
        modelled, environment = engine.source == "model", engine.environment_on(campaign.devices[device])
        entry = campaign.models[model]
        parts = {
            # numbers of a cost model depend on the shape, measured ones on the weights
            "model": content_hash(vars(entry.spec)) if modelled else entry.identity,
            "strategy_code": code.code_hash(map(STRATEGIES.module, strategies), STRATEGY_CODE),
            "engine_code": code.code_hash([ENGINES.module(engine.name)], ENGINE_CODE),
            "workload_code": code.code_hash([WORKLOADS.module(workload.plugin.name)], WORKLOAD_CODE),
            "device": device_part(campaign.devices[device], modelled),
        }
        if workload.plugin.references:
            modules = [STRATEGIES.module(name) for name in workload.plugin.references]
            parts["reference_code"] = code.code_hash(modules, STRATEGY_CODE)
        if names := workload.plugin.data():
            parts["data"] = content_hash({name: self._data(name, workload) for name in names}, 16)
        for package in sorted({*engine.packages, *workload.plugin.packages}):
            parts[f"package:{package}"] = package_version(qualified(package, environment))
        return parts

    def _data(self, name: str, workload: Option) -> str:
        if name not in self._campaign.data:
            expected = f"a data source in config/data.yaml: {', '.join(self._campaign.data) or 'it has none'}"
            problem = self._campaign.document.problem(
                workload.keys[""], name, expected, did_you_mean(name, self._campaign.data)
            )
            raise ConfigError([problem])
        return self._campaign.data[name].sha256


def code_modules(part: str, cell: Cell) -> list[str]:
    """The modules of the running package whose code a part of a cell's fingerprint hashes; none for other parts."""
    strategy = STRATEGIES.get(cell.strategy.name)(**dict(cell.strategy.params))
    sources = {
        "strategy_code": (STRATEGIES, _strategies(strategy), STRATEGY_CODE),
        "engine_code": (ENGINES, (cell.engine.name,), ENGINE_CODE),
        "workload_code": (WORKLOADS, (cell.workload.name,), WORKLOAD_CODE),
    }
    if part not in sources:
        return []
    registry, names, within = sources[part]
    return sorted(CodeBase.installed().closure(map(registry.module, names), within))


def _strategies(plugin: Any) -> tuple[str, ...]:
    """The strategy and those it is made of."""
    return plugin.name, *plugin.made_of()


def fingerprint(cell_id: str, parts_hash: str) -> str:
    """32 hex digits: what a cell is, and everything around it that can change its numbers."""
    return hashlib.sha256(f"{cell_id}:{parts_hash}".encode()).hexdigest()[:32]


def is_ignored(part: str, ignore: Iterable[str]) -> bool:
    """Whether a part is set not to count; `package:*` matches all packages."""
    return any(fnmatchcase(part, pattern) for pattern in ignore)


def changed_parts(now: Mapping[str, str], before: Mapping[str, str], ignore: Iterable[str] = ()) -> list[str]:
    """Names of the parts that differ, in the order of the plan's; parts that do not count are left out."""
    names = dict.fromkeys([*now, *before])
    return [name for name in names if now.get(name) != before.get(name) and not is_ignored(name, ignore)]


def package_version(distribution: str) -> str:
    """Version of an installed distribution, read from its metadata; `not installed` where it is missing.

    `kvpress/transformers`: the one in the environment `kvpress`.
    """
    environment, _, name = distribution.rpartition("/")
    return Environment(environment).version(name) if environment else _installed(name)


@lru_cache(maxsize=256)
def _installed(distribution: str) -> str:
    try:
        return version(distribution)
    except (PackageNotFoundError, ValueError):  # a plan that somebody edited may hold any name
        return NOT_INSTALLED
