// @ts-check
/** The frame of the page: the key, the sections, and what the address chooses. */

import { RequestError, getJson, hasKey, setKey } from "./api.js";
import { chatView } from "./chat.js";
import { element, field } from "./dom.js";
import { liveView } from "./live.js";
import { referenceView } from "./reference.js";

/** @typedef {{node: HTMLElement, shown?: (visible: boolean) => void}} Section */

const UNAUTHORIZED = [401, 403];
const main = /** @type {HTMLElement} */ (document.getElementById("main"));
const tabs = /** @type {HTMLElement} */ (document.getElementById("tabs"));
const forget = /** @type {HTMLElement} */ (document.getElementById("forget"));

start();

/** Shows the sections, or what is needed before. */
async function start() {
  let models;
  try {
    models = (await getJson("v1/models")).data.map((/** @type {any} */ model) => String(model.id));
  } catch (error) {
    const refused = error instanceof RequestError && UNAUTHORIZED.includes(error.status);
    return refused ? askForKey(error.message) : unreachable(error);
  }
  forget.hidden = !hasKey();
  forget.onclick = () => {
    setKey("");
    location.reload();
  };
  await showSections(models);
}

/** @param {string[]} models */
async function showSections(models) {
  /** @type {Record<string, {label: string, section: Section}>} */
  const sections = {
    chat: { label: "Chat", section: { node: await chatView(models) } },
    live: { label: "Live", section: liveView() },
  };
  const reference = await referenceView(models);
  if (reference) sections.api = { label: "API", section: { node: reference } };
  const links = Object.entries(sections).map(([id, { label }]) =>
    element("a", { href: `#${id}` }, label),
  );
  tabs.replaceChildren(...links);
  main.replaceChildren(...Object.values(sections).map(({ section }) => section.node));
  const choose = () => {
    const wanted = location.hash.slice(1);
    const chosen = Object.hasOwn(sections, wanted) ? wanted : "chat";
    for (const [at, [id, { section }]] of Object.entries(sections).entries()) {
      section.node.hidden = id !== chosen;
      section.shown?.(id === chosen);
      if (id === chosen) links[at].setAttribute("aria-current", "page");
      else links[at].removeAttribute("aria-current");
    }
    document.title = `${sections[chosen].label} · Penstock`;
  };
  window.addEventListener("hashchange", choose);
  choose();
}

/** @param {string} message */
function askForKey(message) {
  const given = element("input", {
    type: "password",
    autocomplete: "off",
    required: true,
    spellcheck: "false",
  });
  const form = element(
    "form",
    {
      class: "key card",
      onsubmit: (/** @type {Event} */ event) => {
        event.preventDefault();
        setKey(given.value);
        start();
      },
    },
    element("h1", {}, "API key"),
    hasKey() && element("p", { class: "error", role: "alert" }, message),
    field("Key", given, "Kept in memory until you leave this page."),
    element("button", { type: "submit", class: "primary" }, "Open"),
  );
  main.replaceChildren(form);
  given.focus();
}

/** @param {unknown} error */
function unreachable(error) {
  const message = error instanceof Error ? error.message : String(error);
  const again = element(
    "button",
    { type: "button", class: "primary", onclick: start },
    "Try again",
  );
  main.replaceChildren(
    element(
      "div",
      { class: "card" },
      element("h1", {}, "Not ready"),
      element("p", { role: "alert" }, message),
      again,
    ),
  );
}
