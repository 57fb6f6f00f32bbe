// @ts-check
/** Conversations, kept in this browser (IndexedDB), or for this visit alone where it keeps none. */

/** @typedef {import("./conversation.js").Conversation} Conversation */

const NAME = "penstock";
const TABLE = "conversations";
const SETTINGS = "penstock-settings";

/** @type {Map<string, Conversation>} */
const visit = new Map();
/** @type {Promise<IDBDatabase | null>} */
const database = new Promise((resolve) => {
  try {
    const opening = indexedDB.open(NAME, 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore(TABLE, { keyPath: "id" });
    opening.onsuccess = () => resolve(opening.result);
    opening.onerror = () => resolve(null);
  } catch {
    resolve(null);
  }
});

/**
 * @template T
 * @param {IDBTransactionMode} mode
 * @param {(table: IDBObjectStore) => IDBRequest<T>} act
 * @returns {Promise<T | null>} null if the browser keeps nothing
 */
async function inTable(mode, act) {
  const opened = await database;
  if (!opened) return null;
  return new Promise((resolve) => {
    const asked = act(opened.transaction(TABLE, mode).objectStore(TABLE));
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => resolve(null);
  });
}

/** @returns {Promise<Conversation[]>} the one that changed last first */
export async function allConversations() {
  const found = (await inTable("readonly", (table) => table.getAll())) ?? [...visit.values()];
  return found.sort((one, other) => other.changed - one.changed);
}

/** @param {Conversation} conversation */
export async function saveConversation(conversation) {
  visit.set(conversation.id, conversation);
  await inTable("readwrite", (table) => table.put(conversation));
}

/** @param {string} id */
export async function removeConversation(id) {
  visit.delete(id);
  await inTable("readwrite", (table) => table.delete(id));
}

/** @returns {Record<string, unknown>} the settings used last, for new conversations */
export function lastSettings() {
  try {
    return JSON.parse(localStorage.getItem(SETTINGS) ?? "{}");
  } catch {
    return {};
  }
}

/** @param {Record<string, unknown>} settings */
export function saveSettings(settings) {
  try {
    localStorage.setItem(SETTINGS, JSON.stringify(settings));
  } catch {
    // A browser that keeps nothing starts with the defaults each time.
  }
}
