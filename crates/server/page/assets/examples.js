// @ts-check
/** Requests as commands and programs that can be copied. No IO. */

/**
 * @typedef {{
 *   method: string, path: string, body: Record<string, any> | null, base: string, key: boolean,
 * }} Example `base`: the server's address without a slash at its end; `key`: whether it needs one
 */

const TURNS = [{ role: "user", content: "Name three rivers." }];

/** @type {Record<string, Record<string, any>>} */
const BODIES = {
  "/v1/chat/completions": { messages: TURNS, max_tokens: 100 },
  "/v1/completions": { prompt: "Once upon a time", max_tokens: 50 },
  "/v1/responses": { input: "Name three rivers." },
  "/v1/responses/input_tokens": { input: "Name three rivers." },
  "/v1/messages": { max_tokens: 100, messages: TURNS },
  "/v1/messages/count_tokens": { messages: TURNS },
  "/v1/embeddings": { input: ["a river", "a mountain"] },
  "/v1/rerank": { query: "a river", documents: ["The Rhine", "The Alps"] },
  "/v1/score": { text_1: "a river", text_2: ["The Rhine", "The Alps"] },
  "/tokenize": { prompt: "Name three rivers." },
  "/detokenize": { tokens: [1, 2, 3] },
  "/v1/kv/pin": { prompt: "You are a helpful assistant." },
  "/v1/kv/unpin": { prompt: "You are a helpful assistant." },
};
/** @type {Record<string, string>} */
const SAME = { "/v2/rerank": "/v1/rerank", "/rerank": "/v1/rerank", "/score": "/v1/score" };

/**
 * @param {string} path
 * @param {boolean} named whether the body has a model
 * @param {string} model
 * @returns {Record<string, any> | null}
 */
export function exampleBody(path, named, model) {
  const body = BODIES[SAME[path] ?? path];
  if (!body) return null;
  return named ? { model, ...body } : body;
}

/** Methods of the `openai` package. */
/** @type {Record<string, string>} */
const CLIENT = {
  "/v1/chat/completions": "chat.completions.create",
  "/v1/completions": "completions.create",
  "/v1/responses": "responses.create",
  "/v1/embeddings": "embeddings.create",
};

// Characters that cannot be seen, or that reorder the text around them.
const UNSEEN = /[\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/**
 * JSON that shows all it has.
 * @param {unknown} value
 * @param {number} [indent]
 */
function json(value, indent) {
  const text = JSON.stringify(value, null, indent);
  return text.replace(UNSEEN, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * A word of a shell.
 * @param {string} text
 */
function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

/** @param {Example} example */
export function curl({ method, path, body, base, key }) {
  const words = [`curl ${quoted(base + path)}`];
  if (method !== (body ? "post" : "get")) words[0] += ` -X ${method.toUpperCase()}`;
  if (key) words.push('-H "authorization: Bearer $API_KEY"');
  if (body) words.push("-H 'content-type: application/json'", `-d ${quoted(json(body))}`);
  return words.join(" \\\n  ");
}

/** @param {Example} example */
export function python(example) {
  return CLIENT[example.path] && example.body ? withClient(example) : withRequests(example);
}

/** @param {Example} example */
function withClient({ path, body, base, key }) {
  const given = Object.entries(body ?? {}).map(([name, value]) => `    ${name}=${literal(value)},`);
  const secret = key ? 'os.environ["API_KEY"]' : '"none"';
  return [
    ...(key ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${json(`${base}/v1`)}, api_key=${secret})`,
    `answer = client.${CLIENT[path]}(`,
    ...given,
    ")",
    "print(answer)",
  ].join("\n");
}

/** @param {Example} example */
function withRequests({ method, path, body, base, key }) {
  return [
    ...(key ? ["import os", ""] : []),
    "import requests",
    "",
    `answer = requests.${method}(`,
    `    ${json(base + path)},`,
    ...(key ? ['    headers={"authorization": f"Bearer {os.environ[\'API_KEY\']}"},'] : []),
    ...(body ? [`    json=${literal(body)},`] : []),
    ")",
    "print(answer.status_code, answer.text)",
  ].join("\n");
}

/**
 * A value as Python writes it.
 * @param {unknown} value
 * @returns {string}
 */
function literal(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (typeof value === "object") {
    return `{${Object.entries(value)
      .map(([name, one]) => `${json(name)}: ${literal(one)}`)
      .join(", ")}}`;
  }
  return json(value);
}

/** @param {Example} example */
export function javascript({ method, path, body, base, key }) {
  const headers = [
    ...(key ? ["authorization: `Bearer ${process.env.API_KEY}`"] : []),
    ...(body ? ['"content-type": "application/json"'] : []),
  ];
  const options = [
    ...(method === "get" ? [] : [`  method: "${method.toUpperCase()}",`]),
    ...(headers.length > 0 ? [`  headers: { ${headers.join(", ")} },`] : []),
    ...(body ? [`  body: JSON.stringify(${json(body, 2).replaceAll("\n", "\n  ")}),`] : []),
  ];
  const given =
    options.length > 0
      ? [`const answer = await fetch(${json(base + path)}, {`, ...options, "});"]
      : [`const answer = await fetch(${json(base + path)});`];
  return [...given, "console.log(answer.status, await answer.text());"].join("\n");
}
