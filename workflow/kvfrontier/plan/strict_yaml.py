"""PyYAML's SafeLoader made strict: scalars of YAML 1.2, numbers of 64 bits, and no text that grows as it is read."""

from __future__ import annotations

import re
from itertools import accumulate

import yaml
from yaml.constructor import ConstructorError


class StrictLoader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2, so that `decode_evict: off` stays text, as editors show it."""

    yaml_implicit_resolvers: dict[str, list] = {}  # noqa: RUF012 (PyYAML's own name; filled below)

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """As inherited, but each key is kept once: merges of merges of merges would hold it a billion times."""
        super().flatten_mapping(node)
        node.value = list({key.value: (key, item) for key, item in node.value}.values())


for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("merge", r"<<", "<"),
):
    _regexp = re.compile(f"^(?:{_pattern})$")
    StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", _regexp, [*_first, *([""] if _tag == "null" else [])]
    )


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    try:
        value = int(node.value, 16) if node.value.startswith("0x") else int(node.value)
    except ValueError as error:  # `!!int x`, or thousands of digits
        raise ConstructorError(None, None, str(error).partition(":")[0], node.start_mark) from None
    if abs(value) >= 2**63:
        raise ConstructorError(
            None, None, "a whole number beyond 64 bits; put it in quotes if it is text", node.start_mark
        )
    return value


StrictLoader.add_constructor("tag:yaml.org,2002:int", _construct_int)


def nesting(text: str) -> int:
    """How deep brackets stand within brackets at most, of which reading takes the square of the time."""
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in re.findall(r"[\[\]{}]", text)), default=0)
