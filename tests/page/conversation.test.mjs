import assert from "node:assert/strict";
import { webcrypto } from "node:crypto";
import { test } from "node:test";

import {
  addMessage,
  branches,
  newConversation,
  newestLeaf,
  openCalls,
  pathTo,
  removeBranch,
  requestMessages,
  toggleComparison,
} from "../../crates/server/page/assets/conversation.js";
import { asJson, asMarkdown } from "../../crates/server/page/assets/export.js";
import { DEFAULTS } from "../../crates/server/page/assets/request.js";
import { numbers } from "./random.mjs";

// Node 18 has none under this name.
globalThis.crypto ??= webcrypto;

const user = (content) => ({ role: "user", content });
const assistant = (content, answer) => ({ role: "assistant", content, answer });

function begun() {
  const conversation = newConversation({ ...DEFAULTS, model: "m" }, 0);
  const question = addMessage(conversation, null, user("first line\nsecond"));
  const answer = addMessage(conversation, question.id, assistant("yes"));
  conversation.lanes[0].leaf = answer.id;
  return { conversation, question, answer };
}

test("an edit is a branch beside the message", () => {
  const { conversation, question, answer } = begun();
  const edited = addMessage(conversation, question.parent, user("other"));
  assert.deepEqual(
    branches(conversation, edited).map(({ id }) => id),
    [question.id, edited.id],
  );
  assert.deepEqual(pathTo(conversation, answer.id), [question, answer]);
  assert.equal(newestLeaf(conversation, question.id), answer.id);
  assert.equal(newestLeaf(conversation, edited.id), edited.id);
  assert.equal(conversation.title, "first line");
});

test("what is removed is on no path", () => {
  const next = numbers(1);
  for (let round = 0; round < 100; round += 1) {
    const { conversation } = begun();
    for (let made = 0; made < 20; made += 1) {
      const ids = [null, ...Object.keys(conversation.messages)];
      addMessage(conversation, ids[next(ids.length)], next(2) ? user("u") : assistant("a"));
    }
    const ids = Object.keys(conversation.messages);
    conversation.lanes[0].leaf = newestLeaf(conversation, ids[next(ids.length)]);
    const gone = ids[next(ids.length)];
    removeBranch(conversation, gone);
    const left = new Set(Object.keys(conversation.messages));
    assert.ok(!left.has(gone));
    for (const message of Object.values(conversation.messages)) {
      assert.ok(message.parent === null || left.has(message.parent));
    }
    const { leaf } = conversation.lanes[0];
    assert.ok(leaf === null || left.has(leaf));
  }
});

test("a second lane starts where the first is and has settings of its own", () => {
  const { conversation, answer } = begun();
  toggleComparison(conversation);
  assert.equal(conversation.lanes[1].leaf, answer.id);
  conversation.lanes[1].settings.model = "other";
  assert.equal(conversation.lanes[0].settings.model, "m");
  toggleComparison(conversation);
  assert.equal(conversation.lanes.length, 1);
});

test("a request has the path, calls and their results", () => {
  const { conversation, answer } = begun();
  const calls = [
    { id: "c1", name: "f", arguments: "{}" },
    { id: "c2", name: "g", arguments: "{}" },
  ];
  const calling = addMessage(conversation, answer.id, assistant("", { calls, reasoning: "why" }));
  const result = addMessage(conversation, calling.id, { role: "tool", content: "5", call: "c1" });
  const path = pathTo(conversation, result.id);
  assert.deepEqual(
    openCalls(path).map(({ id }) => id),
    ["c2"],
  );
  const messages = requestMessages(path, "be brief");
  assert.deepEqual(
    messages.map(({ role }) => role),
    ["system", "user", "assistant", "assistant", "tool"],
  );
  assert.equal(messages[3].tool_calls[1].function.name, "g");
  assert.equal(messages[3].reasoning_content, "why");
  assert.deepEqual(messages[4], { role: "tool", tool_call_id: "c1", content: "5" });
  assert.deepEqual(openCalls(pathTo(conversation, answer.id)), []);
});

test("a damaged conversation with a circle of parents still has a path", () => {
  const { conversation, question, answer } = begun();
  question.parent = answer.id;
  assert.equal(pathTo(conversation, answer.id).length, 2);
});

test("exports", () => {
  const { conversation, question } = begun();
  const calls = [{ id: "c", name: "f", arguments: "```" }];
  const last = addMessage(
    conversation,
    question.id,
    assistant("text", { calls, reasoning: "a\nb" }),
  );
  conversation.lanes[0].leaf = last.id;
  const text = asMarkdown(conversation);
  assert.ok(
    text.startsWith(
      "# first line\n\n## User\n\nfirst line\nsecond\n\n## Assistant\n\n> a\n> b\n\ntext\n\n````\n",
    ),
  );
  assert.deepEqual(
    JSON.parse(asJson(conversation)).messages,
    JSON.parse(JSON.stringify(conversation.messages)),
  );
});
