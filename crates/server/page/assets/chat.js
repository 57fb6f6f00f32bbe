// @ts-check
/** The chat: conversations at the side, one or two lanes, the composer, the settings. */

import {
  addMessage,
  newConversation,
  newestLeaf,
  openCalls,
  pathTo,
  removeBranch,
  toggleComparison,
} from "./conversation.js";
import { announce, button, element } from "./dom.js";
import { download } from "./export.js";
import { generate } from "./generate.js";
import { DEFAULTS } from "./request.js";
import { modelChoice, settingsForm } from "./settings.js";
import { allConversations, lastSettings, removeConversation, saveConversation, saveSettings } from "./store.js";
import { threadView } from "./thread.js";

/**
 * @typedef {import("./conversation.js").Conversation} Conversation
 * @typedef {import("./conversation.js").Message} Message
 * @typedef {import("./request.js").Settings} Settings
 * @typedef {{
 *   thread: ReturnType<typeof threadView>, stopper: AbortController | null,
 *   running: Message | null,
 * }} LaneView
 */

const LANE_NAMES = ["Answer A", "Answer B"];
/** ms between two saves while an answer grows. */
const SAVE_EVERY = 2000;

/**
 * @param {string[]} models
 * @returns {Promise<HTMLElement>}
 */
export async function chatView(models) {
  let stored = await allConversations();
  let conversation = stored[0] ?? fresh();
  /** @type {LaneView[]} */
  let views = [];

  const list = element("ul", { class: "conversations" });
  const side = element(
    "aside",
    { class: "side", id: "conversations", "aria-label": "Conversations" },
    button("New chat", () => open(fresh()), { class: "new" }),
    list,
  );
  const panel = element("aside", { class: "panel", id: "settings", "aria-label": "Settings", hidden: true });
  const lanes = element("div", { class: "lanes" });
  const area = element("textarea", {
    rows: "1",
    "aria-label": "Message",
    placeholder: "Message",
    dir: "auto",
    oninput: fit,
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    },
  });
  const sendButton = element("button", { type: "submit", class: "primary round" });
  const composer = element(
    "form",
    {
      class: "composer",
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        if (isRunning()) stop();
        else send();
      },
    },
    area,
    sendButton,
  );
  const toolbar = element("div", { class: "toolbar", role: "group", "aria-label": "Conversation" });
  const node = element(
    "div",
    {
      class: "chat",
      onkeydown: (/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Escape") escape();
      },
    },
    element("h1", { class: "away" }, "Chat"),
    side,
    element("div", { class: "stage" }, toolbar, lanes, element("div", { class: "foot" }, composer)),
    panel,
  );

  function fresh() {
    const settings = { ...DEFAULTS, ...lastSettings() };
    if (!models.includes(settings.model)) [settings.model] = [...models, ""];
    return newConversation(settings, Date.now());
  }

  const isRunning = () => views.some((view) => view.running !== null);
  const stop = () => views.forEach((view) => view.stopper?.abort());

  function escape() {
    if (isRunning()) stop();
    show(side, false);
    if (!panel.hidden) togglePanel();
  }

  /** @param {Conversation} next */
  function open(next) {
    stop();
    conversation = next;
    show(side, false);
    build();
    area.focus();
  }

  /** Makes the lanes anew. */
  function build() {
    views = conversation.lanes.map((_, at) => {
      const label = conversation.lanes.length > 1 ? LANE_NAMES[at] : "Conversation";
      return { thread: threadView(label, actionsOf(at)), stopper: null, running: null };
    });
    lanes.replaceChildren(...views.map(laneNode));
    lanes.classList.toggle("two", views.length > 1);
    drawToolbar();
    drawPanel();
    drawList();
    views.forEach((_, at) => draw(at));
  }

  /**
   * @param {LaneView} view
   * @param {number} at
   */
  function laneNode({ thread }, at) {
    const { settings } = conversation.lanes[at];
    const two = conversation.lanes.length > 1;
    const choice = two && modelChoice(models, settings, `Model of ${LANE_NAMES[at].toLowerCase()}`, changed);
    return element("div", { class: "lane" }, two && element("div", { class: "lane-bar" }, choice), thread.node);
  }

  function drawToolbar() {
    const two = conversation.lanes.length > 1;
    const [{ settings }] = conversation.lanes;
    toolbar.replaceChildren(
      button("Conversations", () => show(side, !side.classList.contains("open")), { icon: "list", class: "quiet narrow", "aria-controls": "conversations" }),
      two ? element("span", { class: "grow" }) : modelChoice(models, settings, "Model", changed),
      element("span", { class: "grow" }),
      button(two ? "One lane" : "Compare two models or settings", compare, { icon: "compare", class: "quiet", "aria-pressed": String(two) }),
      exportMenu(),
      button("Settings", togglePanel, { icon: "settings", class: "quiet", "aria-expanded": String(!panel.hidden), "aria-controls": "settings" }),
    );
  }

  function exportMenu() {
    const save = (/** @type {"json" | "md"} */ kind) => () => {
      menu.open = false;
      download(conversation, kind);
    };
    const items = element("div", { class: "items" }, button("Markdown", save("md")), button("JSON", save("json")));
    const head = button("Export", () => {}, { icon: "save" });
    const summary = element("summary", { class: "quiet", "aria-label": "Export", title: "Export" }, head.firstChild);
    const menu = element("details", { class: "menu" }, summary, items);
    return menu;
  }

  function togglePanel() {
    panel.hidden = !panel.hidden;
    drawToolbar();
    if (!panel.hidden) panel.querySelector("textarea")?.focus();
  }

  function drawPanel() {
    const two = conversation.lanes.length > 1;
    const forms = conversation.lanes.map(({ settings }, at) =>
      settingsForm(two ? `Settings of ${LANE_NAMES[at].toLowerCase()}` : "Settings", settings, changed),
    );
    panel.replaceChildren(button("Close settings", togglePanel, { class: "quiet narrow" }), ...forms);
  }

  function changed() {
    saveSettings(conversation.lanes[0].settings);
    if (Object.keys(conversation.messages).length > 0) save();
  }

  function compare() {
    stop();
    toggleComparison(conversation);
    build();
    save();
  }

  function drawList() {
    const known = stored.some((one) => one.id === conversation.id);
    const shown = known ? stored : [conversation, ...stored];
    list.replaceChildren(
      ...shown.map((one) => {
        const title = one.title || "New chat";
        const current = one.id === conversation.id ? { "aria-current": "true" } : {};
        return element(
          "li",
          {},
          button(title, () => open(one), { class: "title", dir: "auto", ...current }),
          button(`Delete ${title}`, () => remove(one), { icon: "delete", class: "quiet" }),
        );
      }),
    );
  }

  /** @param {Conversation} gone */
  async function remove(gone) {
    stored = stored.filter((one) => one.id !== gone.id);
    await removeConversation(gone.id);
    announce("Conversation deleted");
    if (gone.id === conversation.id) open(stored[0] ?? fresh());
    else drawList();
  }

  async function save() {
    conversation.changed = Date.now();
    stored = [conversation, ...stored.filter((one) => one.id !== conversation.id)];
    drawList();
    await saveConversation(conversation);
  }

  /** @param {number} at */
  function draw(at) {
    const view = views[at];
    const { leaf } = conversation.lanes[at];
    if (leaf === null) view.thread.greet(greeting());
    else view.thread.draw(conversation, leaf, view.running?.id ?? null);
    drawSend();
  }

  function drawSend() {
    const running = isRunning();
    const drawing = button(running ? "Stop" : "Send", () => {}, { icon: running ? "stop" : "send" });
    sendButton.replaceChildren(drawing.firstChild);
    sendButton.setAttribute("aria-label", running ? "Stop" : "Send");
    sendButton.title = running ? "Stop (Esc)" : "Send (Enter)";
  }

  function send() {
    const text = area.value;
    if (!text.trim() || isRunning()) return;
    area.value = "";
    fit();
    /** @type {Map<string | null, Message>} */
    const sent = new Map();
    conversation.lanes.forEach((lane, at) => {
      const message = sent.get(lane.leaf) ?? addMessage(conversation, lane.leaf, { role: "user", content: text });
      sent.set(lane.leaf, message);
      answer(at, message.id);
    });
  }

  /**
   * Generates a new answer below `parent`.
   * @param {number} at
   * @param {string | null} parent
   */
  function answer(at, parent) {
    const { model } = conversation.lanes[at].settings;
    run(at, addMessage(conversation, parent, { role: "assistant", content: "", model }));
  }

  /**
   * @param {number} at
   * @param {Message} message
   */
  async function run(at, message) {
    const view = views[at];
    const lane = conversation.lanes[at];
    const owner = conversation;
    view.stopper?.abort();
    const stopper = new AbortController();
    Object.assign(view, { stopper, running: message });
    lane.leaf = message.id;
    save();
    draw(at);
    const grown = paced(() => view.thread.grow());
    const saving = setInterval(() => saveConversation(owner), SAVE_EVERY);
    await generate(owner, message, lane.settings, stopper.signal, grown);
    clearInterval(saving);
    if (view.running === message) Object.assign(view, { stopper: null, running: null });
    if (owner === conversation && views[at] === view) {
      draw(at);
      save();
      announce(message.answer?.error ? `Error: ${message.answer.error}` : "Answer complete");
    } else {
      saveConversation(owner);
    }
  }

  /** @param {number} at */
  function actionsOf(at) {
    /** @param {string | null} leaf */
    const go = (leaf) => {
      conversation.lanes[at].leaf = leaf;
      draw(at);
      save();
    };
    return {
      /** @type {(message: Message, text: string) => void} */
      edit(message, text) {
        const { role, model, call } = message;
        const added = addMessage(conversation, message.parent, { role, model, call, content: text });
        if (role === "assistant") go(added.id);
        else answer(at, added.id);
      },
      /** @type {(message: Message) => void} */
      retry: (message) => answer(at, message.parent),
      /** @type {(message: Message) => void} */
      proceed(message) {
        run(at, message);
      },
      /** @type {(message: Message) => void} */
      remove(message) {
        removeBranch(conversation, message.id);
        views.forEach((_, other) => draw(other));
        save();
      },
      /** @type {(message: Message) => void} */
      choose: (message) => go(newestLeaf(conversation, message.id)),
      /** @type {(call: string, text: string) => void} */
      result(call, text) {
        const { leaf } = conversation.lanes[at];
        const added = addMessage(conversation, leaf, { role: "tool", content: text, call });
        if (openCalls(pathTo(conversation, added.id)).length > 0) go(added.id);
        else answer(at, added.id);
      },
    };
  }

  function fit() {
    area.style.height = "auto";
    area.style.height = `${area.scrollHeight}px`;
  }

  build();
  return node;
}

/**
 * @param {HTMLElement} part
 * @param {boolean} open
 */
function show(part, open) {
  part.classList.toggle("open", open);
  if (open) part.querySelector("button")?.focus();
}

function greeting() {
  return element(
    "div",
    { class: "greeting" },
    element("p", { class: "big" }, "What would you like to know?"),
    element("p", {}, "Conversations stay in this browser. Enter sends, Shift+Enter makes a new line, Esc stops an answer."),
  );
}

/**
 * Calls `act` at most once a frame.
 * @param {() => void} act
 */
function paced(act) {
  let due = false;
  return () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      act();
    });
  };
}
