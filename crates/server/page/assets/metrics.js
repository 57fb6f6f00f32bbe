// @ts-check
/** Prometheus' text form, and the numbers of the live section made of it. No IO. */

/**
 * @typedef {{labels: Record<string, string>, value: number}} Sample
 * @typedef {Map<string, Sample[]>} Metrics
 * @typedef {Record<string, number | null>} Row null: nothing to tell yet
 */

const LINE = /^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*$/;
const LABEL = /([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"/g;
/** @type {Record<string, string>} */
const ESCAPES = { n: "\n", "\\": "\\", '"': '"' };

/**
 * Lines that are no samples are left out.
 * @param {string} text
 * @returns {Metrics}
 */
export function parseMetrics(text) {
  /** @type {Metrics} */
  const metrics = new Map();
  for (const line of text.split("\n")) {
    if (line.startsWith("#")) continue;
    const [, name, labels = "", value] = LINE.exec(line) ?? [];
    if (!name) continue;
    const samples = metrics.get(name) ?? [];
    samples.push({ labels: labelsOf(labels), value: numberOf(value) });
    metrics.set(name, samples);
  }
  return metrics;
}

/** @param {string} text */
function labelsOf(text) {
  /** @type {Record<string, string>} */
  const labels = {};
  for (const [, name, value] of text.matchAll(LABEL)) {
    labels[name] = value.replace(/\\(.)/g, (_, char) => ESCAPES[char] ?? char);
  }
  return labels;
}

/** @param {string} text */
function numberOf(text) {
  const words = { "+Inf": Infinity, "-Inf": -Infinity };
  return words[/** @type {keyof typeof words} */ (text)] ?? Number(text);
}

/**
 * The sum of the samples of a name; null if there is none.
 * @param {Metrics} metrics
 * @param {string} name
 * @param {Record<string, string>} [labels] that samples must have
 * @returns {number | null}
 */
export function total(metrics, name, labels = {}) {
  const samples = (metrics.get(name) ?? []).filter((sample) =>
    Object.entries(labels).every(([label, value]) => sample.labels[label] === value),
  );
  return samples.length > 0 ? samples.reduce((sum, { value }) => sum + value, 0) : null;
}

/**
 * What a counter has gained; all of it after a restart.
 * @param {Metrics} now
 * @param {Metrics} before
 * @param {string} name
 * @returns {number | null}
 */
function gain(now, before, name) {
  const [late, early] = [total(now, name), total(before, name)];
  if (late === null || early === null) return null;
  return late >= early ? late - early : late;
}

/**
 * A quantile of what a histogram has seen between two pages, interpolated in its bucket.
 * @param {Metrics} now
 * @param {Metrics} before
 * @param {string} name
 * @param {number} quantile 0 to 1
 * @returns {number | null} null if it has seen nothing
 */
export function quantileSince(now, before, name, quantile) {
  const early = bucketsOf(before, name);
  const buckets = [...bucketsOf(now, name)]
    .map(([bound, count]) => ({ bound, count: count - (early.get(bound) ?? 0) }))
    .sort((one, other) => one.bound - other.bound);
  const all = buckets.at(-1)?.count ?? 0;
  if (all <= 0) return null;
  const wanted = quantile * all;
  const at = buckets.findIndex(({ count }) => count >= wanted);
  const { bound, count } = buckets[at];
  const below = at > 0 ? buckets[at - 1] : { bound: 0, count: 0 };
  if (bound === Infinity) return below.bound;
  const share = count > below.count ? (wanted - below.count) / (count - below.count) : 1;
  return below.bound + (bound - below.bound) * share;
}

/**
 * Cumulative counts by upper bound, summed over all other labels.
 * @param {Metrics} metrics
 * @param {string} name
 */
function bucketsOf(metrics, name) {
  /** @type {Map<number, number>} */
  const counts = new Map();
  for (const { labels, value } of metrics.get(`${name}_bucket`) ?? []) {
    const bound = numberOf(labels.le);
    counts.set(bound, (counts.get(bound) ?? 0) + value);
  }
  return counts;
}

/** @param {Metrics} metrics */
export function isGateway(metrics) {
  return metrics.has("penstock:gateway_requests_open");
}

/**
 * @param {Metrics} now
 * @param {Metrics} before the page before
 * @param {Metrics} past a page further back, for latencies
 * @param {number} seconds between `now` and `before`
 * @returns {Row} rates a second, shares in percent, times in ms
 */
export function serverRow(now, before, past, seconds) {
  const rate = rates(now, before, seconds);
  const time = times(now, past);
  return {
    running: total(now, "vllm:num_requests_running"),
    waiting: total(now, "vllm:num_requests_waiting"),
    kv: percent(total(now, "vllm:kv_cache_usage_perc"), 1),
    output: rate("vllm:generation_tokens_total"),
    prompt: rate("vllm:prompt_tokens_total"),
    cached: rate("vllm:prompt_tokens_cached_total"),
    steps: rate("vllm:iteration_tokens_total_count"),
    hits: percent(
      gain(now, past, "vllm:prompt_tokens_cached_total"),
      gain(now, past, "vllm:prompt_tokens_total"),
    ),
    refused: rate("vllm:admission_rejections_total"),
    ...time("first", "vllm:time_to_first_token_seconds"),
    ...time("next", "vllm:inter_token_latency_seconds"),
    ...time("queue", "vllm:request_queue_time_seconds"),
  };
}

/**
 * @param {Metrics} now
 * @param {Metrics} before the page before
 * @param {Metrics} past a page further back, for latencies
 * @param {number} seconds between `now` and `before`
 * @returns {Row} rates a second, shares in percent, times in ms
 */
export function gatewayRow(now, before, past, seconds) {
  const rate = rates(now, before, seconds);
  const time = times(now, past);
  return {
    running: total(now, "penstock:gateway_requests_open"),
    waiting: total(now, "penstock:gateway_queue_requests"),
    requests: rate("penstock:gateway_requests_total"),
    hits: percent(
      gain(now, past, "penstock:gateway_cached_tokens_expected_total"),
      gain(now, past, "penstock:gateway_prompt_tokens_total"),
    ),
    retries: rate("penstock:gateway_retries_total"),
    failovers: rate("penstock:gateway_failover_seconds_count"),
    refused: rate("penstock:gateway_requests_refused_total"),
    ...time("first", "penstock:gateway_time_to_first_token_seconds"),
    ...time("decision", "penstock:gateway_decision_seconds"),
  };
}

/**
 * @param {Metrics} now
 * @param {Metrics} before
 * @param {number} seconds
 */
function rates(now, before, seconds) {
  return (/** @type {string} */ name) => {
    const gained = gain(now, before, name);
    return gained === null || seconds <= 0 ? null : gained / seconds;
  };
}

/**
 * @param {Metrics} now
 * @param {Metrics} past
 */
function times(now, past) {
  return (/** @type {string} */ key, /** @type {string} */ name) => {
    const ms = (/** @type {number} */ quantile) => {
      const seconds = quantileSince(now, past, name, quantile);
      return seconds === null ? null : seconds * 1000;
    };
    return { [`${key}50`]: ms(0.5), [`${key}95`]: ms(0.95) };
  };
}

/**
 * @param {number | null} part
 * @param {number | null} whole
 */
function percent(part, whole) {
  return part === null || !whole ? null : (part / whole) * 100;
}

/**
 * The places that hold KV, the pool first.
 * @param {Metrics} metrics
 */
export function tiersOf(metrics) {
  const tiers = (metrics.get("penstock:kv_tier_used_bytes") ?? []).map(({ labels, value }) => {
    const of = (/** @type {string} */ name) =>
      total(metrics, `penstock:kv_tier_${name}`, { tier: labels.tier }) ?? 0;
    return {
      name: labels.tier,
      used: value,
      capacity: of("capacity_bytes"),
      hitTokens: of("hit_tokens_total"),
      hits: of("hits_total"),
      misses: of("misses_total"),
      errors: of("errors_total"),
      skipped: of("skipped") > 0,
    };
  });
  return tiers;
}
