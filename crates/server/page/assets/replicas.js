// @ts-check
/** A gateway's replicas and its last picks, from `GET /replicas`. */

import { RequestError, getText } from "./api.js";
import { bar, readable } from "./chart.js";
import { element, visible } from "./dom.js";

/** Conditions in which a replica takes requests. */
const GOOD = ["ready"];
const FAIR = ["warming", "draining"];
/** Picks that are shown. */
const MOST_PICKS = 12;

/** @returns {{node: HTMLElement, look: (signal: AbortSignal) => Promise<void>}} */
export function replicasView() {
  const node = element("div", { hidden: true });
  let missing = false;
  return {
    node,
    async look(signal) {
      if (missing) return;
      try {
        const found = JSON.parse(await getText("replicas", signal));
        node.replaceChildren(...found.pools.map(poolView), picksView(found.picks));
        node.hidden = false;
      } catch (error) {
        if (!(error instanceof RequestError && error.status === 404)) throw error;
        missing = true;
      }
    },
  };
}

const HEADS = [
  "Replica",
  "Condition",
  "Running",
  "Waiting",
  "KV in use",
  "Tokens/s",
  "Breaker",
  "Picks",
  "Errors",
];

/** @param {any} pool */
function poolView(pool) {
  const name = visible(pool.name);
  const state = [pool.saturated && "saturated", pool.queued > 0 && `${pool.queued} queued`].filter(
    Boolean,
  );
  const head = element(
    "tr",
    {},
    HEADS.map((text) => element("th", { scope: "col" }, text)),
  );
  const body = element("tbody", {}, pool.replicas.map(replicaRow));
  return element(
    "section",
    {},
    element(
      "h2",
      {},
      `Replicas of ${name}`,
      state.length > 0 && element("small", {}, ` ${state.join(", ")}`),
    ),
    element(
      "div",
      { class: "wide", tabindex: "0", role: "group", "aria-label": `Replicas of ${name}` },
      element("table", {}, element("thead", {}, head), body),
    ),
  );
}

/** @param {any} replica */
function replicaRow(replica) {
  const { load } = replica;
  const name = visible(replica.name);
  const error = replica.last_error;
  const words = [replica.reason, error && `last error ${ago(error.time)}: ${error.message}`].filter(
    Boolean,
  );
  return element(
    "tr",
    {},
    element(
      "th",
      { scope: "row" },
      element("bdi", {}, name),
      element(
        "small",
        { class: "under" },
        visible(replica.address),
        replica.models.length > 0 && ` · ${replica.models.map(visible).join(", ")}`,
      ),
    ),
    element(
      "td",
      {},
      badge(replica.condition),
      words.map((text) => element("small", { class: "under" }, visible(text))),
    ),
    element("td", {}, number(load.running)),
    element("td", {}, number(load.waiting)),
    element("td", {}, load.kv_use === null ? "–" : bar(load.kv_use, `KV in use at ${name}`)),
    element("td", {}, number(replica.output_tokens_per_s)),
    element("td", {}, visible(replica.breaker)),
    element("td", {}, number(replica.picks)),
    element("td", {}, number(replica.errors)),
  );
}

/** @param {string} condition */
function badge(condition) {
  const kind = GOOD.includes(condition) ? "good" : FAIR.includes(condition) ? "fair" : "bad";
  return element("span", { class: `badge ${kind}` }, visible(condition));
}

/** @param {number | null} value */
function number(value) {
  return readable(value ?? null);
}

/** @param {any[]} picks the newest first */
function picksView(picks) {
  if (picks.length === 0) return "";
  const items = picks
    .slice(0, MOST_PICKS)
    .map((pick) =>
      element(
        "li",
        {},
        element("time", {}, ago(pick.time)),
        element("span", {}, visible(pick.decision)),
      ),
    );
  return element(
    "section",
    {},
    element("h2", {}, "Last picks"),
    element("ol", { class: "picks" }, items),
  );
}

/** @param {number} time in seconds of Unix time */
function ago(time) {
  const seconds = Math.max(0, Math.round(Date.now() / 1000 - time));
  if (seconds < 60) return `${seconds} s ago`;
  return seconds < 3600
    ? `${Math.floor(seconds / 60)} min ago`
    : new Date(time * 1000).toLocaleTimeString();
}
