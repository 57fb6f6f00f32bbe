// @ts-check
/** Elements from data. Text is always a text node; nothing here takes HTML. */

/** @typedef {Node | string | number | null | undefined | false} Child */

const SVG = "http://www.w3.org/2000/svg";

/**
 * @param {string} name
 * @param {Record<string, any>} [props] attributes; `onEVENT` adds a listener; null, undefined and
 *   false leave an attribute out
 * @param {...(Child | Child[])} children
 * @returns {any} an element of that name
 */
export function element(name, props = {}, ...children) {
  return filled(document.createElement(name), props, children);
}

/**
 * @param {string} name
 * @param {Record<string, any>} props
 * @param {...(Child | Child[])} children
 * @returns {any}
 */
export function vector(name, props, ...children) {
  return filled(document.createElementNS(SVG, name), props, children);
}

/**
 * @param {any} node
 * @param {Record<string, any>} props
 * @param {any[]} children
 */
function filled(node, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(
    ...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return node;
}

/**
 * A button with words, an icon, or both.
 * @param {string} label
 * @param {() => void} onclick
 * @param {Record<string, any> & {icon?: string}} [props] with an icon, the label is
 *   its name and tooltip
 */
export function button(label, onclick, { icon: drawing, ...props } = {}) {
  const named = drawing ? { "aria-label": label, title: label } : {};
  return element(
    "button",
    { type: "button", ...named, ...props, onclick },
    drawing ? icon(drawing) : label,
  );
}

/** Paths of icons, drawn with lines in a square of 24. */
const ICONS = {
  add: "M12 5v14M5 12h14",
  back: "M15 5l-7 7 7 7",
  compare: "M4 5h7v14H4zM13 5h7v14h-7z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  delete: "M4 7h16M9 7V4h6v3M6 7l1 13h10l1-13",
  edit: "M4 20l1-4L16 5l3 3L8 19z",
  forward: "M9 5l7 7-7 7",
  list: "M4 6h16M4 12h16M4 18h16",
  proceed: "M5 5v14l6-7zM13 5v14l6-7z",
  retry: "M19 8a8 8 0 1 0 1 6M20 4v5h-5",
  save: "M12 4v11M7 11l5 5 5-5M5 20h14",
  send: "M12 20V5M6 11l6-6 6 6",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M13 5v4M17 5v4M7 15v4M11 15v4",
  stop: "M7 7h10v10H7z",
};

/** @param {string} name */
export function icon(name) {
  const line = { d: ICONS[name], fill: "none", stroke: "currentColor", "stroke-width": 1.8 };
  const round = { "stroke-linecap": "round", "stroke-linejoin": "round" };
  return vector(
    "svg",
    { viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" },
    vector("path", { ...line, ...round }),
  );
}

/**
 * A form field with its label.
 * @param {string} label
 * @param {any} control
 * @param {string} [hint]
 */
export function field(label, control, hint) {
  return element(
    "label",
    { class: "field" },
    element("span", {}, label),
    control,
    hint && element("small", {}, hint),
  );
}

// What changes the order of text, or cannot be seen.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/**
 * Shows characters that cannot be seen or reorder their line by their numbers. For names, which
 * are one line.
 * @param {unknown} text
 */
export function visible(text) {
  return String(text).replace(
    UNSEEN,
    (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** @param {string} text read out by screen readers */
export function announce(text) {
  const place = document.getElementById("announce");
  if (place) place.textContent = text;
}

/**
 * Copies a text and says so on the button for a moment.
 * @param {string} text
 */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure context there is no clipboard.
    const area = element("textarea", { class: "away", value: text });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  announce("Copied");
}
