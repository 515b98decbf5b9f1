-- One line a configuration: its quality and costs under the workloads that the view `settings` (settings.sql) picked.
WITH quality AS (
  SELECT c.model, c.engine_label, c.device, c.source, c.strategy, c.strategy_label, c.budget,
    max(mean) FILTER (starts_with(metric, 'retention_') AND kind = 'proportion') AS retention,
    max(ci_low) FILTER (starts_with(metric, 'retention_') AND kind = 'proportion') AS retention_low,
    max(ci_high) FILTER (starts_with(metric, 'retention_') AND kind = 'proportion') AS retention_high,
    max(n) FILTER (starts_with(metric, 'retention_') AND kind = 'proportion') AS retention_n,
    max(mean) FILTER (metric = 'kl_divergence') AS kl,
    max(mean) FILTER (metric = 'top1_agreement') AS top1,
    max(mean) FILTER (metric = 'output_tokens_per_s' AND purpose = 'speed') AS tokens_per_s,
    max(ci_low) FILTER (metric = 'output_tokens_per_s' AND purpose = 'speed') AS tokens_per_s_low,
    max(ci_high) FILTER (metric = 'output_tokens_per_s' AND purpose = 'speed') AS tokens_per_s_high,
    max(mean) FILTER (metric = 'ttft_s' AND purpose = 'speed') AS ttft_s
  FROM configurations c JOIN settings USING (model, engine_label, device, source, workload_label)
  WHERE phase IS NULL
  GROUP BY ALL
),
answers AS (  -- documents of all tasks as one sample; not of a configuration that lacks a task: tasks differ more than strategies
  SELECT model, engine_label, device, source, strategy_label,
    max(share) FILTER (metric = 'full_agreement') AS as_full,
    max(wilson_low(share, documents)) FILTER (metric = 'full_agreement') AS as_full_low,
    max(wilson_high(share, documents)) FILTER (metric = 'full_agreement') AS as_full_high,
    max(documents) FILTER (metric = 'full_agreement') AS as_full_n,
    max(share) FILTER (metric = 'acc') AS acc
  FROM (SELECT model, engine_label, device, source, strategy_label, metric, sum(mean * n) / sum(n) AS share,
          sum(n)::BIGINT AS documents
        FROM configurations JOIN settings USING (model, engine_label, device, source, workload_label)
        WHERE purpose = 'tasks' AND metric IN ('full_agreement', 'acc') AND phase IS NULL
        GROUP BY ALL HAVING count(DISTINCT workload_label) = max(workloads))
  GROUP BY ALL
),
kv AS (  -- of one purpose for all lines: bytes of different contexts do not compare
  SELECT model, engine_label, device, source, strategy_label,
    max(held) FILTER (cost_metric = 'device_bytes') AS device_bytes,
    max(held) FILTER (cost_metric = 'device_share') AS device_share,
    max(held) FILTER (cost_metric = 'host_bytes') AS host_bytes, max(held) FILTER (cost_metric = 'file_bytes') AS file_bytes,
    max(held) FILTER (cost_metric = 'kv_bytes') AS kv_bytes, max(held) FILTER (cost_metric = 'kv_share') AS kv_share
  FROM (SELECT model, engine_label, device, source, strategy_label, cost_metric, sum(cost * weight) / sum(weight) AS held
        FROM costs JOIN settings USING (model, engine_label, device, source, workload_label)
        WHERE gives_bytes GROUP BY ALL HAVING count(DISTINCT workload_label) = max(workloads))
  GROUP BY ALL
),
lines AS (  -- gain: the quality that stars stand for
  SELECT quality.*, as_full, as_full_low, as_full_high, as_full_n, acc, device_bytes, device_share, host_bytes, file_bytes,
    kv_bytes, kv_share,
    CASE WHEN bool_or(retention IS NOT NULL) OVER of_group THEN retention
         WHEN bool_or(as_full IS NOT NULL) OVER of_group THEN as_full ELSE -kl END AS gain
  FROM quality LEFT JOIN answers USING (model, engine_label, device, source, strategy_label)
  LEFT JOIN kv USING (model, engine_label, device, source, strategy_label)
  WINDOW of_group AS (PARTITION BY model, engine_label, device, source)
)
SELECT * EXCLUDE (gain), without_budget(strategy_label) AS series,
  coalesce(device_bytes IS NOT NULL AND is_on_frontier(gain, -device_bytes, (model, engine_label, device, source)), false)
    AS leads_device,
  coalesce(kv_bytes IS NOT NULL AND is_on_frontier(gain, -kv_bytes, (model, engine_label, device, source)), false)
    AS leads_memory,
  coalesce(tokens_per_s IS NOT NULL AND is_on_frontier(gain, tokens_per_s, (model, engine_label, device, source)), false)
    AS leads_throughput,
  coalesce(ttft_s IS NOT NULL AND is_on_frontier(gain, -ttft_s, (model, engine_label, device, source)), false) AS leads_ttft
FROM lines
ORDER BY source, model, engine_label, device, strategy <> 'full', strategy, without_budget(strategy_label), budget
