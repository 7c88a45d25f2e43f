// Asking the page's server, and nobody else; and what the page shows until an answer is there, or if none comes.

export const STALE = new Error("another answer is wanted by now");
export const $ = (id) => document.getElementById(id);
const main = $("main");
let asking = 0;
let opened = 0; // Counts the views that were opened: an answer for one before is of no use.
const newest = new Map(); // Of each question, the number of the last time that it was asked.

export function addressOf(question, parameters = {}) {
  const url = new URL(`api/${question}`, document.baseURI);
  for (const [name, value] of Object.entries(parameters)) if (value !== null && value !== undefined && value !== "") url.searchParams.set(name, value);
  return url;
}

export async function ask(question, parameters = {}) {
  const mine = opened, number = (newest.get(question) || 0) + 1;
  newest.set(question, number);
  busy(1);
  try {
    const answer = await fetch(addressOf(question, parameters)).catch(() => {
      throw new Error("The server of this page does not answer. Is persist ui still running?");
    });
    const told = await answer.json().catch(() => ({ error: `The server answered with status ${answer.status}.` }));
    if (mine !== opened || newest.get(question) !== number) throw STALE;
    if (!answer.ok) throw new Error(told.error || `The server answered with status ${answer.status}.`);
    return told;
  } finally {
    busy(-1);
  }
}

function busy(by) {
  asking += by;
  document.body.dataset.busy = asking ? "yes" : "no";
  main.setAttribute("aria-busy", asking ? "true" : "false");
}

function complain(error) {
  $("error").textContent = error ? error.message || String(error) : "";
  $("error").hidden = !error;
}

// Runs what a user asked for; what goes wrong is shown above everything.
export async function doing(what) {
  try {
    complain(null);
    await what();
  } catch (error) {
    if (error === STALE) return;
    complain(error);
    giveUp();
  }
}

// Lets an event of an element do something, instead of what the browser would do.
export function on(id, event, what) {
  $(id).addEventListener(event, (e) => (e.preventDefault(), doing(what)));
}

export function show(template) {
  opened += 1;
  main.replaceChildren($(template).content.cloneNode(true));
  for (const chart of main.querySelectorAll(".chart:not([hidden])")) wait(chart);
  for (const table of main.querySelectorAll("table[data-waits]")) waitIn(table);
}

export function wait(chart) {
  const note = document.createElement("p");
  note.className = "waits";
  note.textContent = "Loading…";
  chart.replaceChildren(note);
}

function waitIn(table) {
  const td = document.createElement("td");
  td.className = "null waits";
  td.textContent = "Loading…";
  td.colSpan = Math.max(1, table.tHead.rows.length ? table.tHead.rows[0].cells.length : 1);
  table.tBodies[0].insertRow().append(td);
}

// What still says that it is loading when nothing is loading any more says that nothing came.
function giveUp() {
  for (const each of main.querySelectorAll(".waits")) each.textContent = "It could not be loaded.";
}

// The address of what is shown, so that it can be sent to somebody: what is empty is left out.
export function remember(place, state) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(state)) if (value !== null && value !== undefined && value !== "" && value !== 0 && value !== false) query.set(name, value);
  const text = query.toString();
  history.replaceState(null, "", `#${place}${text ? `?${text}` : ""}`);
}
