// @ts-check
/** What a stream of chat chunks adds up to. No IO. */

/**
 * @typedef {{text: string, logprob: number}} Candidate
 * @typedef {Candidate & {others: Candidate[]}} Token
 * @typedef {{id: string, name: string, arguments: string}} Call
 * @typedef {{prompt: number, output: number, cached: number, tiers: Record<string, number>}} Usage
 * @typedef {{
 *   content: string, reasoning: string, calls: Call[], tokens: Token[], finish: string | null,
 *   usage: Usage | null, error: string | null, started: number, first: number | null,
 *   last: number | null,
 * }} Answer times in ms
 */

/**
 * @param {number} now
 * @returns {Answer}
 */
export function emptyAnswer(now) {
  return {
    content: "",
    reasoning: "",
    calls: [],
    tokens: [],
    finish: null,
    usage: null,
    error: null,
    started: now,
    first: null,
    last: null,
  };
}

/**
 * Adds a chunk to the answer.
 * @param {Answer} answer
 * @param {any} chunk
 * @param {number} now
 */
export function addChunk(answer, chunk, now) {
  if (chunk?.error) {
    answer.error = String(chunk.error.message ?? chunk.error);
    return;
  }
  if (chunk?.usage) answer.usage = usageOf(chunk.usage);
  const choice = chunk?.choices?.[0];
  if (!choice) return;
  const delta = choice.delta ?? choice.message ?? {};
  const content = textOf(delta.content);
  const reasoning = textOf(delta.reasoning_content ?? delta.reasoning);
  if (content || reasoning || delta.tool_calls) {
    answer.first ??= now;
    answer.last = now;
  }
  answer.content += content;
  answer.reasoning += reasoning;
  for (const call of delta.tool_calls ?? []) addCall(answer.calls, call);
  for (const token of choice.logprobs?.content ?? []) answer.tokens.push(tokenOf(token));
  if (choice.finish_reason) answer.finish = String(choice.finish_reason);
}

/** @param {unknown} value */
function textOf(value) {
  return typeof value === "string" ? value : "";
}

/**
 * @param {Call[]} calls
 * @param {any} part
 */
function addCall(calls, part) {
  const index = Number.isInteger(part.index) ? part.index : calls.length;
  if (index < 0 || index > calls.length) return;
  calls[index] ??= { id: "", name: "", arguments: "" };
  const call = calls[index];
  call.id ||= textOf(part.id);
  call.name += textOf(part.function?.name);
  call.arguments += textOf(part.function?.arguments);
}

/**
 * @param {any} given
 * @returns {Token}
 */
function tokenOf(given) {
  const others = (given.top_logprobs ?? []).map(candidateOf);
  return { ...candidateOf(given), others };
}

/**
 * @param {any} given
 * @returns {Candidate}
 */
function candidateOf(given) {
  return { text: textOf(given.token), logprob: Number(given.logprob) };
}

/**
 * @param {any} usage
 * @returns {Usage}
 */
function usageOf(usage) {
  const details = usage.prompt_tokens_details ?? {};
  return {
    prompt: usage.prompt_tokens ?? 0,
    output: usage.completion_tokens ?? 0,
    cached: details.cached_tokens ?? 0,
    tiers: details.cached_tokens_by_tier ?? {},
  };
}

/**
 * Facts about a finished answer, in words.
 * @param {Answer} answer
 * @returns {string[]}
 */
export function summary(answer) {
  const { usage, first, last, started } = answer;
  const facts = [];
  if (usage) facts.push(count(usage.output, "token"));
  if (usage && first !== null && last !== null && last > first && usage.output > 1) {
    facts.push(`${((usage.output - 1) / ((last - first) / 1000)).toFixed(1)} tokens/s`);
  }
  if (first !== null) facts.push(`first token ${seconds(first - started)}`);
  if (usage) {
    const tiers = Object.entries(usage.tiers).filter(([, tokens]) => tokens > 0);
    const places =
      tiers.length > 0 ? ` (${tiers.map(([name, tokens]) => `${name} ${tokens}`).join(", ")})` : "";
    facts.push(`${usage.cached} of ${count(usage.prompt, "prompt token")} cached${places}`);
  }
  if (answer.finish && answer.finish !== "stop") facts.push(FINISH[answer.finish] ?? answer.finish);
  return facts;
}

/** @type {Record<string, string>} */
const FINISH = { length: "cut at the token limit", stopped: "stopped", tool_calls: "calls tools" };

/**
 * @param {number} number
 * @param {string} noun
 */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}

/** @param {number} ms */
export function seconds(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(2)} s`;
}
