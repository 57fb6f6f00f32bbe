// @ts-check
/** One lane of a conversation: the messages on the path to its leaf. */

import { branches, openCalls, pathTo } from "./conversation.js";
import { element, visible } from "./dom.js";
import { messageView } from "./message.js";

/**
 * @typedef {import("./conversation.js").Conversation} Conversation
 * @typedef {import("./message.js").Actions} Actions
 */

/** Distance from the end in px within which a thread follows its answer. */
const NEAR = 80;

/**
 * @param {string} label
 * @param {Actions & {result: (call: string, text: string) => void}} actions
 */
export function threadView(label, actions) {
  const list = element("div", { class: "messages" });
  const node = element("section", { class: "thread", "aria-label": label, tabindex: "0" }, list);
  /** @type {{id: string, update: () => void} | null} */
  let last = null;
  let drawn = 0;

  const follow = (/** @type {() => void} */ change) => {
    const near = node.scrollHeight - node.scrollTop - node.clientHeight < NEAR;
    change();
    if (near) node.scrollTop = node.scrollHeight;
  };

  return {
    node,
    /**
     * @param {Conversation} conversation
     * @param {string | null} leaf
     * @param {string | null} running the message that is being written
     */
    draw(conversation, leaf, running) {
      const path = pathTo(conversation, leaf);
      const views = path.map((message, at) => {
        const siblings = branches(conversation, message);
        const isLast = at === path.length - 1;
        const view = messageView(message, {
          siblings,
          running: message.id === running,
          last: isLast,
          actions,
        });
        last = isLast ? { id: message.id, update: view.update } : last;
        return view.node;
      });
      const calls =
        running === null ? openCalls(path).map((call) => resultForm(call, actions.result)) : [];
      const more = path.length !== drawn;
      drawn = path.length;
      const focused = list.contains(document.activeElement);
      follow(() => list.replaceChildren(...views, ...calls));
      // What had the focus is gone.
      if (focused) node.focus({ preventScroll: true });
      if (more) node.scrollTop = node.scrollHeight;
    },
    /** Shows what has been added to the last message. */
    grow() {
      follow(() => last?.update());
    },
    /** @param {Node[]} content shown while there are no messages */
    greet(...content) {
      list.replaceChildren(...content);
      drawn = 0;
    },
  };
}

/**
 * A form for the result of a call.
 * @param {import("./completion.js").Call} call
 * @param {(call: string, text: string) => void} send
 */
function resultForm(call, send) {
  const name = visible(call.name);
  const area = element("textarea", {
    rows: "2",
    "aria-label": `Result of ${name}`,
    placeholder: `What ${name} returns`,
  });
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    send(call.id, area.value);
  };
  return element(
    "form",
    { class: "edit", onsubmit: submit },
    area,
    element(
      "div",
      { class: "row" },
      element("button", { type: "submit", class: "primary" }, `Return to the model`),
    ),
  );
}
