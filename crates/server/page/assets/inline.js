// @ts-check
/** The inside of a Markdown paragraph as plain data. */

/**
 * @typedef {{type: "text" | "code", text: string} | {type: "break"}
 *   | {type: "strong" | "emphasis" | "deleted", children: Inline[]}
 *   | {type: "link", href: string, children: Inline[]}} Inline
 * @typedef {{mark: string, length: number, opens: boolean, closes: boolean, at: number}} Delimiter
 *   a run of `*`, `_` or `~`; `at`: its place among the parts
 */

/** Emphasis inside emphasis; deeper marks are text. */
const DEEPEST = 32;
/** Marks in a row that may mean emphasis. */
const LONGEST_RUN = 3;
const ESCAPED = /[!-/:-@[-`{-~]/;
const ADDRESS = /https?:\/\/[^\s<>"`]+/y;
const SCHEMES = ["http:", "https:", "mailto:"];

/**
 * @param {string} text
 * @returns {Inline[]}
 */
export function inlines(text) {
  return read(text, true);
}

/**
 * @param {string} text
 * @param {boolean} links whether links may be inside
 * @returns {Inline[]}
 */
function read(text, links) {
  /** @type {Inline[]} */
  const parts = [];
  /** @type {Delimiter[]} */
  const delimiters = [];
  const brackets = links ? closingBrackets(text) : new Map();
  const ticks = tickRuns(text);
  let plain = "";
  const flush = () => {
    if (plain) parts.push({ type: "text", text: plain });
    plain = "";
  };
  /** @param {Inline} part */
  const add = (part) => {
    flush();
    parts.push(part);
  };
  let at = 0;
  while (at < text.length) {
    const char = text[at];
    if (char === "\\" && ESCAPED.test(text[at + 1] ?? "")) {
      plain += text[at + 1];
      at += 2;
    } else if (char === "\n") {
      plain = plain.replace(/ {1,8}$/, "");
      add({ type: "break" });
      at += 1;
    } else if (char === "`") {
      const { length, end } = ticks.next(at);
      if (end < 0) plain += text.slice(at, at + length);
      else add({ type: "code", text: codeText(text.slice(at + length, end)) });
      at = end < 0 ? at + length : end + length;
    } else if (char === "*" || char === "_" || char === "~") {
      const run = delimiterAt(text, at);
      flush();
      delimiters.push({ ...run, at: parts.length });
      parts.push({ type: "text", text: char.repeat(run.length) });
      at += run.length;
    } else {
      const link = links ? linkAt(text, at, brackets) : null;
      if (link) add(link.part);
      else plain += char;
      at = link ? link.end : at + 1;
    }
  }
  flush();
  return emphasized(parts, delimiters);
}

/**
 * Finds the end of code that starts at a run of backticks: the next run of the same length.
 * @param {string} text
 */
function tickRuns(text) {
  /** @type {Map<number, number[]>} */
  const places = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    const known = places.get(run.length) ?? [];
    known.push(index);
    places.set(run.length, known);
  }
  for (const known of places.values()) known.reverse();
  return {
    /** @param {number} at */
    next(at) {
      let length = 0;
      while (text[at + length] === "`") length += 1;
      const known = places.get(length) ?? [];
      while (known.length > 0 && known[known.length - 1] <= at) known.pop();
      return { length, end: known.at(-1) ?? -1 };
    },
  };
}

/** @param {string} text */
function codeText(text) {
  const line = text.replaceAll("\n", " ");
  const padded = line.startsWith(" ") && line.endsWith(" ") && line.trim() !== "";
  return padded ? line.slice(1, -1) : line;
}

/**
 * The place of the bracket that closes each opening one.
 * @param {string} text
 */
function closingBrackets(text) {
  const pairs = new Map();
  const open = [];
  for (let at = 0; at < text.length; at += 1) {
    if (text[at] === "\\") at += 1;
    else if (text[at] === "[") open.push(at);
    else if (text[at] === "]" && open.length > 0) pairs.set(open.pop(), at);
  }
  return pairs;
}

/**
 * @param {string} text
 * @param {number} at
 * @param {Map<number, number>} brackets
 * @returns {{part: Inline, end: number} | null}
 */
function linkAt(text, at, brackets) {
  const char = text[at];
  if (char === "h" || char === "<") return bareLink(text, at, char === "<");
  // A picture is a link: nothing is loaded from elsewhere.
  const open = char === "!" && text[at + 1] === "[" ? at + 1 : at;
  const close = text[open] === "[" ? brackets.get(open) : undefined;
  if (close === undefined || text[close + 1] !== "(") return null;
  const target = targetAt(text, close + 2);
  const href = target && safeAddress(target.address);
  if (!target || !href) return null;
  const label = text.slice(open + 1, close) || target.address;
  return { part: { type: "link", href, children: read(label, false) }, end: target.end };
}

const LONGEST_ADDRESS = 2048;

/**
 * The address in parentheses, and the place behind them. A title is left out.
 * @param {string} text
 * @param {number} start
 */
