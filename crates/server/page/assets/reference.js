// @ts-check
/** The server's OpenAPI document, with programs for each endpoint. */

import { BASE, getJson, hasKey } from "./api.js";
import { button, element, visible } from "./dom.js";
import { curl, exampleBody, javascript, python } from "./examples.js";
import { codeView } from "./render.js";

/** Endpoints that need no key whatever the server's are. */
const OPEN = ["/health", "/metrics", "/metrics/stream", "/ping", "/ready"];
/** @type {[string, RegExp][]} */
const GROUPS = [
  ["Text", /^\/v1\/(chat|completions|responses)/],
  ["Messages", /^\/v1\/messages/],
  ["Vectors and scores", /embeddings|rerank|score/],
  ["Models and tokens", /models|token/],
  ["KV cache", /^\/v1\/kv/],
  ["Operating", /./],
];
/** @type {Record<string, (example: import("./examples.js").Example) => string>} */
const LANGUAGES = { curl, Python: python, JavaScript: javascript };

/**
 * @param {string[]} models
 * @returns {Promise<HTMLElement | null>} null for a server without a document
 */
export async function referenceView(models) {
  let document;
  try {
    document = await getJson("openapi.json");
  } catch {
    return null;
  }
  const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.entries(methods)
      .filter(([method]) => method !== "parameters")
      .map(([method, operation]) => ({
        method,
        path,
        operation,
        name: `${method.toUpperCase()} ${path}`,
      })),
  );
  const state = { language: "curl", document, model: models[0] ?? "" };
  const views = operations.map((one) => ({ ...one, node: operationView(one, state) }));
  const groups = GROUPS.map(([title, pattern], at) => {
    const own = views.filter(
      ({ path }) =>
        pattern.test(path) && !GROUPS.slice(0, at).some(([, earlier]) => earlier.test(path)),
    );
    return element(
      "section",
      {},
      element("h2", {}, title),
      own.map(({ node }) => node),
    );
  });
  const find = element("input", {
    type: "search",
    "aria-label": "Find an endpoint or a field",
    placeholder: "Find an endpoint or a field",
    oninput: () => {
      const wanted = find.value.toLowerCase();
      for (const { node, name, operation } of views) {
        const text =
          `${name} ${operation.summary} ${fieldNames(operation, document)}`.toLowerCase();
        node.hidden = !text.includes(wanted);
      }
      for (const group of groups) group.hidden = !group.querySelector("details:not([hidden])");
    },
  });
  return element(
    "div",
    { class: "page reference" },
    element("h1", {}, "API"),
    element(
      "p",
      { class: "muted" },
      "OpenAI's and Anthropic's protocols at ",
      element("code", {}, address()),
      ". The same as JSON: ",
      element("a", { href: new URL("openapi.json", BASE).href }, "openapi.json"),
      ".",
    ),
    element("div", { class: "find" }, find),
    groups,
    schemasView(document),
  );
}

/** The server's address without a slash at its end. */
function address() {
  return BASE.href.replace(/\/$/, "");
}

/**
 * @param {{method: string, path: string, operation: any}} one
 * @param {{language: string, document: any, model: string}} state
 */
function operationView({ method, path, operation }, state) {
  const details = element(
    "details",
    {
      class: "operation",
      ontoggle: () => {
        // Filled when it is first opened, and with the language chosen since.
        if (details.open) body.replaceChildren(...contents());
      },
    },
    element(
      "summary",
      {},
      element("b", { class: `method ${method}` }, method.toUpperCase()),
      element("code", {}, visible(path)),
      element("span", {}, operation.summary),
    ),
  );
  const body = element("div", { class: "inside" });
  details.append(body);
  const schema = requestSchema(operation, state.document);
  const contents = () => {
    const sent = exampleBody(path, Boolean(schema?.properties?.model), state.model);
    const example = {
      method,
      path: path.replace("{id}", pathValue(path, state.model)),
      body: sent,
      base: address(),
      key: hasKey() && !OPEN.includes(path),
    };
    const choices = Object.keys(LANGUAGES).map((language) =>
      button(
        language,
        () => {
          state.language = language;
          body.replaceChildren(...contents());
          body.querySelector("[aria-pressed=true]")?.focus();
        },
        { class: "quiet", "aria-pressed": String(language === state.language) },
      ),
    );
    return [
      element("div", { class: "row", role: "group", "aria-label": "Language" }, choices),
      codeView(LANGUAGES[state.language](example), state.language),
      schema && fieldsTable(schema),
      element(
        "p",
        { class: "muted" },
        "Answers: ",
        Object.entries(operation.responses)
          .map(([status, answer]) => answerText(status, answer))
          .join(", "),
      ),
    ].filter(Boolean);
  };
  return details;
}

