-- Each strategy's items beside those of the reference, at the same budget where both have one: a line for a strategy and
-- a phase (NULL: all together), with lists of its clusters. An item is a question, a text, or a token of a text; layers
-- and heads of it are averaged. Repeats of timed work are no items. A cluster is all that was asked of one conversation or
-- text: each seed draws its own, but for lm_eval, where `request` is the document's number in the data set under any seed.
WITH items AS (
  SELECT c.model, c.engine_label, c.device, c.source, c.workload, c.workload_label, c.strategy, c.strategy_label, c.budget,
    without_budget(c.strategy_label) AS series, c.seed, m.metric, m.phase, m.request, m.turn, avg(m.value) AS value
  FROM measurements m JOIN cells c USING (cell_id)
  WHERE c.status = 'ok' AND m.request IS NOT NULL AND m.repeat IS NULL AND m.value IS NOT NULL AND m.metric = $metric
  GROUP BY ALL
), pairs AS (
  SELECT a.model, a.engine_label, a.device, a.source, a.workload_label, a.strategy, a.strategy_label, a.series, a.budget,
    b.strategy_label AS reference_label, b.budget AS reference_budget, a.phase,
    CASE WHEN a.workload <> 'lm_eval' THEN a.seed END AS seed, a.request, a.value, b.value AS reference_value,
    abs(a.value - b.value) > 1e-6 + 1e-5 * abs(b.value) AS differs  -- as in compare.sql: rounding is no difference
  FROM items a
  JOIN items b ON (a.model, a.engine_label, a.device, a.source, a.workload_label, a.seed, a.request)
      = (b.model, b.engine_label, b.device, b.source, b.workload_label, b.seed, b.request)
    AND a.phase IS NOT DISTINCT FROM b.phase AND a.turn IS NOT DISTINCT FROM b.turn
    AND a.strategy_label <> b.strategy_label AND coalesce(a.budget = b.budget, true)
  WHERE b.series = $reference
), clusters AS (
  SELECT * EXCLUDE (value, reference_value, differs), count(*) AS items, sum(value) AS value,
    sum(reference_value) AS reference_value, count(*) FILTER (differs) AS differing,
    sum(CASE WHEN differs THEN value - reference_value ELSE 0 END) AS total,
    count(*) FILTER (value < 0.5 AND reference_value > 0.5) AS lost,
    count(*) FILTER (value > 0.5 AND reference_value < 0.5) AS gained
  FROM (FROM pairs UNION ALL SELECT * REPLACE (NULL AS phase) FROM pairs WHERE phase IS NOT NULL)
  GROUP BY ALL
)
FROM (SELECT model, engine_label, device, source, workload_label, strategy, strategy_label, series, budget, reference_label,
  reference_budget, phase, list(items ORDER BY seed, request) AS items, list(total ORDER BY seed, request) AS sums,
  sum(items)::BIGINT AS n, sum(value) / sum(items) AS mean, sum(reference_value) / sum(items) AS reference_mean,
  sum(differing)::BIGINT AS differing, sum(lost)::BIGINT AS lost, sum(gained)::BIGINT AS gained
FROM clusters GROUP BY ALL)
ORDER BY source, model, engine_label, device, workload_label, phase NULLS FIRST, strategy <> 'full', strategy,
  strategy_label, reference_label
