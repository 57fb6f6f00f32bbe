// @ts-check
/** Asks the server for an answer and fills it in while it comes. */

import { RequestError, events, request } from "./api.js";
import { addChunk, emptyAnswer } from "./completion.js";
import { pathTo, requestMessages } from "./conversation.js";
import { SettingError, chatRequest } from "./request.js";

/**
 * @typedef {import("./conversation.js").Conversation} Conversation
 * @typedef {import("./conversation.js").Message} Message
 * @typedef {import("./request.js").Settings} Settings
 */

/**
 * Fills `message`, or goes on where its text ends. Never throws: an error is part of the answer.
 * @param {Conversation} conversation
 * @param {Message} message of the assistant
 * @param {Settings} settings
 * @param {AbortSignal} signal ends the answer early
 * @param {() => void} grown called after each change
 */
export async function generate(conversation, message, settings, signal, grown) {
  const before = message.answer;
  const goesOn = message.content !== "";
  const answer = emptyAnswer(performance.now());
  if (goesOn && before) {
    Object.assign(answer, {
      content: message.content,
      reasoning: before.reasoning,
      tokens: before.tokens,
    });
  }
  message.answer = answer;
  try {
    const path = pathTo(conversation, goesOn ? message.id : message.parent);
    const body = chatRequest(settings, requestMessages(path, settings.system));
    if (goesOn) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
    const response = await request("v1/chat/completions", { body, signal });
    for await (const chunk of events(response)) {
      addChunk(answer, chunk, performance.now());
      message.content = answer.content;
      grown();
    }
    if (answer.finish === null) answer.error ??= "The stream ended before the answer did.";
  } catch (error) {
    if (signal.aborted) answer.finish = "stopped";
    else answer.error = explained(error);
  }
  grown();
}

/** @param {unknown} error */
function explained(error) {
  if (error instanceof RequestError || error instanceof SettingError) return error.message;
  return "The connection broke before the answer ended.";
}
