// @ts-check
/** The list of conversations at the side; a sheet of its own on narrow screens. */

import { button, element } from "./dom.js";

/**
 * @typedef {import("./conversation.js").Conversation} Conversation
 * @typedef {{
 *   create: () => void, open: (one: Conversation) => void, remove: (one: Conversation) => void,
 * }} Actions
 */

/** @param {Actions} actions */
export function sidebarView({ create, open, remove }) {
  const list = element("ul", { class: "conversations" });
  const node = element(
    "aside",
    { class: "side", id: "conversations", "aria-label": "Conversations" },
    button("New chat", create, { class: "new" }),
    list,
  );
  /** @param {boolean} wanted */
  const show = (wanted) => {
    node.classList.toggle("open", wanted);
    if (wanted) node.querySelector("button")?.focus();
  };
  /**
   * @param {Conversation} one
   * @param {boolean} current
   */
  const item = (one, current) => {
    const title = one.title || "New chat";
    const mark = current ? { "aria-current": "true" } : {};
    return element(
      "li",
      {},
      button(title, () => open(one), { class: "title", dir: "auto", ...mark }),
      button(`Delete ${title}`, () => remove(one), { icon: "delete", class: "quiet" }),
    );
  };
  return {
    node,
    show,
    toggle: () => show(!node.classList.contains("open")),
    /**
     * @param {Conversation[]} conversations
     * @param {Conversation} current
     */
    draw(conversations, current) {
      const known = conversations.some((one) => one.id === current.id);
      const shown = known ? conversations : [current, ...conversations];
      list.replaceChildren(...shown.map((one) => item(one, one.id === current.id)));
    },
  };
}
