// @ts-check
/** Small line charts of the last minutes. */

import { element, vector } from "./dom.js";

/** Seconds that a chart shows. */
export const SPAN = 300;
const WIDTH = 300;
const HEIGHT = 72;

/**
 * @typedef {{at: number, value: number | null}} Point `at` in seconds
 * @typedef {{key: string, label: string}} Line
 * @typedef {{title: string, unit: string, lines: Line[], most?: number}} Chart
 *   `most`: the top of the scale where it is known
 */

/**
 * @param {Chart} chart
 * @returns {{node: HTMLElement, draw: (points: Record<string, Point[]>, now: number) => void}}
 */
export function chartView({ title, unit, lines, most }) {
  const values = lines.map(() => element("b", {}, "–"));
  const paths = lines.map((_, at) =>
    vector("path", { class: `line series-${at + 1}`, fill: "none" }),
  );
  const picture = vector(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", preserveAspectRatio: "none" },
    vector("path", { class: "grid", d: `M0 1H${WIDTH}M0 ${HEIGHT - 1}H${WIDTH}` }),
    paths,
  );
  const legend = lines.map(({ label }, at) =>
    element(
      "span",
      { class: "reading" },
      lines.length > 1 && element("i", { class: `key key-${at + 1}` }),
      values[at],
      ` ${label}`,
    ),
  );
  const top = element("span", { class: "top" });
  const node = element(
    "figure",
    { class: "chart" },
    element("figcaption", {}, element("span", {}, title, unit && ` (${unit})`), top),
    element("div", { class: "readings" }, legend),
    picture,
  );
  return {
    node,
    draw(points, now) {
      const shown = lines.map(({ key }) =>
        (points[key] ?? []).filter(({ at }) => at >= now - SPAN),
      );
      const highest = Math.max(0, ...shown.flat().map(({ value }) => value ?? 0));
      const bound = most ?? roundUp(highest);
      top.textContent = readable(bound);
      shown.forEach((line, at) => {
        paths[at].setAttribute("d", pathOf(line, now, bound));
        values[at].textContent = readable(line.at(-1)?.value ?? null);
      });
      const readings = lines.map(({ label }, at) => `${values[at].textContent} ${label}`.trim());
      picture.setAttribute("aria-label", `${title}: ${readings.join(", ")} ${unit}`.trim());
    },
  };
}

/**
 * @param {Point[]} points
 * @param {number} now
 * @param {number} bound
 */
function pathOf(points, now, bound) {
  let path = "";
  let joined = false;
  for (const { at, value } of points) {
    if (value === null || !Number.isFinite(value)) {
      joined = false;
      continue;
    }
    const x = (1 - (now - at) / SPAN) * WIDTH;
    const y = HEIGHT - 2 - Math.min(value / bound, 1) * (HEIGHT - 4);
    path += `${joined ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    joined = true;
  }
  return path;
}

/**
 * The next 1, 2 or 5 of a power of ten.
 * @param {number} value
 */
export function roundUp(value) {
  if (!(value > 0) || !Number.isFinite(value)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 2, 5, 10].find((one) => one * power >= value * 0.999999) ?? 10;
  return step * power;
}

/** @param {number | null} value */
export function readable(value) {
  if (value === null || !Number.isFinite(value)) return "–";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  if (Math.abs(value) >= 100 || Number.isInteger(value)) return value.toFixed(0);
  return value.toFixed(Math.abs(value) >= 10 ? 1 : 2);
}

/** @param {number} bytes */
export function readableBytes(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  let value = bytes;
  for (; value >= 1024 && at < units.length - 1; at += 1) value /= 1024;
  return `${readable(value)} ${units[at]}`;
}

/**
 * A share as a bar with its number.
 * @param {number | null} share 0 to 1
 * @param {string} label
 */
export function bar(share, label) {
  const known = share ?? 0;
  return element(
    "span",
    { class: "share" },
    element("meter", { min: 0, max: 1, value: known, "aria-label": label }),
    element("span", {}, share === null ? "–" : `${Math.round(known * 100)}%`),
  );
}
