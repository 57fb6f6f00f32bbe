// @ts-check
/** The tokens of an answer, shaded by their probability, with the alternatives of each. */

import { element, visible } from "./dom.js";

/**
 * @typedef {import("./completion.js").Token} Token
 * @typedef {import("./completion.js").Candidate} Candidate
 */

/** Bounds between shades, as probabilities. */
const SHADES = [0.95, 0.8, 0.5, 0.2];

/**
 * Arrow keys move between tokens; the one in focus or under the pointer is described below.
 * @param {Token[]} tokens
 * @returns {HTMLElement}
 */
export function tokensView(tokens) {
  const about = element(
    "p",
    { class: "about", "aria-live": "polite" },
    "Point at a token, or move with the arrow keys.",
  );
  const spans = tokens.map((token, at) =>
    element(
      "span",
      { class: `token shade-${shade(token)}`, tabindex: at === 0 ? "0" : "-1", role: "option" },
      shown(token.text),
    ),
  );
  /** @param {Event} event */
  const place = ({ target }) => spans.indexOf(target);
  /** @param {Event} event */
  const describe = (event) => {
    const token = tokens[place(event)];
    if (token) about.replaceChildren(...descriptions(token));
  };
  /** @param {KeyboardEvent} event */
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const at = place(event);
    const next = step && spans[at + step];
    if (!next) return;
    event.preventDefault();
    spans[at].tabIndex = -1;
    next.tabIndex = 0;
    next.focus();
  };
  const box = element(
    "div",
    {
      class: "tokens",
      role: "listbox",
      "aria-label": "Tokens",
      onfocusin: describe,
      onmouseover: describe,
      onkeydown: move,
    },
    spans,
  );
  return element("div", {}, box, about);
}

/** @param {Token} token */
function shade({ logprob }) {
  const probability = Math.exp(logprob);
  const at = SHADES.findIndex((bound) => probability >= bound);
  return at < 0 ? SHADES.length : at;
}

/** @param {string} text */
function shown(text) {
  return text.replaceAll("\n", "⏎\n");
}

/** @param {Token} token */
function descriptions(token) {
  const others = token.others.filter((other) => other.text !== token.text);
  return [token, ...others].map((candidate, at) =>
    element(
      at === 0 ? "b" : "span",
      { class: "candidate" },
      `“${visible(candidate.text)}” ${percent(candidate)}`,
    ),
  );
}

/** @param {Candidate} candidate */
function percent({ logprob }) {
  return `${(Math.exp(logprob) * 100).toFixed(1)}%`;
}
