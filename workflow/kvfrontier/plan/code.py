"""Hashes of the package's own code: the syntax tree of a module and of what it imports, found without importing any.

Comments, docstrings, formatting and the `description` of a field do not count; imports inside functions do;
imports under `if TYPE_CHECKING:` do not, since they cannot change a number.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import kvfrontier
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS

PACKAGE = "kvfrontier"


class CodeBase:
    """The sources of the package under `root` (the folder with errors.py). Each file is parsed once.

    extra: more folders by dotted package name, as a plugin package's search path may have.
    """

    def __init__(self, root: Path, extra: dict[str, list[Path]] | None = None):
        self.root = root
        self.extra = extra or {}
        self._parsed: dict[Path, tuple[str, tuple[str, ...]]] = {}

    @classmethod
    def installed(cls) -> CodeBase:
        """The package that runs."""
        packages = [registry.package for registry in (STRATEGIES, ENGINES, WORKLOADS)]
        paths = {name: [Path(path) for path in find_spec(name).submodule_search_locations] for name in packages}
        return cls(Path(kvfrontier.__file__).parent, paths)

    def files(self) -> list[Path]:
        """Every source file, sorted."""
        folders = (folder for paths in self.extra.values() for folder in paths)
        return sorted({*self.root.rglob("*.py"), *(path for folder in folders for path in folder.glob("*.py"))})

    def code_hash(self, modules: Iterable[str], within: tuple[str, ...]) -> str:
        """Hash of the modules and of everything they import, directly or not, from the sub-packages `within`."""
        closure = self.closure(modules, within)
        text = "\n".join(f"{module} {self._parse(self.locate(module))[0]}" for module in sorted(closure))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def closure(self, modules: Iterable[str], within: tuple[str, ...]) -> set[str]:
        """Dotted names of the modules and of all they import from `within`, their packages' `__init__` included."""
        waiting, found = list(modules), set()
        while waiting:
            module = waiting.pop()
            if module in found or not self._inside(module, within) or self.locate(module) is None:
                continue
            found.add(module)
            waiting.append(module.rpartition(".")[0])
            waiting += self._parse(self.locate(module))[1]
        return found

    def locate(self, module: str) -> Path | None:
        """The file of a dotted module or package; None where there is none (a name inside a module)."""
        package, _, last = module.rpartition(".")
        folder = self.root.joinpath(*package.split(".")[1:])
        for base in (folder, *self.extra.get(package, ())):
            for path in (base / f"{last}.py", base / last / "__init__.py"):
                if path.is_file():
                    return path
        return None

    def _inside(self, module: str, within: tuple[str, ...]) -> bool:
        parts = module.split(".")
        return parts[0] == PACKAGE and len(parts) > 1 and parts[1] in within

    def _parse(self, path: Path) -> tuple[str, tuple[str, ...]]:
        if path not in self._parsed:
            self._parsed[path] = _digest(path.read_bytes(), self._package_of(path))
        return self._parsed[path]

    def _package_of(self, path: Path) -> str:
        """Dotted package a file belongs to, for its relative imports."""
        for name, folders in self.extra.items():
            if path.parent in folders:
                return name
        return ".".join([PACKAGE, *path.parent.relative_to(self.root).parts])


@lru_cache(maxsize=1024)
def _digest(source: bytes, package: str) -> tuple[str, tuple[str, ...]]:
    """Hash of one file's code, and the dotted names it may import."""
    tree = ast.parse(source)
    imports = tuple(sorted(set(_imports(tree, package))))
    return hashlib.sha256(_canonical(tree).encode()).hexdigest()[:16], imports


def _imports(node: ast.AST, package: str) -> Iterator[str]:
    """Every `a.b.c` that an import below `node` may load; names that are no modules are weeded out by `locate`."""
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
        for child in node.orelse:
            yield from _imports(child, package)
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            above = package.split(".")
            base = ".".join([*above[: len(above) - node.level + 1], *([base] if base else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)
    for child in ast.iter_child_nodes(node):
        yield from _imports(child, package)


def _canonical(node: object) -> str:
    """A syntax tree as text that is the same for the same code, whatever Python version parsed it.

    Fields that are absent or empty are left out, since newer versions add such fields.
    """
    if isinstance(node, ast.AST):
        fields = ((name, _kept(node, name, value)) for name, value in ast.iter_fields(node))
        inner = ",".join(f"{name}={_canonical(value)}" for name, value in fields if value is not None and value != [])
        return f"{type(node).__name__}({inner})"
    if isinstance(node, list):
        return f"[{','.join(_canonical(item) for item in node)}]"
    return f"{type(node).__name__}:{node!r}"


def _kept(node: ast.AST, name: str, value: object) -> object:
    """A field of a node without what is only there for readers: bare strings in a body, a Field's description."""
    if name in ("body", "orelse", "finalbody") and isinstance(value, list):
        return [item for item in value if not _is_bare_string(item)]
    if name == "keywords" and isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Field":
        return [item for item in value if item.arg != "description"]
    return value


def _is_bare_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
