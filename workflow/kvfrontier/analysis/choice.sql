-- One line a configuration: its quality and costs under the workloads that the view `settings` (settings.sql) picked.
WITH quality AS (
  SELECT c.model, c.engine_label, c.device, c.source, c.strategy, c.strategy_label, c.budget,
    max(mean) FILTER (starts_with(metric, 'retention_') AND kind = 'proportion') AS retention,
    max(ci_low) FILTER (starts_with(metric, 'retention_') AND kind = 'proportion') AS retention_low,
    max(ci_high) FILTER (starts_with(metric, 'retention_') AND kind = 'proportion') AS retention_high,
    max(n) FILTER (starts_with(metric, 'retention_') AND kind = 'proportion') AS retention_n,
    coalesce(bool_or(metric = 'retention_correct'), false) AS retention_is_read,  -- forced choice: no decode step
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
kv AS (  -- of one workload for all lines: bytes of different contexts do not compare
  SELECT model, engine_label, device, source, strategy_label,
    max(cost) FILTER (cost_metric = 'device_bytes') AS device_bytes,
    max(cost) FILTER (cost_metric = 'device_share') AS device_share,
    max(cost) FILTER (cost_metric = 'host_bytes') AS host_bytes, max(cost) FILTER (cost_metric = 'file_bytes') AS file_bytes,
    max(cost) FILTER (cost_metric = 'kv_bytes') AS kv_bytes, max(cost) FILTER (cost_metric = 'kv_share') AS kv_share
  FROM (SELECT costs.*, list_position(['retention', 'fidelity', 'speed'], purpose) AS rank
        FROM costs JOIN settings USING (model, engine_label, device, source, workload_label)
        QUALIFY rank = min(rank) OVER (PARTITION BY model, engine_label, device, source))
  GROUP BY ALL
),
leads AS (
  SELECT f.model, f.engine_label, f.device, f.source, strategy_label,
    bool_or(on_frontier) FILTER (cost_metric = 'device_bytes') AS leads_device,
    bool_or(on_frontier) FILTER (cost_metric = 'kv_bytes') AS leads_memory,
    bool_or(on_frontier) FILTER (cost_metric = 'output_tokens_per_s' AND s.purpose = 'speed') AS leads_throughput,
    bool_or(on_frontier) FILTER (cost_metric = 'ttft_s' AND s.purpose = 'speed') AS leads_ttft
  FROM frontier f
  JOIN settings q ON (q.model, q.engine_label, q.device, q.workload_label) = (f.model, f.engine_label, f.device, f.workload_label)
    AND CASE q.purpose WHEN 'retention' THEN f.quality_metric IN ('retention_correct', 'retention_contained')
                       ELSE f.quality_metric = 'kl_divergence' END
  LEFT JOIN settings s
    ON (s.model, s.engine_label, s.device, s.workload_label) = (f.model, f.engine_label, f.device, f.cost_workload_label)
  WHERE q.purpose = 'retention' OR NOT EXISTS (
    FROM settings r WHERE r.purpose = 'retention' AND (r.model, r.engine_label, r.device) = (f.model, f.engine_label, f.device))
  GROUP BY ALL
)
SELECT quality.*, without_budget(strategy_label) AS series, device_bytes, device_share, host_bytes, file_bytes, kv_bytes, kv_share,
  coalesce(leads_device, false) AS leads_device, coalesce(leads_memory, false) AS leads_memory,
  coalesce(leads_throughput, false) AS leads_throughput, coalesce(leads_ttft, false) AS leads_ttft
FROM quality LEFT JOIN kv USING (model, engine_label, device, source, strategy_label)
LEFT JOIN leads USING (model, engine_label, device, source, strategy_label)
ORDER BY source, model, engine_label, device, strategy <> 'full', strategy, without_budget(strategy_label), budget
