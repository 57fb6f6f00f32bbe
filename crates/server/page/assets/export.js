// @ts-check
/** Conversations as files. */

import { pathTo } from "./conversation.js";

/** @typedef {import("./conversation.js").Conversation} Conversation */

/**
 * The path that the first lane shows, as Markdown.
 * @param {Conversation} conversation
 */
export function asMarkdown(conversation) {
  const parts = [`# ${conversation.title || "Conversation"}`];
  for (const { settings, leaf } of conversation.lanes) {
    if (conversation.lanes.length > 1) parts.push(`# ${settings.model}`);
    if (settings.system.trim()) parts.push("## System", settings.system);
    for (const message of pathTo(conversation, leaf)) {
      parts.push(`## ${HEADINGS[message.role]}`);
      if (message.answer?.reasoning) parts.push(quoted(message.answer.reasoning));
      if (message.content) parts.push(message.content);
      for (const call of message.answer?.calls ?? []) {
        parts.push(fenced(`${call.name}(${call.arguments})`));
      }
    }
  }
  return `${parts.join("\n\n")}\n`;
}

const HEADINGS = { user: "User", assistant: "Assistant", tool: "Tool result" };

/** @param {string} text */
function quoted(text) {
  return text
    .split("\n")
    .map((line) => `> ${line}`)
    .join("\n");
}

/** @param {string} text */
function fenced(text) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), ([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}

/** @param {Conversation} conversation */
export function asJson(conversation) {
  return `${JSON.stringify(conversation, null, 2)}\n`;
}

/**
 * @param {Conversation} conversation
 * @param {"json" | "md"} kind
 */
export function download(conversation, kind) {
  const text = kind === "json" ? asJson(conversation) : asMarkdown(conversation);
  const address = URL.createObjectURL(new Blob([text], { type: "text/plain" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = `${fileName(conversation.title)}.${kind}`;
  link.click();
  URL.revokeObjectURL(address);
}

/** @param {string} title */
function fileName(title) {
  return (
    title
      .toLowerCase()
      .replace(/[^a-z0-9]+/g, "-")
      .replace(/^-|-$/g, "")
      .slice(0, 40) || "conversation"
  );
}
