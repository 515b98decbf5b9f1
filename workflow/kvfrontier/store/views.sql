-- What a published campaign holds. Input: the temporary tables `planned`, `parameters`, `stored` (every row ever),
-- `metrics`, and the macro `t_quantile_975`. Everything is a table, so the file can be copied.

CREATE MACRO t_half_width(sd, n) AS CASE WHEN n > 1 THEN t_quantile_975(n - 1) * sd / sqrt(n) END;

CREATE MACRO wilson_half_width(share, n) AS
  1.959963984540054 / (1 + 1.959963984540054 ** 2 / n) * sqrt(share * (1 - share) / n + (1.959963984540054 / (2 * n)) ** 2);
CREATE MACRO wilson_center(share, n) AS
  (share + 1.959963984540054 ** 2 / (2 * n)) / (1 + 1.959963984540054 ** 2 / n);
CREATE MACRO wilson_low(share, n) AS greatest(0, wilson_center(share, n) - wilson_half_width(share, n));
CREATE MACRO wilson_high(share, n) AS least(1, wilson_center(share, n) + wilson_half_width(share, n));

-- Not dominated: no row of the same group is at least as good in both and better in one. Higher is better for both.
CREATE MACRO is_on_frontier(gain, other_gain, group_key) AS
  gain = max(gain) OVER (PARTITION BY group_key ORDER BY other_gain DESC
                         RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
  AND coalesce(gain > max(gain) OVER (PARTITION BY group_key ORDER BY other_gain DESC
                                      GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true);

-- `h2o(budget=0.3)` from {"name": "h2o", "budget": 0.3}
CREATE MACRO component_label(component) AS
  (component->>'name') || CASE WHEN len(json_keys(component)) < 2 THEN '' ELSE '(' || array_to_string(list_transform(
    list_filter(list_sort(json_keys(component)), lambda key: key <> 'name'),
    lambda key: key || '=' || (component->>key)), ', ') || ')' END;

-- `h2o(budget=0.3, decode_evict=off)` -> `h2o(decode_evict=off)`: one line of a chart
CREATE MACRO without_budget(label) AS replace(replace(
  regexp_replace(label, '\bbudget=[^,)]+(, )?', ''), ', )', ')'), '()', '');

-- every row that was ever stored
CREATE TABLE history AS
SELECT s.cell_id, s.fingerprint, p.fingerprint IS NOT NULL AS is_planned,
  p.fingerprint IS NOT NULL AND row_number() OVER (PARTITION BY s.fingerprint ORDER BY s.attempt DESC) = 1 AS is_current,
  s.status, s.reason, s.reason_class, s.reason_phase, s.reason_detail, s.reason_bytes,
  s.cell->>'$.model' AS model, s.cell->>'$.engine.name' AS engine, s.cell->>'$.device' AS device,
  s.cell->>'$.strategy.name' AS strategy, coalesce(p.strategy_label, component_label(s.cell::JSON->'$.strategy')) AS strategy_label,
  s.cell->>'$.workload.name' AS workload, component_label(s.cell::JSON->'$.workload') AS workload_label,
  s.achieved_budget, s.source, s.attempt, s.started_at, s.wall_s, s.parts, s.provenance, s.cell, s.measurements
FROM stored s LEFT JOIN planned p USING (fingerprint);

CREATE TABLE cells AS
SELECT p.cell_id, p.fingerprint, p.shard,
  coalesce(h.status, p.status, 'planned') AS status, coalesce(h.reason, nullif(p.reason, '')) AS reason,
  h.reason_class, h.reason_phase,
  p.model, p.engine, component_label(p.cell::JSON->'$.engine') AS engine_label, p.device, p.strategy, p.strategy_label,
  p.budget::DOUBLE AS budget, h.achieved_budget,
  p.workload, component_label(p.cell::JSON->'$.workload') AS workload_label, p.task,
  p.batch_size, p.context_tokens, p.output_tokens, p.seed, coalesce(h.source, p.source) AS source,
  h.attempt, h.started_at, h.wall_s, h.provenance['host'] AS host, h.provenance['git_revision'] AS git,
  map_from_entries(list_filter(map_entries(h.parts), lambda part: starts_with(part.key, 'package'))) AS packages,
  h.provenance, parameters.* EXCLUDE (cell_id)
FROM planned p LEFT JOIN (FROM history WHERE is_current) h USING (fingerprint)
JOIN parameters ON parameters.cell_id = p.cell_id;

CREATE TABLE measurements AS
SELECT raw.cell_id, raw.m.metric, nullif(raw.m.phase, '') AS phase, raw.m.repeat, raw.m.request, raw.m.turn,
  raw.m.layer, raw.m.head, CASE WHEN isfinite(raw.m.value) THEN raw.m.value END AS value, metrics.unit
FROM (SELECT cell_id, unnest(measurements) AS m FROM history WHERE is_current) raw
LEFT JOIN metrics ON metrics.metric = raw.m.metric;

-- One observation. Timed work is one a repeat (requests of a batch are not independent), else one a request, else one a
-- turn; what is finer (layers, heads, turns of a request) is averaged first. Of a proportion every item is one.
-- document: the request, where no repeat is.
CREATE TEMP TABLE observations_by_phase AS
SELECT cell_id, metric, phase, 'value' AS kind, coalesce(repeat, request, turn, 0) AS unit,
  CASE WHEN repeat IS NULL THEN request END AS document, avg(value) AS value, bool_or(repeat IS NOT NULL) AS is_repeat
FROM measurements WHERE metric NOT IN (SELECT metric FROM metrics WHERE kind = 'proportion') AND value IS NOT NULL
GROUP BY ALL
UNION ALL
SELECT cell_id, metric, phase, 'proportion', 0, request, value, false
FROM measurements WHERE metric IN (SELECT metric FROM metrics WHERE kind = 'proportion') AND value IS NOT NULL;

-- The phases of a quality are settings of its items (the depth of a fact): phase NULL is all of them together.
CREATE TEMP VIEW observations AS
FROM observations_by_phase
UNION ALL
SELECT * REPLACE (NULL AS phase) FROM observations_by_phase
WHERE phase IS NOT NULL AND metric IN (SELECT metric FROM metrics WHERE role = 'quality' OR kind = 'proportion');

CREATE MACRO interval_low(kind, mean, sd, n) AS
  CASE WHEN kind = 'proportion' THEN wilson_low(mean, n) ELSE mean - t_half_width(sd, n) END;
CREATE MACRO interval_high(kind, mean, sd, n) AS
  CASE WHEN kind = 'proportion' THEN wilson_high(mean, n) ELSE mean + t_half_width(sd, n) END;

CREATE TABLE summary AS
SELECT o.cell_id, o.metric, o.phase, n, mean, median, sd, sd / nullif(abs(mean), 0) AS cv,
  interval_low(o.kind, mean, sd, n) AS ci_low, interval_high(o.kind, mean, sd, n) AS ci_high,
  CASE WHEN is_repeat THEN coalesce(sd / nullif(abs(mean), 0), 0) > 0.10 END AS noisy, metrics.unit
FROM (SELECT cell_id, metric, phase, kind, count(*) AS n, avg(value) AS mean, median(value) AS median,
        stddev_samp(value) AS sd, bool_or(is_repeat) AS is_repeat
      FROM observations GROUP BY ALL) o
LEFT JOIN metrics USING (metric);

-- Documents of lm_eval are numbered in the data set: one that several seeds drew is one observation. All else is drawn
-- anew by each seed.
CREATE TEMP TABLE documents AS
SELECT model, engine_label, device, strategy_label, workload_label, source, metric, phase, count(DISTINCT document) AS documents
FROM observations JOIN cells USING (cell_id)
WHERE status = 'ok' AND workload = 'lm_eval' AND document IS NOT NULL GROUP BY ALL;

-- The same statistics with the seeds of one configuration pooled: what charts and frontiers show.
CREATE TABLE configurations AS
SELECT o.* EXCLUDE (sd), sd, interval_low(kind, mean, sd, n) AS ci_low, interval_high(kind, mean, sd, n) AS ci_high
FROM (SELECT pooled.* REPLACE (coalesce(documents, n) AS n)
      FROM (SELECT model, engine, engine_label, device, strategy, strategy_label, budget, workload, workload_label, task,
              batch_size, context_tokens, output_tokens, source, metric, phase, kind,
              count(DISTINCT cell_id) AS cells, count(*) AS n, avg(value) AS mean, stddev_samp(value) AS sd
            FROM observations JOIN cells USING (cell_id) WHERE status = 'ok' GROUP BY ALL) pooled
      LEFT JOIN documents d ON (d.model, d.engine_label, d.device, d.strategy_label, d.workload_label, d.source, d.metric)
          = (pooled.model, pooled.engine_label, pooled.device, pooled.strategy_label, pooled.workload_label, pooled.source,
             pooled.metric) AND d.phase IS NOT DISTINCT FROM pooled.phase) o;

-- Bytes that the cache holds, at the phase where they are most: in all tiers (`kv_bytes`) and in each of them. On the
-- device lie keys and values, the strategy's bookkeeping, and at most what decode steps bring there of two layers, where
-- that is measured (`fetch_device_bytes` is of one sequence). Not counted: the two layers of a whole tier in passing.
-- Shares are of what the full cache's own cells of the workload hold; without such cells, of what they would hold.
CREATE TEMP TABLE kv_costs AS
WITH held AS (
  SELECT model, engine_label, device, strategy, strategy_label, workload_label, source, batch_size, context_tokens,
    output_tokens, metric, max(mean) AS bytes
  FROM configurations
  WHERE metric IN ('kv_device_bytes', 'kv_host_bytes', 'kv_disk_bytes', 'kv_aux_bytes', 'kv_full_bytes', 'fetch_device_bytes')
  GROUP BY ALL
), tiers AS (
  SELECT * EXCLUDE (metric, bytes), sum(bytes) FILTER (metric NOT IN ('kv_full_bytes', 'fetch_device_bytes')) AS kv_bytes,
    coalesce(sum(bytes) FILTER (metric = 'kv_host_bytes'), 0) AS host_bytes,
    coalesce(sum(bytes) FILTER (metric = 'kv_disk_bytes'), 0) AS file_bytes,
    coalesce(sum(bytes) FILTER (metric = 'fetch_device_bytes'), 0) AS fetched_bytes,
    max(bytes) FILTER (metric = 'kv_full_bytes') AS full_bytes
  FROM held GROUP BY ALL
), shares AS (
  SELECT *, kv_bytes - host_bytes - file_bytes + fetched_bytes * coalesce(batch_size, 1) AS device_bytes,
    coalesce(max(kv_bytes) FILTER (strategy = 'full')
      OVER (PARTITION BY model, engine_label, device, workload_label, source), full_bytes) AS whole
  FROM tiers
)
SELECT * EXCLUDE (strategy, full_bytes, fetched_bytes, whole), kv_bytes / whole AS kv_share, device_bytes / whole AS device_share
FROM shares WHERE kv_bytes IS NOT NULL;

CREATE TABLE costs AS
SELECT * EXCLUDE (cost_metric, cost), cost_metric, cost, NULL::DOUBLE AS cost_low, NULL::DOUBLE AS cost_high,
  CASE WHEN ends_with(cost_metric, 'share') THEN 'share of the full cache' ELSE 'B' END AS cost_unit, 'lower' AS cost_better
FROM (UNPIVOT kv_costs ON kv_bytes, kv_share, device_bytes, device_share, host_bytes, file_bytes
      INTO NAME cost_metric VALUE cost)
QUALIFY max(cost) OVER (PARTITION BY cost_metric) > 0 OR cost_metric NOT IN ('host_bytes', 'file_bytes')
UNION ALL
SELECT model, engine_label, device, strategy_label, workload_label, source, batch_size, context_tokens, output_tokens,
  metric, mean, ci_low, ci_high, unit, better
FROM configurations JOIN metrics USING (metric) WHERE role = 'cost' AND phase IS NULL;

-- Quality of a configuration against its cost: KV bytes and shares of the same cells, times of the speed cells of the same strategy.
CREATE TABLE frontier AS
SELECT model, engine, engine_label, device, strategy, strategy_label, budget, workload, workload_label, context_tokens,
  quality_metric, quality, quality_low, quality_high, quality_n, quality_unit, quality_better,
  cost_metric, cost, cost_low, cost_high, cost_unit, cost_better, cost_workload_label, cost_batch_size,
  cost_context_tokens, cost_output_tokens, source,
  is_on_frontier(CASE quality_better WHEN 'lower' THEN -quality ELSE quality END,
                 CASE cost_better WHEN 'lower' THEN -cost ELSE cost END,
                 (model, engine_label, device, source, workload_label, quality_metric, cost_metric, cost_workload_label))
    AS on_frontier
FROM (
  SELECT q.model, q.engine, q.engine_label, q.device, q.strategy, q.strategy_label, q.budget, q.workload, q.workload_label,
    q.context_tokens, q.metric AS quality_metric, q.mean AS quality, q.ci_low AS quality_low, q.ci_high AS quality_high,
    q.n AS quality_n, metrics.unit AS quality_unit, metrics.better AS quality_better, c.cost_metric, c.cost, c.cost_low,
    c.cost_high, c.cost_unit, c.cost_better, c.workload_label AS cost_workload_label, c.batch_size AS cost_batch_size,
    c.context_tokens AS cost_context_tokens, c.output_tokens AS cost_output_tokens,
    CASE WHEN 'model' IN (q.source, c.source) THEN 'model' ELSE 'measured' END AS source
  FROM configurations q JOIN metrics ON metrics.metric = q.metric AND role = 'quality' AND q.phase IS NULL
  JOIN costs c ON c.model = q.model AND c.engine_label = q.engine_label AND c.device = q.device
    AND c.strategy_label = q.strategy_label
    AND (c.workload_label = q.workload_label OR cost_metric IN (SELECT metric FROM metrics WHERE role = 'cost'))
);

-- The same over all engines that one campaign compares: qualities from an engine that measures some, costs of timed work
-- from each. An engine that answers whole batches alone (vLLM) has no quality of its own; its full cache says what ours says
-- (a test holds their greedy tokens equal), so it stands at that quality, and the row names where both numbers are from.
-- Not so where settings of the engine change what it says: then it does not keep all tokens, or its cache's type was probed.
CREATE TABLE engines_frontier AS
SELECT * EXCLUDE (engines), is_on_frontier(CASE quality_better WHEN 'lower' THEN -quality ELSE quality END,
    CASE cost_better WHEN 'lower' THEN -cost ELSE cost END,
    (model, device, source, quality_workload_label, quality_metric, cost_metric, workload_label)) AS on_frontier
FROM (
  SELECT c.model, c.engine_label, c.device, q.strategy, c.strategy_label, q.budget, c.workload_label, c.batch_size,
    c.context_tokens, c.output_tokens, c.cost_metric, c.cost, c.cost_low, c.cost_high, c.cost_unit, c.cost_better,
    q.engine_label AS quality_engine_label, q.workload_label AS quality_workload_label, q.metric AS quality_metric,
    q.mean AS quality, q.ci_low AS quality_low, q.ci_high AS quality_high, metrics.better AS quality_better, c.source,
    count(DISTINCT c.engine_label) OVER (PARTITION BY c.model, c.device, c.source) AS engines
  FROM configurations q JOIN metrics ON metrics.metric = q.metric AND role = 'quality' AND q.phase IS NULL
  JOIN costs c ON (c.model, c.device, c.source, c.strategy_label) = (q.model, q.device, q.source, q.strategy_label)
    AND NOT ends_with(c.cost_metric, '_share')
    AND c.workload_label IN (SELECT workload_label FROM costs WHERE cost_metric = 'output_tokens_per_s')
  WHERE c.engine_label = q.engine_label OR (q.strategy = 'full' AND NOT EXISTS (
    FROM configurations own JOIN metrics m ON m.metric = own.metric AND m.role = 'quality'
    WHERE (own.model, own.engine_label, own.device, own.source) = (c.model, c.engine_label, c.device, c.source))
    AND 1 = (SELECT min(CASE WHEN kept.mean < 1 THEN 0 ELSE 1 END) * bool_or(kept.metric = 'achieved_budget')::INT
      FROM configurations kept WHERE kept.metric IN ('achieved_budget', 'kv_type_agreement') AND kept.strategy = 'full'
        AND (kept.model, kept.engine_label, kept.device, kept.source) = (c.model, c.engine_label, c.device, c.source)))
) WHERE engines > 1;

-- May a retention figure be believed? The full cache must answer, the question alone must not, nor the last tokens alone.
CREATE TABLE guard_rails AS
WITH chances AS (
  SELECT cell_id, 1 / TRY_CAST(parameters::JSON->'workload'->>'alternatives' AS DOUBLE) AS chance FROM planned
), rails AS (
  SELECT model, engine_label, device, workload_label, context_tokens,
    max(n) FILTER (starts_with(metric, 'retention_') AND strategy = 'full') AS full_n,
    max(mean) FILTER (starts_with(metric, 'retention_') AND strategy = 'full') AS full_correct,
    max(mean) FILTER (metric = 'control_no_context') AS no_context_correct,
    max(ci_low) FILTER (metric = 'control_no_context') AS no_context_low,
    max(mean) FILTER (metric = 'control_recent_only') AS recent_only_correct
  FROM configurations WHERE phase IS NULL AND kind = 'proportion'
  GROUP BY ALL HAVING count(*) FILTER (starts_with(metric, 'retention_')) > 0
), judged AS (
  SELECT rails.*, chance, concat_ws('; ',
    CASE WHEN full_correct IS NULL THEN 'no full-cache cell was measured'
         WHEN full_correct < 0.8 THEN format('the full cache answers only {:.0f} %', 100 * full_correct) END,
    CASE WHEN no_context_low > coalesce(chance, 0) AND no_context_correct > coalesce(chance, 0) + 0.2
         THEN format('the question alone gives {:.0f} %, well above chance', 100 * no_context_correct) END,
    CASE WHEN recent_only_correct > 0.5 * full_correct
         THEN format('the last tokens alone give {:.0f} %', 100 * recent_only_correct) END) AS reasons
  FROM rails LEFT JOIN (SELECT workload_label, max(chance) AS chance FROM chances JOIN cells USING (cell_id) GROUP BY ALL)
    USING (workload_label)
)
SELECT * EXCLUDE (reasons), CASE WHEN reasons = '' THEN 'informative' ELSE 'uninformative' END AS verdict,
  nullif(reasons, '') AS reason
FROM judged;

-- When and from what this file was made: one row, written last.
CREATE TABLE build (campaign VARCHAR, made_at TIMESTAMP, seconds DOUBLE, rows BIGINT, plan_key VARCHAR, rows_key VARCHAR,
  drivers_key VARCHAR);
