// @ts-check
/** One message of a thread. */

import { summary } from "./completion.js";
import { button, copy, element, visible } from "./dom.js";
import { codeView, markdownView } from "./render.js";
import { tokensView } from "./tokens.js";

/**
 * @typedef {import("./conversation.js").Message} Message
 * @typedef {{
 *   edit: (message: Message, text: string) => void, retry: (message: Message) => void,
 *   proceed: (message: Message) => void, remove: (message: Message) => void,
 *   choose: (message: Message) => void,
 * }} Actions
 * @typedef {{siblings: Message[], running: boolean, last: boolean, actions: Actions}} Place
 * @typedef {{node: HTMLElement, update: () => void}} View
 */

/**
 * @param {Message} message
 * @param {Place} place
 * @returns {View}
 */
export function messageView(message, place) {
  if (message.role === "assistant") return answerView(message, place);
  const isTool = message.role === "tool";
  const body = isTool
    ? codeView(message.content, "result")
    : element("div", { class: "plain", dir: "auto" }, message.content);
  const node = element(
    "article",
    { class: `message ${message.role}`, "aria-label": isTool ? "Tool result" : "You" },
    body,
  );
  node.append(
    element(
      "footer",
      {},
      tools(message, place, () => edit(node, body, message, place)),
    ),
  );
  return { node, update() {} };
}

/**
 * @param {Message} message
 * @param {Place} place
 * @returns {View}
 */
function answerView(message, place) {
  const name = visible(message.model || "Assistant");
  const text = markdownView();
  const thought = markdownView();
  const thinking = element(
    "details",
    { class: "thinking" },
    element("summary", {}, "Thinking"),
    thought.node,
  );
  const body = element("div", { class: "body" }, text.node);
  const calls = element("div", { class: "calls" });
  const error = element("p", { class: "error", role: "alert", hidden: true });
  const footer = element("footer");
  const node = element(
    "article",
    { class: "message assistant", "aria-label": `Answer of ${name}` },
    element("p", { class: "author" }, element("bdi", {}, name)),
    thinking,
    body,
    calls,
    error,
    footer,
  );
  let tokens = false;
  const drawBody = () => {
    const answer = message.answer;
    if (tokens && answer) body.replaceChildren(tokensView(answer.tokens));
    else body.replaceChildren(text.node);
  };
  const drawFooter = () => {
    const answer = message.answer;
    const facts = answer ? summary(answer) : [];
    const shade =
      (answer?.tokens.length ?? 0) > 0 &&
      button(
        "Probabilities",
        () => {
          tokens = !tokens;
          drawBody();
          drawFooter();
          footer.querySelector("[aria-pressed]")?.focus();
        },
        { class: "quiet", "aria-pressed": String(tokens) },
      );
    const startEdit = () => edit(node, body, message, place);
    const row = tools(message, place, startEdit);
    footer.replaceChildren(
      element(
        "ul",
        { class: "facts" },
        facts.map((fact) => element("li", {}, fact)),
      ),
      element("div", { class: "row" }, shade, row),
    );
    footer.hidden = place.running;
  };
  const update = () => {
    const answer = message.answer;
    text.update(message.content);
    thinking.hidden = !answer?.reasoning;
    if (answer?.reasoning) thought.update(answer.reasoning);
    const thinks = place.running && !message.content;
    thinking.firstChild.textContent = thinks ? "Thinking…" : "Thinking";
    calls.replaceChildren(...(answer?.calls ?? []).map(callView));
    error.hidden = !answer?.error;
    error.textContent = answer?.error ?? "";
    node.setAttribute("aria-busy", String(place.running));
    node.classList.toggle("waiting", place.running && !message.content && !answer?.reasoning);
    if (!place.running) drawFooter();
  };
  update();
  footer.hidden = place.running;
  return { node, update };
}

/** @param {import("./completion.js").Call} call */
function callView(call) {
  let shown = call.arguments;
  try {
    shown = JSON.stringify(JSON.parse(call.arguments), null, 2);
  } catch {
    // Shown as it came: an answer may have been cut inside a call.
  }
  return element("div", { class: "call" }, codeView(shown, `call of ${call.name}`));
}

/**
 * Branches and buttons of a message.
 * @param {Message} message
 * @param {Place} place
 * @param {() => void} startEdit
 */
function tools(message, place, startEdit) {
  const { siblings, last, actions } = place;
  const at = siblings.indexOf(message);
  const quiet = { class: "quiet" };
  const branch = siblings.length > 1 && [
    button("Previous branch", () => actions.choose(siblings[at - 1]), {
      icon: "back",
      disabled: at === 0,
      ...quiet,
    }),
    element("span", { class: "branch" }, `${at + 1} / ${siblings.length}`),
    button("Next branch", () => actions.choose(siblings[at + 1]), {
      icon: "forward",
      disabled: at === siblings.length - 1,
      ...quiet,
    }),
  ];
  const isAnswer = message.role === "assistant";
  const mayProceed = isAnswer && last && message.content && !message.answer?.calls.length;
  return element(
    "div",
    { class: "row" },
    branch,
    button("Copy", () => copy(message.content), { icon: "copy", ...quiet }),
    button("Edit", startEdit, { icon: "edit", ...quiet }),
    isAnswer && button("Try again", () => actions.retry(message), { icon: "retry", ...quiet }),
    mayProceed && button("Continue", () => actions.proceed(message), { icon: "proceed", ...quiet }),
    button("Delete from here", () => actions.remove(message), { icon: "delete", ...quiet }),
  );
}

/**
 * Puts a form in the place of the text.
 * @param {HTMLElement} node
 * @param {HTMLElement} body
 * @param {Message} message
 * @param {Place} place
 */
function edit(node, body, message, { actions }) {
  if (node.querySelector(".edit")) return;
  const area = element("textarea", {
    rows: "5",
    "aria-label": "Text of the message",
    value: message.content,
    dir: "auto",
  });
  const close = () => {
    form.remove();
    body.hidden = false;
  };
  const form = element(
    "form",
    {
      class: "edit",
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        close();
        actions.edit(message, area.value);
      },
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Escape") close();
      },
    },
    area,
    element(
      "div",
      { class: "row" },
      element(
        "button",
        { type: "submit", class: "primary" },
        message.role === "user" ? "Send again" : "Save as a branch",
      ),
      button("Cancel", close),
    ),
  );
  body.hidden = true;
  body.after(form);
  area.focus();
}
