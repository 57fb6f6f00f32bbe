import assert from "node:assert/strict";
import { before, test } from "node:test";

import { texts } from "./random.mjs";

const ALLOWED = [
  ...[
    "a",
    "blockquote",
    "br",
    "button",
    "code",
    "del",
    "div",
    "em",
    "hr",
    "li",
    "mark",
    "ol",
    "p",
    "path",
  ],
  ...["pre", "span", "strong", "svg", "table", "tbody", "td", "th", "thead", "tr", "ul"],
];
const ATTRIBUTES = [
  ...[
    "aria-hidden",
    "aria-label",
    "aria-level",
    "class",
    "d",
    "data-level",
    "dir",
    "fill",
    "href",
    "rel",
    "role",
  ],
  ...[
    "start",
    "stroke",
    "stroke-linecap",
    "stroke-linejoin",
    "stroke-width",
    "tabindex",
    "target",
    "title",
  ],
  ...["type", "viewBox"],
];

/** Enough of an element to see what is made. */
class Element {
  constructor(name) {
    assert.ok(ALLOWED.includes(name), `element ${name}`);
    this.name = name;
    this.attributes = {};
    this.children = [];
  }
  setAttribute(name, value) {
    assert.ok(ATTRIBUTES.includes(name), `attribute ${name}`);
    if (name === "href") assert.match(value, /^(https?:\/\/|mailto:)/);
    this.attributes[name] = value;
  }
  getAttribute(name) {
    return this.attributes[name];
  }
  addEventListener() {}
  append(...children) {
    for (const child of children) {
      assert.ok(child instanceof Element || typeof child === "string", "elements and texts");
      if (child instanceof Element) child.parent = this;
    }
    this.children.push(...children);
  }
  remove() {
    this.parent.children = this.parent.children.filter((child) => child !== this);
  }
  querySelectorAll() {
    return this.children.filter((child) => child.attributes?.role === "heading");
  }
  get text() {
    return this.children.map((child) => (typeof child === "string" ? child : child.text)).join("");
  }
}

let markdownView;

before(async () => {
  const make = (name) => new Element(name);
  globalThis.document = { createElement: make, createElementNS: (_, name) => make(name) };
  ({ markdownView } = await import("../../crates/server/page/assets/render.js"));
});

test("html is text", () => {
  const hostile = "<img src=x onerror=alert(1)> **<script>** `<b>`";
  const view = markdownView();
  view.update(hostile);
  assert.equal(view.node.text, "<img src=x onerror=alert(1)> <script> <b>");
});

test("only known elements and attributes are made of any text", () => {
  const pieces = [
    ..."*_~`[]()<>!#|>-+.\n \u202e",
    ...[
      "```",
      "```<img onerror=x>\n",
      'https://a.example/"onclick=x',
      "[x](javascript:y)",
      "[x](http://a.example)",
    ],
    ...["<svg onload=x>", "| a |\n| - |\n", "- [ ] ", "# "],
  ];
  const view = markdownView();
  for (const text of texts(pieces, 2000)) view.update(text);
});

test("a text that grows is shown as when it comes whole", () => {
  const text = "# a\n\nb *c*\n\n- d\n- e\n\n```\nf\n```\n\n### g";
  const [grown, whole] = [markdownView(), markdownView()];
  for (let length = 0; length <= text.length; length += 1) grown.update(text.slice(0, length));
  whole.update(text);
  const shape = (one) =>
    typeof one === "string" ? one : [one.name, one.attributes, one.children.map(shape)];
  assert.deepEqual(shape(grown.node), shape(whole.node));
});

test("levels of headings have no gaps", () => {
  const view = markdownView();
  view.update("#### a\n\n###### b\n\n# c");
  const levels = view.node.querySelectorAll().map((heading) => heading.attributes["aria-level"]);
  assert.deepEqual(levels, ["2", "3", "2"]);
});

test("characters that reorder code are shown by their numbers", () => {
  const view = markdownView();
  view.update("`a\u202eb`\n\n```\u202ejs\nx\u2066\n```");
  assert.equal(view.node.text, "a\\u202eb\\u202ejsx\\u2066");
});
