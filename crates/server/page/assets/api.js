// @ts-check
/** Requests to the server that this page came from. */

import { eventReader, lineReader } from "./sse.js";

/** The server's address, with the path below which it serves the page. */
export const BASE = new URL("..", import.meta.url);

// Kept here and nowhere else: it is gone with the page.
let key = "";

/** @param {string} value */
export function setKey(value) {
  key = value;
}

export function hasKey() {
  return key !== "";
}

/** An answer that is an error, or no answer. */
export class RequestError extends Error {
  /**
   * @param {string} message
   * @param {number} status 0: the server cannot be reached
   */
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

/**
 * @param {string} path relative to the server, such as `v1/models`
 * @param {{body?: unknown, signal?: AbortSignal}} [options] a body makes it a POST
 * @returns {Promise<Response>} of a status below 400
 * @throws {RequestError}
 */
export async function request(path, { body, signal } = {}) {
  /** @type {Record<string, string>} */
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  /** @type {RequestInit} */
  const options = { headers, signal, credentials: "omit", cache: "no-store" };
  if (body !== undefined) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  let response;
  try {
    response = await fetch(new URL(path, BASE), options);
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new RequestError("The server cannot be reached.", 0);
  }
  if (!response.ok) throw new RequestError(await reason(response), response.status);
  return response;
}

/** @param {Response} response */
async function reason(response) {
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text);
    if (typeof error.message === "string") return error.message;
  } catch {
    // Proxies answer with pages of their own.
  }
  return `${response.status} ${response.statusText}`.trim();
}

/** @param {string} path */
export async function getJson(path) {
  return (await request(path)).json();
}

/**
 * @param {string} path
 * @param {AbortSignal} [signal]
 */
export async function getText(path, signal) {
  return (await request(path, { signal })).text();
}

/**
 * The data of each event of an answer, parsed.
 * @param {Response} response
 */
export async function* events(response) {
  for await (const data of split(response, eventReader())) {
    if (data === "[DONE]") return;
    yield JSON.parse(data);
  }
}

/**
 * The lines of an answer, each parsed as JSON.
 * @param {Response} response
 */
export async function* jsonLines(response) {
  for await (const line of split(response, lineReader())) {
    if (line) yield JSON.parse(line);
  }
}

/**
 * @param {Response} response
 * @param {(chunk: string) => string[]} parts
 */
async function* split(response, parts) {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* parts(decoder.decode(value, { stream: true }));
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
