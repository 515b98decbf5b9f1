"""Every parameter of every plugin as a typed column of `cells`: `strategy_num_sinks`, `workload_repeats`, ..."""

from __future__ import annotations

import duckdb

from kvfrontier.errors import KVFrontierError
from kvfrontier.registry import ENGINES, STRATEGIES, WORKLOADS, Registry

REGISTRIES: dict[str, Registry] = {"engine": ENGINES, "strategy": STRATEGIES, "workload": WORKLOADS}
OWN_COLUMNS = frozenset({"name", "budget", "batch_size", "context_tokens", "output_tokens", "task"})
"""Parameters that `cells` already shows under their own name."""

_FIND = """
SELECT section, parameter, list(DISTINCT kind) AS kinds, list(DISTINCT plugin) AS plugins
FROM (SELECT DISTINCT section, plugin, parameter, json_type(settings, '$."' || parameter || '"') AS kind
      FROM (FROM (SELECT section, settings->>'name' AS plugin, settings, unnest(json_keys(settings)) AS parameter
                  FROM distinct_settings)
            WHERE regexp_full_match(parameter, '[A-Za-z_][A-Za-z0-9_]*')))  -- it becomes part of SQL
WHERE kind <> 'NULL' GROUP BY ALL ORDER BY ALL
"""


def build_parameters(connection: duckdb.DuckDBPyConnection) -> dict[str, str]:
    """Make the temporary table `parameters` (cell_id and one column a parameter) from `planned`.

    Returns column name -> comment. A column is BOOLEAN, BIGINT or DOUBLE where every value is, else VARCHAR.
    """
    sections = " UNION ALL ".join(
        f"SELECT DISTINCT '{section}' AS section, (parameters::JSON)->'{section}' AS settings FROM planned"
        for section in REGISTRIES
    )
    connection.execute(f"CREATE TEMP TABLE distinct_settings AS {sections}")
    selected, comments = [], {}
    for section, parameter, kinds, plugins in connection.execute(_FIND).fetchall():
        if parameter in OWN_COLUMNS:
            continue
        column = f"{section}_{parameter}"
        source = f"""settings->>'$.{section}."{parameter}"'"""
        selected.append(f'TRY_CAST({source} AS {_sql_type(set(kinds))}) AS "{column}"')
        comments[column] = _comment(section, parameter, plugins)
    columns = "".join(f", {item}" for item in selected)
    connection.execute(
        f"""CREATE TEMP TABLE parameters AS
        SELECT cell_id{"".join(f', "{name}"' for name in comments)}
        FROM planned JOIN (SELECT parameters{columns} FROM
          (SELECT DISTINCT parameters, parameters::JSON AS settings FROM planned)) USING (parameters)"""
    )
    return comments


def _sql_type(kinds: set[str]) -> str:
    """DuckDB type that holds all JSON types found."""
    if kinds == {"BOOLEAN"}:
        return "BOOLEAN"
    if kinds <= {"UBIGINT", "BIGINT"}:
        return "BIGINT"
    return "DOUBLE" if kinds <= {"UBIGINT", "BIGINT", "DOUBLE"} else "VARCHAR"


def _comment(section: str, parameter: str, plugins: list[str]) -> str:
    """The field's own description, from the first plugin that still knows it."""
    owners = ", ".join(sorted(plugins))
    for plugin in sorted(plugins):
        try:
            field = REGISTRIES[section].get(plugin).__pydantic_fields__[parameter]
        except (KVFrontierError, ImportError, KeyError):
            continue  # a plan made by other code: its rows remain readable
        if field.description:
            return f"{field.description} ({owners})"
    return f"Parameter {parameter} of {section} {owners}"
