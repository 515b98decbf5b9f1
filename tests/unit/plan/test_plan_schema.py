"""The JSON schemas that editors use: made from the code, checked in, and true of the files that we ship."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import kvfrontier
import pytest
import yaml
from kvfrontier.plan.document import read_document
from kvfrontier.plan.schema import schemas

FOLDER = Path(kvfrontier.__file__).parents[1] / "schemas"
CONFIG = Path(kvfrontier.__file__).parents[2] / "config"
SCHEMAS = schemas()


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_checked_in_schema_is_the_codes(name):
    text = json.dumps(SCHEMAS[name], indent=2, ensure_ascii=False) + "\n"
    assert (FOLDER / name).read_text() == text, "the code's settings changed: run `kvfrontier schema`"


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_valid_itself(name):
    jsonschema.Draft7Validator.check_schema(SCHEMAS[name])


@pytest.mark.parametrize("name", ["default", "smoke"])  # not a user's own ones
def test_the_shipped_campaigns_satisfy_it_and_name_it(name):
    path = CONFIG / "campaigns" / f"{name}.yaml"
    jsonschema.validate(read_document(path, path.name).data, SCHEMAS["campaign.schema.json"])
    assert "yaml-language-server: $schema=../../workflow/schemas/campaign.schema.json" in path.read_text()


@pytest.mark.parametrize("name", ["config", "models", "devices", "data"])
def test_the_shipped_catalogs_satisfy_theirs(name):
    path = CONFIG / f"{name}.yaml"
    jsonschema.validate(read_document(path, path.name).data, SCHEMAS[f"{name}.schema.json"])


def test_editors_can_complete_strategies_and_their_parameters():
    entry = SCHEMAS["campaign.schema.json"]["$defs"]["strategyEntry"]["anyOf"]
    assert {"full", "h2o"} <= {item["const"] for item in entry if "const" in item}
    h2o = next(item for item in entry if item.get("properties", {}).get("name") == {"const": "h2o"})
    assert h2o["properties"]["budget"]["description"]
    assert "default" in h2o["properties"]["budget"]
    axes = SCHEMAS["campaign.schema.json"]["properties"]["axes"]["properties"]
    assert {"strategy.budget", "workload.batch_size", "workload.context_tokens"} <= set(axes)


@pytest.mark.parametrize(
    "change",
    [
        {"axes": {"stratgy": ["full"]}},
        {"axes": {"strategy": [{"name": "h2o", "budgt": 0.1}]}},
        {"axes": {"strategy": ["h20"]}},
        {"axes": {"strategy.budget": [0]}},
        {"axes": {"strategy.budget": ["0.3"]}},
        {"axes": {"seed": []}},
        {"reapeats": 3},
        {"constraints": [{"drop": {"strategi": "full"}}]},
        {"constraints": [{"drop": {"seed": {"grt": 1}}}]},
    ],
)
def test_editors_see_mistakes(change):
    validator = jsonschema.Draft7Validator(SCHEMAS["campaign.schema.json"])
    good = {"device": "cpu", "axes": {"strategy": ["full", {"name": "h2o", "budget": [0.1, 64]}]}}
    assert validator.is_valid(good)
    assert not validator.is_valid({**good, **change})


def test_the_strict_reader_agrees_with_yaml_on_what_we_ship():
    for path in [*CONFIG.glob("*.yaml"), *(CONFIG / "campaigns").glob("*.yaml")]:
        document = read_document(path, path.name)
        assert list(document.data) == list(yaml.safe_load(path.read_text()))
