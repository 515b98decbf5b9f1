-- Values of two sides, side by side. Input: the tables `a` and `b` (columns of a row, and `pair`), `metrics`
-- (name, kind, unit, nature). A pair is a cell that both sides have values of.

CREATE TABLE pairs AS
SELECT pair, a.cell_id, a.cell, b.cell AS other_cell, a.fingerprint AS a_fingerprint, b.fingerprint AS b_fingerprint,
  a.status AS a_status, b.status AS b_status, a.source,
  a.fingerprint = b.fingerprint AND a.attempt = b.attempt AND a.started_at = b.started_at AS is_same_row
FROM a JOIN b USING (pair);

-- How each metric is compared. `exact`: any difference is a change (all numbers of a model are so). `noisy`: repeats
-- against repeats. `items`: the same questions, texts, requests on both sides. `scale`: of the effect.
CREATE TABLE modes AS
SELECT name AS metric, kind, unit, modelled,
  CASE WHEN nature = 'noisy' AND modelled THEN 'exact' WHEN nature = 'computed' THEN 'items' ELSE nature END AS mode,
  CASE WHEN nature = 'computed' THEN 'difference' ELSE 'ratio' END AS scale,
  nature = 'computed' AS is_pooled -- its phases are settings of its items
FROM metrics, (VALUES (true), (false)) AS sources(modelled);

CREATE TABLE raw AS
SELECT side, raw.pair, raw.source, m.metric, unit, mode, scale, kind, CASE WHEN is_pooled THEN '' ELSE coalesce(m.phase, '') END AS place,
  coalesce(m.phase, '') AS phase, coalesce(m.repeat, -1) AS repeat, coalesce(m.request, -1) AS request,
  coalesce(m.turn, -1) AS turn, coalesce(m.layer, -1) AS layer, coalesce(m.head, -1) AS head, m.value
FROM (SELECT 'a' AS side, pair, source, unnest(measurements) AS m FROM a
      UNION ALL SELECT 'b', pair, source, unnest(measurements) FROM b) raw
JOIN pairs ON pairs.pair = raw.pair AND NOT is_same_row AND a_status = 'ok' AND b_status = 'ok'
JOIN modes ON modes.metric = m.metric AND modes.modelled = (raw.source = 'model')
WHERE isfinite(m.value);

-- Repeats in fresh loops are independent; what is finer (requests of a batch) is averaged first. A process's memory is one
-- value a cell: its repeats share the process, so how they scatter says nothing of the next one's.
CREATE TABLE noisy AS
SELECT pair, source, metric, place, scale, kind,
  median(value) FILTER (side = 'a') AS a, median(value) FILTER (side = 'b') AS b,
  coalesce(count(log_value) FILTER (side = 'a'), 0) AS n_a, coalesce(count(log_value) FILTER (side = 'b'), 0) AS n_b,
  avg(log_value) FILTER (side = 'a') AS mean_a, avg(log_value) FILTER (side = 'b') AS mean_b,
  coalesce(stddev_samp(log_value) FILTER (side = 'a'), 'nan') AS sd_a,
  coalesce(stddev_samp(log_value) FILTER (side = 'b'), 'nan') AS sd_b
FROM (SELECT *, CASE WHEN value > 0 THEN ln(value) END AS log_value
      FROM (SELECT side, pair, source, metric, place, scale, kind,
              CASE WHEN unit = 'B' THEN 0 WHEN repeat >= 0 THEN repeat WHEN request >= 0 THEN request ELSE turn END AS observation,
              avg(value) AS value FROM raw WHERE mode = 'noisy' GROUP BY ALL))
GROUP BY ALL;

CREATE TEMP VIEW facts AS
SELECT side, pair, kind, unnest(map_entries(entries)).key AS name, unnest(map_entries(entries)).value AS value
FROM (SELECT 'a' AS side, pair, 'part' AS kind, parts AS entries FROM a UNION ALL SELECT 'b', pair, 'part', parts FROM b
      UNION ALL SELECT 'a', pair, 'around', provenance FROM a UNION ALL SELECT 'b', pair, 'around', provenance FROM b)
WHERE len(map_keys(entries)) > 0;

-- Value against value where both sides have it. Layers and heads of one item are not items of their own.
CREATE TABLE matched AS
SELECT pair, source, metric, mode, scale, kind, place, avg(a.value) AS a, avg(b.value) AS b,
  bool_or(abs(b.value - a.value) > CASE mode WHEN 'items' THEN 1e-6 + 1e-5 * abs(a.value)
                                             ELSE 1e-9 * abs(a.value) END) AS differs
FROM (FROM raw WHERE side = 'a' AND mode <> 'noisy') a
JOIN (FROM raw WHERE side = 'b' AND mode <> 'noisy') b
  USING (pair, source, metric, mode, scale, kind, place, phase, repeat, request, turn, layer, head)
GROUP BY pair, source, metric, mode, scale, kind, place, phase, repeat, request, turn,
  CASE WHEN mode = 'exact' THEN (layer, head) END;

CREATE TABLE side_by_side AS
SELECT pair, source, metric, mode, scale, kind, place, avg(a) AS a, avg(b) AS b, count(*) AS n,
  count(*) FILTER (differs) AS differing, avg(b - a) AS mean, coalesce(stddev_samp(b - a), 'nan') AS sd,
  count(*) FILTER (a > 0.5 AND b < 0.5) AS lost, count(*) FILTER (a < 0.5 AND b > 0.5) AS gained
FROM matched GROUP BY ALL;

-- Parts of the fingerprint and of the surroundings that are not the same on both sides.
CREATE TABLE differences AS
SELECT kind, name, a, b, count(*) AS pairs
FROM (SELECT kind, name, a.value AS a, b.value AS b, pair
      FROM (FROM facts WHERE side = 'a') a FULL JOIN (FROM facts WHERE side = 'b') b USING (pair, kind, name))
WHERE a IS DISTINCT FROM b AND pair IN (SELECT pair FROM pairs)
GROUP BY ALL;

-- Metrics that a pair has on one side alone.
CREATE TABLE one_sided AS
SELECT metric, side, count(*) AS pairs
FROM (SELECT metric, pair, min(side) AS side FROM raw GROUP BY ALL HAVING min(side) = max(side))
GROUP BY ALL ORDER BY ALL;
