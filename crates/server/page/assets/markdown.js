// @ts-check
/**
 * Markdown to plain data. HTML is text here, and a link keeps its address only if it leads to
 * another page or a mailbox. Takes time in proportion to the text, whatever the text is.
 */

import { inlines } from "./inline.js";

/**
 * @typedef {import("./inline.js").Inline} Inline
 * @typedef {{type: "paragraph", children: Inline[]}
 *   | {type: "heading", level: number, children: Inline[]}
 *   | {type: "code", language: string, text: string} | {type: "rule"}
 *   | {type: "quote", children: Block[]}
 *   | {type: "list", start: number | null, items: {done: boolean | null, children: Block[]}[]}
 *   | {type: "table", align: (string | null)[], head: Inline[][], rows: Inline[][][]}} Block
 *   `start`: null for a list without numbers
 */

/** Quotes and lists inside one another; deeper ones are text. */
const DEEPEST = 12;
const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^`\s]*)/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?=[ \t]|$)/;
const QUOTE = /^ {0,3}>/;
const DIVIDER = /^:?-+:?$/;

/**
 * The blocks of a text, each with the lines that it comes from.
 * @param {string} text
 * @returns {{source: string, block: Block}[]}
 */
export function parse(text) {
  const lines = text.split(/\r\n|\r|\n/);
  return blocksOf(lines, 0).map(({ block, from, to }) => ({
    block,
    source: lines.slice(from, to).join("\n"),
  }));
}

/**
 * @param {string[]} lines
 * @param {number} depth
 */
function blocksOf(lines, depth) {
  /** @type {{block: Block, from: number, to: number}[]} */
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    if (isBlank(lines[at])) {
      at += 1;
      continue;
    }
    const { block, to } = blockAt(lines, at, depth);
    blocks.push({ block, from: at, to });
    at = to;
  }
  return blocks;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {{block: Block, to: number}}
 */
function blockAt(lines, at, depth) {
  const line = lines[at];
  const fence = FENCE.exec(line);
  if (fence) return fenced(lines, at, fence);
  if (HEADING.test(line)) return { block: heading(line), to: at + 1 };
  if (isRule(line)) return { block: { type: "rule" }, to: at + 1 };
  if (isTable(lines, at)) return table(lines, at);
  if (depth < DEEPEST) {
    if (QUOTE.test(line)) return quote(lines, at, depth);
    if (ITEM.test(line)) return itemized(lines, at, depth);
  }
  return paragraph(lines, at, depth);
}

/** @param {string} line */
function isBlank(line) {
  return line.trim() === "";
}

/** @param {string} line */
function isRule(line) {
  const bare = line.replaceAll(" ", "").replaceAll("\t", "");
  const [mark] = bare;
  return (
    bare.length >= 3 &&
    "-*_".includes(mark) &&
    bare === mark.repeat(bare.length) &&
    !/^ {4}/.test(line)
  );
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {RegExpExecArray} opening
 * @returns {{block: Block, to: number}}
 */
function fenced(lines, at, [, marks, language]) {
  let end = at + 1;
  while (end < lines.length && !closes(lines[end], marks)) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  return { block: { type: "code", language, text }, to: Math.min(end + 1, lines.length) };
}

/**
 * @param {string} line
 * @param {string} marks
 */
function closes(line, marks) {
  const bare = line.trim();
  return bare.length >= marks.length && bare === marks[0].repeat(bare.length);
}

/**
 * @param {string} line
 * @returns {Block}
 */
function heading(line) {
  const bare = line.trim();
  const level = bare.length - bare.replace(/^#+/, "").length;
  let end = bare.length;
  while (end > level && bare[end - 1] === "#") end -= 1;
  const closed = end < bare.length && " \t".includes(bare[end - 1]);
  return {
    type: "heading",
    level,
    children: inlines(bare.slice(level, closed ? end : bare.length).trim()),
  };
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {{block: Block, to: number}}
 */
function paragraph(lines, at, depth) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !interrupts(lines, end, depth)) end += 1;
  const text = lines.slice(at, end).map((line) => line.trimStart());
  return { block: { type: "paragraph", children: inlines(text.join("\n")) }, to: end };
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 */
function interrupts(lines, at, depth) {
  const line = lines[at];
  const nested = depth < DEEPEST && (QUOTE.test(line) || ITEM.test(line));
  return nested || FENCE.test(line) || HEADING.test(line) || isRule(line) || isTable(lines, at);
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {{block: Block, to: number}}
 */
function quote(lines, at, depth) {
  let end = at;
  const inner = [];
  while (end < lines.length && QUOTE.test(lines[end])) {
    inner.push(lines[end].replace(/^ {0,3}> ?/, ""));
    end += 1;
  }
  const children = blocksOf(inner, depth + 1).map(({ block }) => block);
  return { block: { type: "quote", children }, to: end };
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @param {number} depth
 * @returns {{block: Block, to: number}}
 */
function itemized(lines, at, depth) {
  const numbered = /\d/.test(markOf(lines[at]));
  const start = numbered ? Number.parseInt(markOf(lines[at]), 10) : null;
  const items = [];
  let end = at;
  while (end < lines.length && isItem(lines[end], numbered)) {
    const item = itemAt(lines, end);
    end = item.to;
    items.push(asItem(item.lines, depth));
    const next = skipBlank(lines, end);
    if (next < lines.length && isItem(lines[next], numbered)) end = next;
  }
  return { block: { type: "list", start, items }, to: end };
}

/** @param {string} line */
function markOf(line) {
  const [, , mark] = ITEM.exec(line) ?? ["", "", ""];
  return mark;
}

/**
 * @param {string} line
 * @param {boolean} numbered
 */
function isItem(line, numbered) {
  const mark = markOf(line);
  return mark !== "" && /\d/.test(mark) === numbered && !isRule(line);
}

/**
 * @param {string[]} lines
 * @param {number} at
 */
function skipBlank(lines, at) {
  let next = at;
  while (next < lines.length && isBlank(lines[next])) next += 1;
  return next;
}

/**
 * The lines of one item, without its indentation.
 * @param {string[]} lines
 * @param {number} at
 */
function itemAt(lines, at) {
  const [whole] = ITEM.exec(lines[at]) ?? [""];
  const indent = Math.min(whole.length, 3);
  const inner = [lines[at].slice(whole.length).trimStart()];
  let end = at + 1;
  while (end < lines.length) {
    const next = skipBlank(lines, end);
    if (next === lines.length) break;
    const spaces = lines[next].length - lines[next].trimStart().length;
    const follows = next === end && !interrupts(lines, next, 0);
    if (spaces < Math.min(indent, 2) && !follows) break;
    if (next > end && spaces < 2) break;
    for (; end < next; end += 1) inner.push("");
    inner.push(lines[next].slice(Math.min(spaces, whole.length + 1)));
    end = next + 1;
  }
  return { lines: inner, to: end };
}

/**
 * @param {string[]} lines
 * @param {number} depth
 */
function asItem(lines, depth) {
  const task = /^\[([ xX])\][ \t]/.exec(lines[0]);
  const rest = task ? [lines[0].slice(task[0].length), ...lines.slice(1)] : lines;
  const children = blocksOf(rest, depth + 1).map(({ block }) => block);
  return { done: task ? task[1] !== " " : null, children };
}

/**
 * @param {string[]} lines
 * @param {number} at
 */
function isTable(lines, at) {
  const next = lines[at + 1];
  if (next === undefined || !lines[at].includes("|") || !next.includes("-")) return false;
  const divider = cells(next);
  return divider.length === cells(lines[at]).length && divider.every((cell) => DIVIDER.test(cell));
}

/** @param {string} line */
function cells(line) {
  const bare = line.trim().replace(/^\|/, "");
  const found = [];
  let cell = "";
  for (let at = 0; at < bare.length; at += 1) {
    if (bare[at] === "\\" && bare[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (bare[at] === "|") {
      found.push(cell.trim());
      cell = "";
    } else {
      cell += bare[at];
    }
  }
  if (cell.trim() !== "") found.push(cell.trim());
  return found;
}

/**
 * @param {string[]} lines
 * @param {number} at
 * @returns {{block: Block, to: number}}
 */
function table(lines, at) {
  const head = cells(lines[at]);
  const align = cells(lines[at + 1]).map((cell) => {
    const [left, right] = [cell.startsWith(":"), cell.endsWith(":")];
    if (left && right) return "center";
    return right ? "right" : left ? "left" : null;
  });
  const rows = [];
  let end = at + 2;
  while (end < lines.length && lines[end].includes("|")) {
    const row = cells(lines[end]);
    rows.push(head.map((_, column) => inlines(row[column] ?? "")));
    end += 1;
  }
  return {
    block: { type: "table", align, head: head.map((cell) => inlines(cell)), rows },
    to: end,
  };
}
