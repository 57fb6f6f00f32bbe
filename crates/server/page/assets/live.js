// @ts-check
/** The live section: charts of the last minutes, KV by tier, and a gateway's replicas. */

import { RequestError, getText, jsonLines, request } from "./api.js";
import { SPAN, bar, chartView, readableBytes } from "./chart.js";
import { element, visible } from "./dom.js";
import { gatewayRow, isGateway, parseMetrics, serverRow, tiersOf } from "./metrics.js";
import { replicasView } from "./replicas.js";

/**
 * @typedef {import("./chart.js").Chart} Chart
 * @typedef {import("./chart.js").Point} Point
 * @typedef {import("./metrics.js").Metrics} Metrics
 * @typedef {import("./metrics.js").Row} Row
 */

/** ms between two looks at the metrics. */
const EVERY = 2000;
/** ms between two points of the event stream. */
const STREAM_EVERY = 500;
/** Seconds over which latencies and hit rates are taken. */
const WINDOW = 30;

const TIMES = (/** @type {string} */ key) => [
  { key: `${key}50`, label: "median" },
  { key: `${key}95`, label: "p95" },
];
/** @type {Chart[]} */
const SERVER = [
  {
    title: "Requests",
    unit: "",
    lines: [
      { key: "running", label: "running" },
      { key: "waiting", label: "waiting" },
    ],
  },
  { title: "Output", unit: "tokens/s", lines: [{ key: "output", label: "" }] },
  {
    title: "Prompts",
    unit: "tokens/s",
    lines: [
      { key: "prompt", label: "in all" },
      { key: "cached", label: "cached" },
    ],
  },
  { title: "KV pool in use", unit: "%", lines: [{ key: "kv", label: "" }], most: 100 },
  { title: "Prompt tokens cached", unit: "%", lines: [{ key: "hits", label: "" }], most: 100 },
  { title: "Engine steps", unit: "per s", lines: [{ key: "steps", label: "" }] },
  { title: "Time to first token", unit: "ms", lines: TIMES("first") },
  { title: "Time between tokens", unit: "ms", lines: TIMES("next") },
  { title: "Time in the queue", unit: "ms", lines: TIMES("queue") },
  { title: "Refused requests", unit: "per s", lines: [{ key: "refused", label: "" }] },
];
/** @type {Chart[]} */
const GATEWAY = [
  {
    title: "Requests",
    unit: "",
    lines: [
      { key: "running", label: "open" },
      { key: "waiting", label: "queued" },
    ],
  },
  { title: "Finished requests", unit: "per s", lines: [{ key: "requests", label: "" }] },
  { title: "Time to first token", unit: "ms", lines: TIMES("first") },
  { title: "Prompt tokens cached", unit: "%", lines: [{ key: "hits", label: "" }], most: 100 },
  {
    title: "Second tries",
    unit: "per s",
    lines: [
      { key: "retries", label: "retries" },
      { key: "failovers", label: "failovers" },
    ],
  },
  { title: "Refused requests", unit: "per s", lines: [{ key: "refused", label: "" }] },
  { title: "Time to pick a replica", unit: "ms", lines: TIMES("decision") },
];

