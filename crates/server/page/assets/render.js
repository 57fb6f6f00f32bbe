// @ts-check
/** Markdown's data as elements. Only the names below are made, and text is always a text node. */

import { button, copy, element, visible } from "./dom.js";
import { parse } from "./markdown.js";

/**
 * @typedef {import("./markdown.js").Block} Block
 * @typedef {import("./markdown.js").Inline} Inline
 */

/** @type {Record<string, string>} */
const MARKS = { strong: "strong", emphasis: "em", deleted: "del" };

/**
 * A text that may grow. Blocks that have not changed keep their elements.
 * @returns {{node: HTMLElement, update: (text: string) => void}}
 */
export function markdownView() {
  const node = element("div", { class: "markdown", dir: "auto" });
  /** @type {{source: string, node: HTMLElement}[]} */
  let shown = [];
  return {
    node,
    update(text) {
      const blocks = parse(text);
      const kept = blocks.findIndex(({ source }, at) => shown[at]?.source !== source);
      const same = kept < 0 ? blocks.length : kept;
      for (const old of shown.slice(same)) old.node.remove();
      const added = blocks
        .slice(same)
        .map(({ source, block }) => ({ source, node: blockView(block, true) }));
      node.append(...added.map((one) => one.node));
      shown = [...shown.slice(0, same), ...added];
      rankHeadings(node);
    },
  };
}

/**
 * Levels of headings without gaps: a message may begin with any.
 * @param {HTMLElement} node
 */
function rankHeadings(node) {
  let above = 1;
  for (const heading of node.querySelectorAll(":scope > [role=heading]")) {
    const wanted = Number(heading.getAttribute("data-level")) + 1;
    above = Math.min(wanted, above + 1);
    heading.setAttribute("aria-level", String(above));
  }
}

/**
 * @param {Block} block
 * @param {boolean} top whether it stands in no other block
 * @returns {any}
 */
function blockView(block, top) {
  switch (block.type) {
    case "heading": {
      const role = top ? { role: "heading", "data-level": block.level } : {};
      return element(
        "p",
        { class: `heading level-${block.level}`, ...role },
        inlineViews(block.children),
      );
    }
    case "code":
      return codeView(block.text, block.language);
    case "rule":
      return element("hr");
    case "quote":
      return element(
        "blockquote",
        {},
        block.children.map((child) => blockView(child, false)),
      );
    case "list":
      return listView(block);
    case "table":
      return tableView(block);
    default:
      return element("p", {}, inlineViews(block.children));
  }
}

/**
 * Code with a button that copies it.
 * @param {string} text
 * @param {string} language
 */
export function codeView(text, language) {
  const bar = element(
    "div",
    { class: "code-bar" },
    element("span", {}, visible(language) || "text"),
    button("Copy code", () => copy(text), { icon: "copy", class: "quiet" }),
  );
  const code = element(
    "pre",
    { tabindex: "0", dir: "ltr" },
    element("code", {}, controlsShown(text)),
  );
  return element("div", { class: "code" }, bar, code);
}

// Characters that make code look other than it is.
const REORDERING = /([\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])/;

/** @param {string} text */
function controlsShown(text) {
  return text
    .split(REORDERING)
    .map((part) =>
      REORDERING.test(part) ? element("mark", { class: "control" }, visible(part)) : part,
    );
}

/** @param {Extract<Block, {type: "list"}>} list */
function listView({ start, items }) {
  const views = items.map(({ done, children }) => {
    const mark = done === null ? null : element("span", { class: "task" }, done ? "☑ " : "☐ ");
    const [first] = children;
    // An item of one paragraph is not spaced like one.
    const tight = children.length === 1 && first.type === "paragraph";
    return element(
      "li",
      {},
      mark,
      tight ? inlineViews(first.children) : children.map((child) => blockView(child, false)),
    );
  });
  return start === null
    ? element("ul", {}, views)
    : element("ol", { start: start === 1 ? null : start }, views);
}

/** @param {Extract<Block, {type: "table"}>} table */
function tableView({ align, head, rows }) {
  /**
   * @param {string} name
   * @param {Inline[][]} cells
   */
  const row = (name, cells) =>
    element(
      "tr",
      {},
      cells.map((cell, at) =>
        element(name, { class: align[at] && `align-${align[at]}` }, inlineViews(cell)),
      ),
    );
  const body = element(
    "tbody",
    {},
    rows.map((cells) => row("td", cells)),
  );
  const table = element("table", {}, element("thead", {}, row("th", head)), body);
  return element(
    "div",
    { class: "wide", tabindex: "0", role: "group", "aria-label": "Table" },
    table,
  );
}

/**
 * @param {Inline[]} parts
 * @returns {any[]}
 */
function inlineViews(parts) {
  return parts.map((part) => {
    switch (part.type) {
      case "text":
        return part.text;
      case "break":
        return element("br");
      case "code":
        return element("code", {}, controlsShown(part.text));
      case "link":
        return element(
          "a",
          {
            href: part.href,
            target: "_blank",
            rel: "noopener noreferrer nofollow",
            title: visible(part.href),
          },
          inlineViews(part.children),
        );
      default:
        return element(MARKS[part.type], {}, inlineViews(part.children));
    }
  });
}
