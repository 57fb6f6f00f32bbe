// @ts-check
/**
 * A conversation is a tree of messages: an edit or a second answer is a branch beside the first.
 * A lane shows the path to one leaf; two lanes compare models or settings. Plain data, no IO.
 */

/**
 * @typedef {import("./completion.js").Answer} Answer
 * @typedef {import("./request.js").Settings} Settings
 * @typedef {{
 *   id: string, parent: string | null, role: "user" | "assistant" | "tool", content: string,
 *   model?: string, answer?: Answer, call?: string,
 * }} Message `call`: the id of the call that a tool's result answers
 * @typedef {{settings: Settings, leaf: string | null}} Lane
 * @typedef {{
 *   id: string, title: string, changed: number, messages: Record<string, Message>, lanes: Lane[],
 * }} Conversation
 */

const LONGEST_TITLE = 60;

/**
 * @param {Settings} settings
 * @param {number} now in ms
 * @returns {Conversation}
 */
export function newConversation(settings, now) {
  return { id: newId(), title: "", changed: now, messages: {}, lanes: [{ settings, leaf: null }] };
}

export function newId() {
  const words = crypto.getRandomValues(new Uint32Array(3));
  return Array.from(words, (word) => word.toString(36)).join("");
}

/**
 * Adds a message below `parent` and returns it.
 * @param {Conversation} conversation
 * @param {string | null} parent
 * @param {Omit<Message, "id" | "parent">} message
 * @returns {Message}
 */
export function addMessage(conversation, parent, message) {
  const added = { ...message, id: newId(), parent };
  conversation.messages[added.id] = added;
  if (!conversation.title && message.role === "user") {
    const [first] = message.content.trim().split("\n");
    const whole = first.length <= LONGEST_TITLE;
    conversation.title = whole ? first : `${first.slice(0, LONGEST_TITLE)}…`;
  }
  return added;
}

/**
 * The messages from the first to `leaf`.
 * @param {Conversation} conversation
 * @param {string | null} leaf
 * @returns {Message[]}
 */
export function pathTo(conversation, leaf) {
  const path = [];
  const seen = new Set();
  for (let at = leaf; at !== null && !seen.has(at);) {
    const message = conversation.messages[at];
    if (!message) break;
    seen.add(at);
    path.push(message);
    at = message.parent;
  }
  return path.reverse();
}

/**
 * The messages that follow `parent`, the oldest first.
 * @param {Conversation} conversation
 * @param {string | null} parent
 */
export function childrenOf(conversation, parent) {
  return Object.values(conversation.messages).filter((message) => message.parent === parent);
}

/**
 * The messages that stand in the place of `message`, itself included.
 * @param {Conversation} conversation
 * @param {Message} message
 */
export function branches(conversation, message) {
  return childrenOf(conversation, message.parent).filter((other) => other.role === message.role);
}

/**
 * The end of the newest branch below a message.
 * @param {Conversation} conversation
 * @param {string} id
 * @returns {string}
 */
export function newestLeaf(conversation, id) {
  let leaf = id;
  for (;;) {
    const below = childrenOf(conversation, leaf);
    const newest = below.at(-1);
    if (!newest) return leaf;
    leaf = newest.id;
  }
}

/**
 * Removes a message and all that follows it. Lanes that showed them end before it.
 * @param {Conversation} conversation
 * @param {string} id
 */
export function removeBranch(conversation, id) {
  const { parent } = conversation.messages[id];
  const removed = new Set();
  const left = [id];
  for (let next = left.pop(); next !== undefined; next = left.pop()) {
    removed.add(next);
    left.push(...childrenOf(conversation, next).map((child) => child.id));
    delete conversation.messages[next];
  }
  for (const lane of conversation.lanes) {
    if (lane.leaf !== null && removed.has(lane.leaf)) lane.leaf = parent;
  }
}

/**
 * Adds or removes the second lane, which starts where the first is.
 * @param {Conversation} conversation
 */
export function toggleComparison(conversation) {
  const [first, second] = conversation.lanes;
  conversation.lanes = second
    ? [first]
    : [first, { settings: { ...first.settings }, leaf: first.leaf }];
}

/**
 * The `messages` of a request.
 * @param {Message[]} path
 * @param {string} system
 * @returns {Record<string, unknown>[]}
 */
export function requestMessages(path, system) {
  const turns = path.map((message) => {
    if (message.role === "tool") {
      return { role: "tool", tool_call_id: message.call, content: message.content };
    }
    const turn = { role: message.role, content: message.content };
    const { calls = [], reasoning = "" } = message.answer ?? {};
    const asked = calls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
    return {
      ...turn,
      ...(reasoning && { reasoning_content: reasoning }),
      ...(asked.length > 0 && { tool_calls: asked }),
    };
  });
  return system.trim() ? [{ role: "system", content: system }, ...turns] : turns;
}

/**
 * The calls of the last answer that have no result yet.
 * @param {Message[]} path
 */
export function openCalls(path) {
  const at = path.findLastIndex((message) => message.role === "assistant");
  const answered = new Set(path.slice(at + 1).map((message) => message.call));
  const calls = at < 0 ? [] : (path[at].answer?.calls ?? []);
  const after = path.slice(at + 1).every((message) => message.role === "tool");
  return after ? calls.filter((call) => !answered.has(call.id)) : [];
}
