// @ts-check
/** The settings of a lane as the body of a chat request. No IO. */

/**
 * @typedef {{
 *   model: string, system: string, temperature: string, top_p: string, top_k: string,
 *   min_p: string, max_tokens: string, seed: string, stop: string, presence_penalty: string,
 *   frequency_penalty: string, tools: string, schema: string, more: string, logprobs: boolean,
 * }} Settings texts as typed; an empty one leaves its field to the server
 */

/** @type {Settings} */
export const DEFAULTS = {
  model: "",
  system: "",
  temperature: "",
  top_p: "",
  top_k: "",
  min_p: "",
  max_tokens: "",
  seed: "",
  stop: "",
  presence_penalty: "",
  frequency_penalty: "",
  tools: "",
  schema: "",
  more: "",
  logprobs: false,
};

/**
 * @typedef {{
 *   name: keyof Settings & string, label: string, least: number, most: number | null, step: string,
 * }} NumberSetting
 * @type {NumberSetting[]}
 */
export const NUMBERS = [
  { name: "temperature", label: "Temperature", least: 0, most: null, step: "0.1" },
  { name: "max_tokens", label: "Max tokens", least: 1, most: null, step: "1" },
  { name: "top_p", label: "Top p", least: 0, most: 1, step: "0.05" },
  { name: "top_k", label: "Top k", least: -1, most: null, step: "1" },
  { name: "min_p", label: "Min p", least: 0, most: 1, step: "0.05" },
  { name: "seed", label: "Seed", least: -(2 ** 53), most: null, step: "1" },
  { name: "presence_penalty", label: "Presence penalty", least: -2, most: 2, step: "0.1" },
  { name: "frequency_penalty", label: "Frequency penalty", least: -2, most: 2, step: "0.1" },
];

/** How many alternatives of each token are shown. */
const ALTERNATIVES = 5;

/** A setting that is no number or no JSON of its kind. */
export class SettingError extends Error {}

/**
 * @param {Settings} settings
 * @param {Record<string, unknown>[]} messages
 * @returns {Record<string, unknown>}
 * @throws {SettingError}
 */
export function chatRequest(settings, messages) {
  /** @type {Record<string, unknown>} */
  const body = { messages, stream: true, stream_options: { include_usage: true } };
  if (settings.model) body.model = settings.model;
  for (const { name, label } of NUMBERS) {
    const text = String(settings[name]).trim();
    if (text === "") continue;
    const number = Number(text);
    if (!Number.isFinite(number)) throw new SettingError(`${label} is ${text}, not a number.`);
    body[name] = number;
  }
  const stops = settings.stop.split("\n").filter((text) => text !== "");
  if (stops.length > 0) body.stop = stops;
  if (settings.logprobs) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  const tools = parsed("Tools", settings.tools);
  if (tools !== null) body.tools = list(tools).map(asTool);
  const schema = parsed("JSON schema", settings.schema);
  if (schema !== null) {
    const isSchema = typeof schema === "object" && !Array.isArray(schema);
    if (!isSchema) throw new SettingError("JSON schema is not an object.");
    body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  }
  const more = parsed("More fields", settings.more);
  if (more !== null) {
    if (typeof more !== "object" || Array.isArray(more))
      throw new SettingError("More fields is not a JSON object.");
    Object.assign(body, more, { stream: true });
  }
  return body;
}

/**
 * @param {string} label
 * @param {string} text
 * @returns {any} null for an empty text
 */
function parsed(label, text) {
  if (text.trim() === "") return null;
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(
      `${label} is not JSON: ${error instanceof Error ? error.message : error}`,
    );
  }
}

/** @param {any} value */
function list(value) {
  return Array.isArray(value) ? value : [value];
}

/** @param {any} tool a tool, or the function of one */
function asTool(tool) {
  return tool?.type === "function" || tool?.function ? tool : { type: "function", function: tool };
}
