// The page: which view an address means, and when it is shown anew. What its server answers is shown as text alone.

import { $, doing } from "./asking.js";
import { openCollection } from "./collection.js";
import { openHealth } from "./health.js";
import { openList } from "./list.js";
import { openQuery } from "./query.js";
import { visible } from "./showing.js";

let view = null; // What is shown: { refresh, redraw }, and begin if its first time is another one.

// An address is #/ for the list, #/NAME for a collection, #sql or #health; each may have its state behind a "?".
function route() {
  const hash = location.hash.slice(1) || "/", end = hash.indexOf("?");
  const place = end < 0 ? hash : hash.slice(0, end), asked = new URLSearchParams(end < 0 ? "" : hash.slice(end + 1));
  const kind = place === "sql" ? "sql" : place === "health" ? "health" : place === "/" ? "list" : "collection";
  for (const link of document.querySelectorAll("nav.views a")) {
    if (link.dataset.of === kind) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  doing(async () => {
    try {
      view = null;
      const made = await (kind === "sql" ? openQuery(asked) : kind === "health" ? openHealth() : kind === "list" ? openList(asked) : openCollection(decodeURIComponent(place.replace(/^\//, "")), asked));
      view = made;
      await (made.begin ?? made.refresh)();
    } finally {
      document.body.dataset.view = kind;
    }
  });
}

function listen() {
  const events = new EventSource(new URL("api/events", document.baseURI));
  const live = $("live");
  let seen = null;
  events.onmessage = (event) => {
    const told = JSON.parse(event.data);
    live.classList.toggle("off", "error" in told);
    live.textContent = "error" in told ? visible(told.error) : `record ${told.seqno}`;
    if (told.seqno !== undefined && seen !== null && told.seqno !== seen && view) doing(() => view.refresh());
    seen = told.seqno ?? seen;
  };
  events.onerror = () => {
    live.classList.add("off");
    live.textContent = "the server is gone";
  };
}

window.addEventListener("hashchange", route);
document.addEventListener("keydown", (event) => {
  const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName), field = $("search") || $("key") || $("query");
  if (event.key === "/" && !typing && field) {
    event.preventDefault();
    field.focus();
  } else if (event.key === "Escape") {
    if (typing) event.target.blur();
    else location.hash = "#/";
  }
});
let resizing = null;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => view && view.redraw && view.redraw(), 100);
});
route();
listen();
