// @ts-check
/** The row above a conversation: model, comparison, export, settings. */

import { button, element, icon } from "./dom.js";
import { download } from "./export.js";
import { modelChoice } from "./settings.js";

/**
 * @typedef {import("./conversation.js").Conversation} Conversation
 * @typedef {{
 *   list: () => void, compare: () => void, settings: () => void, changed: () => void,
 * }} Actions
 */

export const COMPARE = "Compare two models or settings";
export const ONE_LANE = "One lane";

/**
 * @param {string[]} models
 * @param {Actions} actions
 */
export function toolbarView(models, actions) {
  const node = element("div", { class: "toolbar", role: "group", "aria-label": "Conversation" });
  return {
    node,
    /** @param {string} name of a button */
    focus: (name) => node.querySelector(`[aria-label="${name}"]`)?.focus(),
    /**
     * @param {Conversation} conversation
     * @param {boolean} open whether the settings are shown
     */
    draw(conversation, open) {
      const [first, second] = conversation.lanes;
      node.replaceChildren(
        button("Conversations", actions.list, {
          icon: "list",
          class: "quiet narrow",
          "aria-controls": "conversations",
        }),
        second ? "" : modelChoice(models, first.settings, "Model", actions.changed),
        element("span", { class: "grow" }),
        button(second ? ONE_LANE : COMPARE, actions.compare, {
          icon: "compare",
          class: "quiet",
          "aria-pressed": String(Boolean(second)),
        }),
        exportMenu(conversation),
        button("Settings", actions.settings, {
          icon: "settings",
          class: "quiet",
          "aria-expanded": String(open),
          "aria-controls": "settings",
        }),
      );
    },
  };
}

/** @param {Conversation} conversation */
function exportMenu(conversation) {
  /** @param {"json" | "md"} kind */
  const save = (kind) => () => {
    menu.open = false;
    download(conversation, kind);
  };
  const named = { class: "quiet", "aria-label": "Export", title: "Export" };
  const menu = element(
    "details",
    { class: "menu" },
    element("summary", named, icon("save")),
    element(
      "div",
      { class: "items" },
      button("Markdown", save("md")),
      button("JSON", save("json")),
    ),
  );
  return menu;
}
