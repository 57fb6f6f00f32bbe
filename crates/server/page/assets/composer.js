// @ts-check
/** Where a message is written, sent and stopped. */

import { element, icon } from "./dom.js";

/** @param {{send: (text: string) => void, stop: () => void}} actions */
export function composerView({ send, stop }) {
  let running = false;
  const area = element("textarea", {
    rows: "1",
    "aria-label": "Message",
    placeholder: "Message",
    dir: "auto",
    oninput: () => fit(area),
    onkeydown: (/** @type {KeyboardEvent} */ event) => {
      // Enter also ends the composition of a character.
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      submit();
    },
  });
  const submit = () => {
    if (running || !area.value.trim()) return;
    const text = area.value;
    area.value = "";
    fit(area);
    send(text);
  };
  const sendButton = element("button", { type: "submit", class: "primary round" });
  const node = element(
    "form",
    {
      class: "composer",
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        if (running) stop();
        else submit();
      },
    },
    area,
    sendButton,
  );
  return {
    node,
    focus: () => area.focus(),
    /** @param {boolean} now whether an answer is being written */
    draw(now) {
      running = now;
      sendButton.replaceChildren(icon(running ? "stop" : "send"));
      sendButton.setAttribute("aria-label", running ? "Stop" : "Send");
      sendButton.title = running ? "Stop (Esc)" : "Send (Enter)";
    },
  };
}

/**
 * Makes a field as high as its text.
 * @param {HTMLTextAreaElement} area
 */
function fit(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight}px`;
}
