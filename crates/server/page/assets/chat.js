// @ts-check
/** The chat: conversations at the side, one or two lanes, the composer, the settings. */

import { composerView } from "./composer.js";
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
import { generate } from "./generate.js";
import { DEFAULTS } from "./request.js";
import { modelChoice, settingsForm } from "./settings.js";
import { sidebarView } from "./sidebar.js";
import {
  allConversations,
  lastSettings,
  removeConversation,
  saveConversation,
  saveSettings,
} from "./store.js";
import { threadView } from "./thread.js";
import { COMPARE, ONE_LANE, toolbarView } from "./toolbar.js";

/**
 * @typedef {import("./conversation.js").Conversation} Conversation
 * @typedef {import("./conversation.js").Message} Message
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
  let conversation = stored[0] ?? freshConversation(models);
  /** @type {LaneView[]} */
  let views = [];

  const isRunning = () => views.some((view) => view.running !== null);
  const stop = () => views.forEach((view) => view.stopper?.abort());
  const create = () => open(freshConversation(models));
  const sidebar = sidebarView({ create, open, remove });
  const composer = composerView({ send, stop });
  const toolbar = toolbarView(models, {
    list: sidebar.toggle,
    compare,
    settings: togglePanel,
    changed,
  });
  const panel = element("aside", {
    class: "panel",
    id: "settings",
    "aria-label": "Settings",
    hidden: true,
  });
  const lanes = element("div", { class: "lanes" });

  /** @param {Conversation} next */
  function open(next) {
    stop();
    conversation = next;
    sidebar.show(false);
    build();
    composer.focus();
  }

  /** Makes the lanes anew. */
  function build() {
    const two = conversation.lanes.length > 1;
    views = conversation.lanes.map((_, at) => {
      const label = two ? LANE_NAMES[at] : "Conversation";
      return { thread: threadView(label, actionsOf(at)), stopper: null, running: null };
    });
    lanes.replaceChildren(...views.map(laneNode));
    lanes.classList.toggle("two", two);
    toolbar.draw(conversation, !panel.hidden);
    drawPanel();
    sidebar.draw(stored, conversation);
    views.forEach((_, at) => draw(at));
  }

  /**
   * @param {LaneView} view
   * @param {number} at
   */
  function laneNode({ thread }, at) {
    const { lanes: all } = conversation;
    const label = `Model of ${LANE_NAMES[at].toLowerCase()}`;
    const choice = all.length > 1 && modelChoice(models, all[at].settings, label, changed);
    const bar = choice && element("div", { class: "lane-bar" }, choice);
    return element("div", { class: "lane" }, bar, thread.node);
  }

  /** @param {number} at */
  function draw(at) {
    const view = views[at];
    const { leaf } = conversation.lanes[at];
    if (leaf === null) view.thread.greet(greeting());
    else view.thread.draw(conversation, leaf, view.running?.id ?? null);
    composer.draw(isRunning());
  }

  function togglePanel() {
    panel.hidden = !panel.hidden;
    toolbar.draw(conversation, !panel.hidden);
    if (panel.hidden) toolbar.focus("Settings");
    else panel.querySelector("textarea")?.focus();
  }

  function drawPanel() {
    const two = conversation.lanes.length > 1;
    const forms = conversation.lanes.map(({ settings }, at) => {
      const legend = two ? `Settings of ${LANE_NAMES[at].toLowerCase()}` : "Settings";
      return settingsForm(legend, settings, changed);
    });
    panel.replaceChildren(
      button("Close settings", togglePanel, { class: "quiet narrow" }),
      ...forms,
    );
  }

  function changed() {
    saveSettings(conversation.lanes[0].settings);
    if (Object.keys(conversation.messages).length > 0) save();
  }

  function compare() {
    stop();
    toggleComparison(conversation);
    build();
    toolbar.focus(conversation.lanes.length > 1 ? ONE_LANE : COMPARE);
    save();
  }

  /** @param {Conversation} gone */
  async function remove(gone) {
    const empty = Object.keys(gone.messages).length === 0;
    if (!empty && !confirm("Delete this conversation?")) return;
    stored = stored.filter((one) => one.id !== gone.id);
    await removeConversation(gone.id);
    announce("Conversation deleted");
    if (gone.id === conversation.id) open(stored[0] ?? freshConversation(models));
    else sidebar.draw(stored, conversation);
  }

  async function save() {
    conversation.changed = Date.now();
    stored = [conversation, ...stored.filter((one) => one.id !== conversation.id)];
    sidebar.draw(stored, conversation);
    await saveConversation(conversation);
  }

  /** @param {string} text */
  function send(text) {
    /** @type {Map<string | null, Message>} */
    const sent = new Map();
    conversation.lanes.forEach((lane, at) => {
      const parent = lane.leaf;
      // Lanes that are at the same place share the question.
      const question =
        sent.get(parent) ?? addMessage(conversation, parent, { role: "user", content: text });
      sent.set(parent, question);
      answer(at, question.id);
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
    const owner = conversation;
    const lane = owner.lanes[at];
    view.stopper?.abort();
    const stopper = new AbortController();
    Object.assign(view, { stopper, running: message });
    lane.leaf = message.id;
    save();
    draw(at);
    const grown = paced(() => view.running === message && view.thread.grow());
    const saving = setInterval(() => saveConversation(owner), SAVE_EVERY);
    await generate(owner, message, lane.settings, stopper.signal, grown);
    clearInterval(saving);
    if (view.running === message) Object.assign(view, { stopper: null, running: null });
    if (stored.some((one) => one.id === owner.id)) await saveConversation(owner);
    if (owner !== conversation || views[at] !== view) return;
    draw(at);
    const { error } = message.answer ?? {};
    announce(error ? `Error: ${error}` : "Answer complete");
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
      edit({ role, model, call, parent }, text) {
        const added = addMessage(conversation, parent, { role, model, call, content: text });
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
        if (!confirm("Delete this message and all that follow it?")) return;
        stop();
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

  /** @param {KeyboardEvent} event */
  function escape(event) {
    if (event.key !== "Escape") return;
    stop();
    sidebar.show(false);
    if (!panel.hidden) togglePanel();
  }

  build();
  return element(
    "div",
    { class: "chat", onkeydown: escape },
    element("h1", { class: "away" }, "Chat"),
    sidebar.node,
    element(
      "div",
      { class: "stage" },
      toolbar.node,
      lanes,
      element("div", { class: "foot" }, composer.node),
    ),
    panel,
  );
}

/** @param {string[]} models */
function freshConversation(models) {
  const settings = { ...DEFAULTS, ...lastSettings() };
  if (!models.includes(settings.model)) [settings.model] = [...models, ""];
  return newConversation(settings, Date.now());
}

function greeting() {
  return element(
    "div",
    { class: "greeting" },
    element("p", { class: "big" }, "What would you like to know?"),
    element(
      "p",
      {},
      "Conversations stay in this browser. ",
      "Enter sends, Shift+Enter makes a new line, Esc stops an answer.",
    ),
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