/**
 * @param {string} path
 * @param {string} model
 */
function pathValue(path, model) {
  return path.startsWith("/v1/models") ? encodeURIComponent(model) : "ID";
}

/**
 * @param {any} operation
 * @param {any} document
 */
function requestSchema(operation, document) {
  const schema = operation.requestBody?.content?.["application/json"]?.schema;
  return schema?.$ref ? document.components.schemas[nameOf(schema.$ref)] : schema;
}

/** @param {string} reference */
function nameOf(reference) {
  return reference.split("/").at(-1) ?? "";
}

/**
 * @param {any} operation
 * @param {any} document
 */
function fieldNames(operation, document) {
  return Object.keys(requestSchema(operation, document)?.properties ?? {}).join(" ");
}

/** @param {any} schema */
function fieldsTable(schema) {
  const required = new Set(schema.required ?? []);
  const names = Object.keys(schema.properties ?? {});
  const ordered = [
    ...names.filter((name) => required.has(name)),
    ...names.filter((name) => !required.has(name)),
  ];
  const rows = ordered.map((name) =>
    element(
      "tr",
      {},
      element(
        "th",
        { scope: "row" },
        element("code", {}, name),
        required.has(name) && " (required)",
      ),
      element("td", {}, typeText(schema.properties[name])),
    ),
  );
  return element(
    "div",
    { class: "wide fields", tabindex: "0", role: "group", "aria-label": "Fields" },
    element("table", {}, element("tbody", {}, rows)),
  );
}

/**
 * A schema in a few words.
 * @param {any} schema
 * @returns {string}
 */
export function typeText(schema) {
  if (schema.$ref) return nameOf(schema.$ref);
  if (schema.enum)
    return schema.enum
      .filter((/** @type {any} */ one) => one !== null)
      .map((/** @type {any} */ one) => JSON.stringify(one))
      .join(" | ");
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.anyOf)
    return [
      ...new Set(
        schema.anyOf.filter((/** @type {any} */ one) => one.type !== "null").map(typeText),
      ),
    ].join(" or ");
  const kinds = [schema.type ?? "any"].flat().filter((kind) => kind !== "null");
  const words = kinds
    .map((kind) => (kind === "array" ? `list of ${typeText(schema.items ?? {})}` : kind))
    .join(" or ");
  return words + bounds(schema);
}

/** @param {any} schema */
function bounds(schema) {
  const { minimum, exclusiveMinimum, maximum } = schema;
  const least = minimum ?? exclusiveMinimum;
  const above = exclusiveMinimum !== undefined ? "above " : "";
  if (least !== undefined && maximum !== undefined) return `, ${above}${least} to ${maximum}`;
  if (least !== undefined) return above ? `, ${above}${least}` : `, ${least} and up`;
  return maximum === undefined ? "" : `, up to ${maximum}`;
}

/**
 * @param {string} status
 * @param {any} answer
 */
function answerText(status, answer) {
  const names = Object.values(answer.content ?? {}).map(
    (/** @type {any} */ one) => one.schema && typeText(one.schema),
  );
  return status === "200" ? `200 (${names.join(" or ")})` : status;
}

/** @param {any} document */
function schemasView(document) {
  const views = Object.entries(document.components.schemas)
    .filter(
      ([, schema]) => schema.type !== "object" || Object.keys(schema.properties ?? {}).length < 30,
    )
    .map(([name, schema]) => {
      const details = element(
        "details",
        {
          class: "operation",
          ontoggle: () => {
            if (details.open && details.childElementCount === 1)
              details.append(codeView(JSON.stringify(schema, null, 2), "JSON schema"));
          },
        },
        element("summary", {}, element("code", {}, name)),
      );
      return details;
    });
  return element("section", {}, element("h2", {}, "Types"), views);
}
