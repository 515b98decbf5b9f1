CREATE OR REPLACE TEMP VIEW settings AS
-- Which workload a compact table shows for each model, engine and device, one a purpose: the one that covers most
-- configurations, then the longest context, then the largest batch; of timed work one that answers batches.
WITH measured AS (
  SELECT DISTINCT model, engine_label, device, c.source, strategy_label, workload_label, context_tokens, batch_size,
    output_tokens,
    CASE WHEN starts_with(metric, 'retention') THEN 'retention'
         WHEN role = 'quality' THEN 'fidelity'
         WHEN role = 'cost' THEN 'speed' END AS purpose
  FROM configurations c JOIN metrics USING (metric) WHERE role <> ''
)
SELECT * EXCLUDE (strategies),
  count(*) OVER (PARTITION BY model, engine_label, device, source, purpose) - 1 AS others
FROM (SELECT model, engine_label, device, source, purpose, workload_label, context_tokens, batch_size, output_tokens,
        count(DISTINCT strategy_label) AS strategies
      FROM measured GROUP BY ALL)
QUALIFY row_number() OVER (PARTITION BY model, engine_label, device, source, purpose
  ORDER BY purpose = 'speed' AND batch_size IS NULL, strategies DESC, context_tokens DESC NULLS LAST, batch_size DESC NULLS LAST, output_tokens DESC NULLS LAST,
    workload_label) = 1
ORDER BY ALL
