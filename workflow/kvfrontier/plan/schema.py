"""JSON schemas of the config documents, made from the shapes and the plugins: what editors complete from."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import TypeAdapter

from kvfrontier.plan.axes import PLUGIN_SECTIONS
from kvfrontier.plan.constraints import OPERATORS, ORDERINGS
from kvfrontier.plan.options import REGISTRIES, field_names, takes_list
from kvfrontier.plan.shape import CampaignShape, ConfigShape, DataShape, DeviceShape, ModelShape

Schema = dict[str, Any]
DRAFT = "http://json-schema.org/draft-07/schema#"


def schemas() -> dict[str, Schema]:
    """File name under workflow/schemas -> schema. Imports every plugin."""
    catalogs = {"models": ModelShape, "devices": DeviceShape, "data": DataShape}
    made = {"campaign": _campaign(), "config": ConfigShape.model_json_schema()}
    made |= {
        name: {"type": "object", "description": f"config/{name}.yaml by name", **_entries(shape.model_json_schema())}
        for name, shape in catalogs.items()
    }
    return {f"{name}.schema.json": {"$schema": DRAFT, **_without_titles(schema)} for name, schema in made.items()}


def _entries(shape: Schema) -> Schema:
    definitions = shape.pop("$defs", {})
    return {"additionalProperties": shape, **({"$defs": definitions} if definitions else {})}


def _campaign() -> Schema:
    schema = CampaignShape.model_json_schema()
    axes = _axes()
    properties = schema["properties"]
    properties["axes"] |= {
        "properties": {path: _one_or_more(value) for path, value in axes.items()},
        "additionalProperties": False,
    }
    columns = {path: {"type": "array", "items": _without_notes(value), "minItems": 1} for path, value in axes.items()}
    properties["zip"]["items"] = {
        "type": "object",
        "properties": columns,
        "additionalProperties": False,
        "minProperties": 1,
    }
    schema["$defs"] |= {f"{section}Entry": _entry(section) for section in PLUGIN_SECTIONS}
    schema["$defs"]["condition"] = _condition()
    conditions = {
        "type": "object",
        "additionalProperties": {"$ref": "#/$defs/condition"},
        "propertyNames": {"enum": sorted(axes)},
    }
    for part in ("drop", "require", "when"):
        described = schema["$defs"]["ConstraintShape"]["properties"]
        described[part] = {"description": described[part]["description"], **conditions}
    return schema


def _axes() -> dict[str, Schema]:
    """Every axis by its path, with the schema of one value."""
    axes: dict[str, Schema] = {
        "model": {"type": "string", "description": "A name in config/models.yaml"},
        "device": {"type": "string", "description": "A name in config/devices.yaml"},
        "seed": {"type": "integer", "minimum": 0, "description": "Decides every random choice of a workload"},
    }
    for section in PLUGIN_SECTIONS:
        axes[section] = {"$ref": f"#/$defs/{section}Entry"}
        by_field: dict[str, list[tuple[str, Schema]]] = {}
        for name in REGISTRIES[section].names():
            for field, value in _fields(REGISTRIES[section].get(name)).items():
                by_field.setdefault(field, []).append((name, value))
        axes |= {f"{section}.{field}": _shared(found) for field, found in sorted(by_field.items())}
    return axes


def _shared(found: list[tuple[str, Schema]]) -> Schema:
    """One field of several plugins: what any of them takes; its description says whose it is."""
    variants = []
    for _, value in found:
        bare = _without_notes(value)
        if bare not in variants:
            variants.append(bare)
    described = next((value["description"] for _, value in found if "description" in value), "")
    owners = ", ".join(name for name, _ in found)
    return {"description": f"{owners}: {described}", **(variants[0] if len(variants) == 1 else {"anyOf": variants})}


def _entry(section: str) -> Schema:
    """A plugin by name, or a mapping with its name and parameters."""
    classes = {name: REGISTRIES[section].get(name) for name in REGISTRIES[section].names()}
    names = [{"const": name, "description": _summary(cls)} for name, cls in classes.items()]
    mappings = []
    for name, cls in classes.items():
        fields = {
            field: value if takes_list(cls, field) else _one_or_more(value) for field, value in _fields(cls).items()
        }
        mappings.append(
            {
                "type": "object",
                "description": _summary(cls),
                "properties": {"name": {"const": name}, **fields},
                "required": ["name"],
                "additionalProperties": False,
            }
        )
    return {"anyOf": [*names, *mappings]}


def _fields(cls: type) -> dict[str, Schema]:
    """JSON schema of each parameter of a plugin. Plugins' parameters are plain values, so nothing is referenced."""
    properties = TypeAdapter(cls).json_schema().get("properties", {})
    return {
        name: {key: value for key, value in properties[name].items() if key != "title"} for name in field_names(cls)
    }


def _summary(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


def _one_or_more(value: Schema) -> Schema:
    """A value, or a list of values that multiplies; description and default stay outside."""
    notes = {key: value[key] for key in ("description", "default") if key in value}
    bare = _without_notes(value)
    return {**notes, "anyOf": [bare, {"type": "array", "items": bare, "minItems": 1}]}


def _without_notes(value: Schema) -> Schema:
    return {key: item for key, item in value.items() if key not in ("description", "default", "title")}


def _condition() -> Schema:
    value = {"type": ["string", "number", "boolean", "null"]}
    values = {"type": "array", "items": value}
    numbers = {name: {"type": "number"} for name in ORDERINGS}
    operators = {"eq": value, "ne": value, **numbers, "in": values, "not_in": values}
    tests = {name: operators[name] for name in OPERATORS}
    mapping = {"type": "object", "properties": tests, "additionalProperties": False, "minProperties": 1}
    return {"description": "A value (equal), a list (one of) or operators", "anyOf": [value, values, mapping]}


def _without_titles(schema: Any) -> Any:
    """Without the titles that pydantic adds: they repeat the key."""
    if isinstance(schema, dict):
        return {
            key: _without_titles(value)
            for key, value in schema.items()
            if not (key == "title" and isinstance(value, str))
        }
    return [_without_titles(item) for item in schema] if isinstance(schema, list) else schema