function targetAt(text, start) {
  let depth = 1;
  for (let at = start; at < text.length && at - start < LONGEST_ADDRESS; at += 1) {
    if (text[at] === "\n") return null;
    if (text[at] === "(") depth += 1;
    if (text[at] === ")") depth -= 1;
    if (depth === 0) {
      const [address = ""] = text.slice(start, at).trim().split(/\s/, 1);
      return { address: address.replace(/^<|>$/g, ""), end: at + 1 };
    }
  }
  return null;
}

/**
 * @param {string} text
 * @param {number} at
 * @param {boolean} angled
 * @returns {{part: Inline, end: number} | null}
 */
function bareLink(text, at, angled) {
  if (!angled && /\w/.test(text[at - 1] ?? "")) return null;
  ADDRESS.lastIndex = angled ? at + 1 : at;
  const found = ADDRESS.exec(text)?.[0];
  if (!found) return null;
  if (angled && text[at + 1 + found.length] !== ">") return null;
  const address = angled ? found : found.slice(0, addressEnd(found));
  const href = safeAddress(address);
  if (!href) return null;
  const end = at + address.length + (angled ? 2 : 0);
  return { part: { type: "link", href, children: [{ type: "text", text: address }] }, end };
}

/**
 * The length of an address in a sentence: without the punctuation behind it.
 * @param {string} address
 */
function addressEnd(address) {
  let end = address.length;
  while (end > 0 && ".,;:!?*_~'])".includes(address[end - 1])) {
    if (address[end - 1] === ")" && address.slice(0, end).includes("(")) break;
    end -= 1;
  }
  return end;
}

/**
 * @param {string} address
 * @returns {string | null} the address as the browser reads it; null if following it could run
 *   something
 */
export function safeAddress(address) {
  try {
    const url = new URL(address);
    return SCHEMES.includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/**
 * @param {string} text
 * @param {number} at
 */
function delimiterAt(text, at) {
  const mark = text[at];
  let length = 1;
  while (text[at + length] === mark) length += 1;
  if (length > LONGEST_RUN) return { mark, length, opens: false, closes: false };
  const before = text[at - 1] ?? " ";
  const after = text[at + length] ?? " ";
  const left = leans(after, before);
  const right = leans(before, after);
  if (mark !== "_") return { mark, length, opens: left, closes: right };
  const opens = left && (!right || isPunctuation(before));
  return { mark, length, opens, closes: right && (!left || isPunctuation(after)) };
}

/**
 * Whether a run belongs to the side of `near`.
 * @param {string} near
 * @param {string} far
 */
function leans(near, far) {
  if (/\s/.test(near)) return false;
  return !isPunctuation(near) || /\s/.test(far) || isPunctuation(far);
}

/** @param {string} char */
function isPunctuation(char) {
  return /[\p{P}\p{S}]/u.test(char);
}

/**
 * Pairs the runs, inner ones first.
 * @param {Inline[]} parts
 * @param {Delimiter[]} delimiters
 * @returns {Inline[]}
 */
function emphasized(parts, delimiters) {
  /** @type {{start: number, end: number, width: number, open: Delimiter, close: Delimiter}[]} */
  const pairs = [];
  /** @type {Delimiter[]} */
  const open = [];
  for (const run of delimiters) {
    let left = run.length;
    while (run.closes && left > 0) {
      const at = open.findLastIndex((one) => one.mark === run.mark);
      if (at < 0) break;
      const opener = open[at];
      const width = Math.min(opener.length, left, 2);
      if (run.mark === "~" && width < 2) break;
      open.length = at + 1;
      pairs.push({ start: opener.at, end: run.at, width, open: opener, close: run });
      opener.length -= width;
      left -= width;
      if (opener.length === 0) open.pop();
    }
    run.length = left;
    if (run.opens && left > 0 && open.length < DEEPEST) open.push(run);
  }
  return nested(parts, delimiters, pairs);
}

/**
 * @param {Inline[]} parts
 * @param {Delimiter[]} delimiters
 * @param {{start: number, end: number, width: number, open: Delimiter, close: Delimiter}[]} pairs
 * @returns {Inline[]}
 */
function nested(parts, delimiters, pairs) {
  if (pairs.length === 0) return parts;
  const rest = new Map(delimiters.map((run) => [run.at, run.mark.repeat(run.length)]));
  /** @type {Map<number, typeof pairs>} */
  const starts = new Map();
  /** @type {Map<number, number>} */
  const ends = new Map();
  // Pairs were found from the inside to the outside, so the last one of a place opens first.
  for (const pair of pairs) {
    starts.set(pair.start, [pair, ...(starts.get(pair.start) ?? [])]);
    ends.set(pair.end, (ends.get(pair.end) ?? 0) + 1);
  }
  /** @type {Inline[][]} */
  const stack = [[]];
  parts.forEach((part, at) => {
    for (let left = ends.get(at) ?? 0; left > 0 && stack.length > 1; left -= 1) stack.pop();
    const text = rest.get(at);
    if (text === undefined) stack[stack.length - 1].push(part);
    else if (text) stack[stack.length - 1].push({ type: "text", text });
    for (const { width, open } of starts.get(at) ?? []) {
      /** @type {Inline[]} */
      const children = [];
      const type = open.mark === "~" ? "deleted" : width === 2 ? "strong" : "emphasis";
      stack[stack.length - 1].push({ type, children });
      stack.push(children);
    }
  });
  return stack[0];
}
