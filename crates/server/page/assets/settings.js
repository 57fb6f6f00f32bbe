// @ts-check
/** The form of a lane's settings. */

import { element, field, visible } from "./dom.js";
import { NUMBERS } from "./request.js";

/** @typedef {import("./request.js").Settings} Settings */

const TOOLS_EXAMPLE =
  '[{"name": "weather", "parameters": {"type": "object", "properties": {"city": {}}}}]';

/**
 * @param {string} legend
 * @param {Settings} settings changed in place
 * @param {() => void} changed called after each change
 * @returns {HTMLElement}
 */
export function settingsForm(legend, settings, changed) {
  /** @param {"system" | "stop" | "tools" | "schema" | "more"} name */
  const area = (name, rows, placeholder = "") =>
    element("textarea", {
      name,
      rows,
      placeholder,
      spellcheck: name === "system" ? null : "false",
      value: settings[name],
      oninput: (/** @type {any} */ event) => {
        settings[name] = event.target.value;
        changed();
      },
    });
  const numbers = NUMBERS.map(({ name, label, least, most, step }) => {
    const input = element("input", {
      type: "number",
      name,
      min: least,
      max: most,
      step,
      placeholder: "default",
      value: settings[name],
      oninput: (/** @type {any} */ event) => {
        Object.assign(settings, { [name]: event.target.value });
        changed();
      },
    });
    return field(label, input);
  });
  const logprobs = element("input", {
    type: "checkbox",
    name: "logprobs",
    checked: settings.logprobs,
    onchange: (/** @type {any} */ event) => {
      settings.logprobs = event.target.checked;
      changed();
    },
  });
  return element(
    "fieldset",
    { class: "settings" },
    element("legend", {}, legend),
    field("System prompt", area("system", 4, "You are a helpful assistant.")),
    element("div", { class: "pairs" }, numbers),
    element("label", { class: "check" }, logprobs, "Token probabilities"),
    field("Stop", area("stop", 2), "one text a line"),
    field("Tools", area("tools", 3, TOOLS_EXAMPLE), "JSON: functions"),
    field("JSON schema of the answer", area("schema", 3, '{"type": "object", "properties": {}}')),
    field(
      "More fields",
      area("more", 2, '{"reasoning_effort": "low"}'),
      "JSON, added to the request",
    ),
  );
}

/**
 * @param {string[]} models
 * @param {Settings} settings changed in place
 * @param {string} label
 * @param {() => void} changed
 * @returns {HTMLElement}
 */
export function modelChoice(models, settings, label, changed) {
  const names =
    models.includes(settings.model) || !settings.model ? models : [settings.model, ...models];
  const select = element(
    "select",
    {
      "aria-label": label,
      onchange: (/** @type {any} */ event) => {
        settings.model = event.target.value;
        changed();
      },
    },
    names.map((name) =>
      element("option", { value: name, selected: name === settings.model }, visible(name)),
    ),
  );
  return select;
}