/** @returns {{node: HTMLElement, shown: (visible: boolean) => void}} polls while it is shown */
export function liveView() {
  const status = element("p", { class: "muted" }, "Waiting for the first numbers…");
  const charts = element("div", { class: "charts" });
  const tiers = element("div");
  const replicas = replicasView();
  const node = element(
    "div",
    { class: "page" },
    element("h1", {}, "Live"),
    status,
    replicas.node,
    element("h2", {}, "The last five minutes"),
    charts,
    tiers,
  );
  /** @type {{metrics: Metrics, at: number}[]} */
  let pages = [];
  /** @type {Record<string, Point[]>} */
  const points = {};
  /** @type {ReturnType<typeof chartView>[]} */
  let views = [];
  /** @type {Set<string>} */
  let streamed = new Set();
  /** @type {AbortController | null} */
  let stopper = null;

  /**
   * @param {Row} row
   * @param {number} at
   */
  const add = (row, at) => {
    for (const [key, value] of Object.entries(row)) {
      points[key] = [
        ...(points[key] ?? []).filter((point) => point.at >= at - SPAN),
        { at, value },
      ];
    }
  };
  const draw = () => views.forEach((view) => view.draw(points, seconds()));

  /** @param {AbortSignal} signal */
  async function look(signal) {
    const metrics = parseMetrics(await getText("metrics", signal));
    const at = seconds();
    const before = pages.at(-1);
    const gateway = isGateway(metrics);
    if (views.length === 0) {
      views = (gateway ? GATEWAY : SERVER).map(chartView);
      charts.replaceChildren(...views.map((view) => view.node));
      if (!gateway) stream(signal);
    }
    pages = [...pages.filter((page) => page.at >= at - WINDOW), { metrics, at }];
    if (before) {
      const row = (gateway ? gatewayRow : serverRow)(
        metrics,
        before.metrics,
        pages[0].metrics,
        at - before.at,
      );
      add(Object.fromEntries(Object.entries(row).filter(([key]) => !streamed.has(key))), at);
    }
    status.textContent = gateway
      ? "A gateway. Numbers are of its own requests."
      : modelLine(metrics);
    if (gateway) await replicas.look(signal);
    else tiers.replaceChildren(...tiersTable(metrics));
    draw();
  }

  /** @param {AbortSignal} signal */
  async function stream(signal) {
    let last = { at: 0, step: 0 };
    try {
      for await (const line of jsonLines(await request("metrics/stream", { signal }))) {
        const at = seconds();
        if (at - last.at < STREAM_EVERY / 1000) continue;
        const steps = last.at > 0 ? (line.step - last.step) / (at - last.at) : null;
        streamed = new Set(["running", "waiting", "kv", "steps"]);
        add({ running: line.running, waiting: line.waiting, kv: line.kv_use * 100, steps }, at);
        last = { at, step: line.step };
        draw();
      }
    } catch {
      // The polled numbers have all of them, less often.
    }
    streamed = new Set();
  }

  /** @param {AbortSignal} signal */
  async function poll(signal) {
    while (!signal.aborted) {
      try {
        await look(signal);
      } catch (error) {
        if (signal.aborted) return;
        status.textContent = explained(error);
      }
      await new Promise((resolve) => setTimeout(resolve, EVERY));
    }
  }

  return {
    node,
    shown(wanted) {
      stopper?.abort();
      stopper = wanted ? new AbortController() : null;
      if (!stopper) return;
      // What happened while nobody looked is a gap.
      add(Object.fromEntries(Object.keys(points).map((key) => [key, null])), seconds());
      views = [];
      pages = [];
      poll(stopper.signal);
    },
  };
}

function seconds() {
  return performance.now() / 1000;
}

/** @param {unknown} error */
function explained(error) {
  if (error instanceof RequestError && error.status === 404) {
    return "Metrics are not served here: they have a port of their own (--metrics-port).";
  }
  return error instanceof Error ? error.message : String(error);
}

/** @param {Metrics} metrics */
function modelLine(metrics) {
  const labels = metrics.get("vllm:num_requests_running")?.[0].labels ?? {};
  const geometry = metrics.get("vllm:cache_config_info")?.[0].labels ?? {};
  const tokens = Number(geometry.block_size) * Number(geometry.num_gpu_blocks);
  const room = Number.isFinite(tokens)
    ? `, room for ${tokens.toLocaleString("en")} tokens of KV`
    : "";
  return `${visible(labels.model_name ?? "")}${room}`;
}

/** @param {Metrics} metrics */
function tiersTable(metrics) {
  const tiers = tiersOf(metrics);
  if (tiers.length === 0) return [];
  const heads = ["Tier", "In use", "Prompt tokens served", "Hits", "Misses", "Errors"];
  const rows = tiers.map((tier) => {
    const name = visible(tier.name);
    const bound = tier.capacity > 0 ? ` of ${readableBytes(tier.capacity)}` : "";
    const share = tier.capacity > 0 ? bar(tier.used / tier.capacity, `${name} in use`) : null;
    return element(
      "tr",
      {},
      element("th", { scope: "row" }, name, tier.skipped && " (left alone after failures)"),
      element("td", {}, share, ` ${readableBytes(tier.used)}${bound}`),
      [tier.hitTokens, tier.hits, tier.misses, tier.errors].map((number) =>
        element("td", {}, number.toLocaleString("en")),
      ),
    );
  });
  const head = element(
    "tr",
    {},
    heads.map((text) => element("th", { scope: "col" }, text)),
  );
  const table = element("table", {}, element("thead", {}, head), element("tbody", {}, rows));
  return [
    element("h2", {}, "KV tiers"),
    element(
      "div",
      { class: "wide", tabindex: "0", role: "group", "aria-label": "KV tiers" },
      table,
    ),
  ];
}
