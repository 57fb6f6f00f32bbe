import assert from "node:assert/strict";
import { test } from "node:test";

import { safeAddress } from "../../crates/server/page/assets/inline.js";
import { parse } from "../../crates/server/page/assets/markdown.js";
import { texts } from "./random.mjs";

const blocks = (text) => parse(text).map(({ block }) => block);
const inline = (text) => blocks(text)[0].children;
const text = (value) => ({ type: "text", text: value });

test("emphasis", () => {
  assert.deepEqual(inline("a **b *c*** d"), [
    text("a "),
    { type: "strong", children: [text("b "), { type: "emphasis", children: [text("c")] }] },
    text(" d"),
  ]);
  assert.deepEqual(inline("~~a~~"), [{ type: "deleted", children: [text("a")] }]);
  for (const plain of ["2 * 3 * 4", "snake_case_name", "a ~b~ c", "a ***** b", "\\*a\\*"]) {
    assert.ok(
      inline(plain).every((part) => part.type === "text"),
      plain,
    );
  }
});

test("code keeps what it has", () => {
  assert.deepEqual(inline("`<b>*x*</b>`"), [{ type: "code", text: "<b>*x*</b>" }]);
  assert.deepEqual(inline("`` a`b ``"), [{ type: "code", text: "a`b" }]);
  assert.deepEqual(inline("`open"), [text("`open")]);
  const [code] = blocks("```html\n<script>alert(1)</script>\n\n# no heading\n```");
  assert.deepEqual(code, {
    type: "code",
    language: "html",
    text: "<script>alert(1)</script>\n\n# no heading",
  });
  assert.deepEqual(blocks("````\n```\n````"), [{ type: "code", language: "", text: "```" }]);
  assert.deepEqual(blocks("```py\nx ="), [{ type: "code", language: "py", text: "x =" }]);
});

test("blocks", () => {
  const [heading, list, table, quote, rule] = blocks(
    "## A #\n- a\n  1. b\n- [x] c\n\n| x | y |\n|:-:|--:|\n| 1 | a\\|b |\n\n> # q\n> r\n\n***",
  );
  assert.deepEqual(heading, { type: "heading", level: 2, children: [text("A")] });
  assert.equal(list.items.length, 2);
  assert.equal(list.items[0].children[1].start, 1);
  assert.deepEqual(
    list.items.map((item) => item.done),
    [null, true],
  );
  assert.deepEqual(table.align, ["center", "right"]);
  assert.deepEqual(table.rows, [[[text("1")], [text("a|b")]]]);
  assert.deepEqual(
    quote.children.map((child) => child.type),
    ["heading", "paragraph"],
  );
  assert.deepEqual(rule, { type: "rule" });
});

test("links lead to pages and mailboxes", () => {
  const [link] = inline("[*x*](https://a.example/b_(c) 'title')");
  assert.deepEqual(link, {
    type: "link",
    href: "https://a.example/b_(c)",
    children: [{ type: "emphasis", children: [text("x")] }],
  });
  assert.equal(inline("see https://a.example/x.")[1].href, "https://a.example/x");
  assert.equal(inline("<mailto:a@b.example>")[0].type, "text");
  assert.equal(inline("![x](https://a.example/p.png)")[0].type, "link", "pictures are not loaded");
});

test("an address of this page's own data is none", () => {
  assert.equal(safeAddress("blob:https://a.example/1"), null);
});

test("links that could run something are text", () => {
  for (const address of [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    " javascript:alert(1)",
    "java\tscript:alert(1)",
    "\u0001javascript:alert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "file:///etc/passwd",
    "//a.example",
    "/v1/models",
    "#chat",
  ]) {
    assert.equal(safeAddress(address), null, address);
    const parts = JSON.stringify(blocks(`[x](${address}) ![y](${address}) <${address}>`));
    assert.ok(!parts.includes('"link"'), address);
  }
});

const PIECES = [
  ..."*_~`[]()<>!#|>-+.:\\\n\n \t1a\u202e\u0000",
  "```",
  "http://",
  "https://a.example",
  "javascript:",
  "](",
  "<img src=x onerror=alert(1)>",
  "| - |",
  "1. ",
  "    ",
  "😀",
];
const KINDS = [
  "paragraph",
  "heading",
  "code",
  "rule",
  "quote",
  "list",
  "table",
  "text",
  "break",
  "strong",
  "emphasis",
  "deleted",
  "link",
];

function check(part) {
  if (Array.isArray(part)) return part.forEach(check);
  if (typeof part !== "object" || part === null) return undefined;
  if ("type" in part) assert.ok(KINDS.includes(part.type), part.type);
  if (part.type === "link") assert.match(part.href, /^(https?:\/\/|mailto:)/);
  if (part.type === "text" || part.type === "code") assert.equal(typeof part.text, "string");
  if (part.type === "heading") assert.ok(part.level >= 1 && part.level <= 6);
  return Object.values(part).forEach(check);
}

test("any text is blocks of known kinds, and keeps its lines", () => {
  for (const given of texts(PIECES, 3000)) {
    const parsed = parse(given);
    check(parsed.map(({ block }) => block));
    const lines = parsed.flatMap(({ source }) => source.split("\n")).filter((line) => line.trim());
    assert.deepEqual(
      lines,
      given.split("\n").filter((line) => line.trim()),
      JSON.stringify(given),
    );
  }
});

test("a text that grows keeps the blocks before the last two", () => {
  for (const given of texts(
    PIECES.filter((piece) => piece !== "```"),
    300,
  )) {
    const before = parse(given).slice(0, -2);
    const after = parse(`${given}x\ny`);
    assert.deepEqual(after.slice(0, before.length), before, JSON.stringify(given));
  }
});

test("hostile texts neither overflow the stack nor nest without end", () => {
  const many = 20000;
  for (const given of [
    "> ",
    "- ",
    ">",
    "*a ",
    "_",
    "[",
    "[a](",
    "`",
    "|",
    "**a _b ",
    "1. ",
    "![",
    "~~a ",
  ]) {
    const parsed = parse(given.repeat(many));
    assert.ok(JSON.stringify(parsed).length > 0);
  }
});
