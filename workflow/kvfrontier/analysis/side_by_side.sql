-- Configurations of several engines, one line each: of the quality and the timed workload that most of them have.
WITH picked AS (
  FROM (SELECT model, device, source, quality_metric, quality_workload_label, workload_label, context_tokens, batch_size,
          count(DISTINCT (engine_label, strategy_label)) AS configurations
        FROM engines_frontier WHERE quality_metric IN ('retention_correct', 'retention_contained', 'kl_divergence')
        GROUP BY ALL)
  QUALIFY row_number() OVER (PARTITION BY model, device, source
    ORDER BY configurations DESC, quality_metric DESC, context_tokens DESC, batch_size DESC NULLS LAST, workload_label,
      quality_workload_label) = 1
)
FROM (
SELECT f.model, f.device, f.source, f.quality_metric, f.quality_workload_label, f.workload_label, engine_label, strategy,
  without_budget(strategy_label) AS series, budget, quality, quality_engine_label,
  max(cost) FILTER (cost_metric = 'device_bytes') AS device_bytes,
  coalesce(bool_or(on_frontier) FILTER (cost_metric = 'device_bytes'), false) AS leads_device,
  max(cost) FILTER (cost_metric = 'output_tokens_per_s') AS tokens_per_s,
  coalesce(bool_or(on_frontier) FILTER (cost_metric = 'output_tokens_per_s'), false) AS leads_throughput,
  max(cost) FILTER (cost_metric = 'ttft_s') AS ttft_s,
  coalesce(bool_or(on_frontier) FILTER (cost_metric = 'ttft_s'), false) AS leads_ttft
FROM engines_frontier f
JOIN picked USING (model, device, source, quality_metric, quality_workload_label, workload_label)
GROUP BY ALL
)
ORDER BY model, device, source, strategy <> 'full', engine_label, series, budget, quality_engine_label
