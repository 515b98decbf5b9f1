CREATE OR REPLACE TEMP VIEW settings AS
-- Which workload a compact table shows for each model, engine and device, one a purpose: the one that covers most
-- configurations, then the longest context, then the largest batch; of timed work one that answers batches. Of lm_eval
-- (`tasks`) one a task, of those tasks that cover most configurations: documents of all of them are pooled.
-- weight: documents. workloads: how many are shown, others: how many are not. gives_bytes: KV bytes are from here.
WITH measured AS (
  SELECT DISTINCT model, engine_label, device, c.source, strategy_label, workload_label, context_tokens, batch_size,
    output_tokens, n,
    CASE WHEN starts_with(metric, 'retention') THEN 'retention'
         WHEN metric = 'full_agreement' THEN 'tasks'
         WHEN metric IN ('kl_divergence', 'top1_agreement') THEN 'fidelity'
         WHEN role = 'cost' THEN 'speed' END AS purpose,
    CASE metric WHEN 'full_agreement' THEN task END AS task
  FROM configurations c JOIN metrics USING (metric)
), picked AS (
  SELECT *, count(*) OVER (PARTITION BY model, engine_label, device, source, purpose) AS known
  FROM (SELECT model, engine_label, device, source, purpose, task, workload_label, context_tokens, batch_size, output_tokens,
          count(DISTINCT strategy_label) AS strategies, max(CASE purpose WHEN 'tasks' THEN n ELSE 1 END) AS weight
        FROM measured WHERE purpose IS NOT NULL GROUP BY ALL)
  QUALIFY row_number() OVER (PARTITION BY model, engine_label, device, source, purpose, task
    ORDER BY purpose = 'speed' AND batch_size IS NULL, strategies DESC, context_tokens DESC NULLS LAST, batch_size DESC NULLS LAST, output_tokens DESC NULLS LAST,
      workload_label) = 1
), shown AS (
  FROM picked QUALIFY strategies = max(strategies) OVER (PARTITION BY model, engine_label, device, source, purpose)
), ranked AS (
  SELECT *, list_position(['retention', 'tasks', 'fidelity', 'speed'], purpose) AS rank, EXISTS (
    FROM costs k WHERE cost_metric = 'kv_bytes' AND (k.model, k.engine_label, k.device, k.source, k.workload_label)
      = (shown.model, shown.engine_label, shown.device, shown.source, shown.workload_label)) AS has_bytes
  FROM shown
)
SELECT * EXCLUDE (strategies, known, rank, has_bytes),
  count(*) OVER purposes AS workloads, known - count(*) OVER purposes AS others,
  coalesce(rank = min(rank) FILTER (has_bytes) OVER (PARTITION BY model, engine_label, device, source), false) AS gives_bytes
FROM ranked WINDOW purposes AS (PARTITION BY model, engine_label, device, source, purpose)
ORDER BY ALL
