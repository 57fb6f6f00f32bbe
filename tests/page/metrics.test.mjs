import assert from "node:assert/strict";
import { test } from "node:test";

import { readable, readableBytes, roundUp } from "../../crates/server/page/assets/chart.js";
import {
  gatewayRow,
  isGateway,
  parseMetrics,
  quantileSince,
  serverRow,
  tiersOf,
  total,
} from "../../crates/server/page/assets/metrics.js";

test("samples, labels and numbers", () => {
  const metrics = parseMetrics(
    '# TYPE a counter\na{x="1,}",y="q\\"\\\\\\n"} 2 1700000000000\n' +
      'a{x="2"} 3e1\nb +Inf\n\nnonsense{\nc NaN\n',
  );
  assert.deepEqual(metrics.get("a")[0], { labels: { x: "1,}", y: 'q"\\\n' }, value: 2 });
  assert.equal(total(metrics, "a"), 32);
  assert.equal(total(metrics, "a", { x: "2" }), 30);
  assert.equal(total(metrics, "none"), null);
  assert.equal(total(metrics, "b"), Infinity);
});

const histogram = (counts) =>
  parseMetrics(
    ["0.1", "0.2", "+Inf"].map((le, at) => `h_bucket{le="${le}"} ${counts[at]}`).join("\n"),
  );

test("quantiles are of what came since, within their bucket", () => {
  const before = histogram([10, 10, 10]);
  const now = histogram([20, 30, 30]);
  assert.equal(quantileSince(now, before, "h", 0.25), 0.05);
  assert.ok(Math.abs(quantileSince(now, before, "h", 0.75) - 0.15) < 1e-9);
  assert.equal(quantileSince(now, now, "h", 0.5), null);
  assert.equal(
    quantileSince(histogram([0, 0, 5]), histogram([0, 0, 0]), "h", 0.5),
    0.2,
    "beyond the last bound",
  );
});

test("rates of a server, also after a restart", () => {
  const page = (tokens) =>
    parseMetrics(
      `vllm:generation_tokens_total ${tokens}\n` +
        "vllm:num_requests_running 2\nvllm:kv_cache_usage_perc 0.25",
    );
  const row = serverRow(page(50), page(10), page(10), 2);
  assert.equal(row.output, 20);
  assert.equal(row.kv, 25);
  assert.equal(row.running, 2);
  assert.equal(row.hits, null);
  assert.equal(serverRow(page(4), page(10), page(10), 2).output, 2);
});

test("a gateway's numbers are summed over its pools", () => {
  const page = (finished) =>
    parseMetrics(
      "penstock:gateway_requests_open 1\n" +
        `penstock:gateway_requests_total{pool="a"} ${finished}\n` +
        'penstock:gateway_requests_total{pool="b"} 1',
    );
  assert.ok(isGateway(page(1)) && !isGateway(parseMetrics("up 1")));
  assert.equal(gatewayRow(page(7), page(1), page(1), 2).requests, 3);
});

test("tiers", () => {
  const [ram] = tiersOf(
    parseMetrics(
      'penstock:kv_tier_used_bytes{tier="ram"} 5\npenstock:kv_tier_capacity_bytes{tier="ram"} 10',
    ),
  );
  assert.deepEqual([ram.name, ram.used, ram.capacity, ram.hits], ["ram", 5, 10, 0]);
});

test("numbers for people", () => {
  assert.deepEqual([0, 3, 41, 1.5e-9].map(roundUp), [1, 5, 50, 2e-9]);
  assert.deepEqual([null, NaN, 0, 2.345, 23.45, 1234.5].map(readable), [
    "–",
    "–",
    "0",
    "2.35",
    "23.4",
    "1,235",
  ]);
  assert.equal(readableBytes(1536 * 1024), "1.50 MiB");
});
