// The page. It asks its server, and nobody else; what it is told it shows as text.

import { drawCommits, drawPicture, drawPlan } from "./drawing.js";
import { drawDataflow, drawLineage } from "./graphs.js";
import { momentOf } from "./moments.js";

const PAGE = 50;
const VERSIONS = 1000; // Of a schema, as many as are offered.
const main = document.getElementById("main");
const $ = (id) => document.getElementById(id);
let view = null; // What is shown: { refresh } of the list or of a collection.
let asking = 0;
let opened = 0; // Counts the views that were opened: an answer for one before is of no use.
const newest = new Map(); // Of each question, the number of the last time that it was asked.
const STALE = new Error("another answer is wanted by now");

// Asking.

async function ask(question, parameters = {}) {
  const url = new URL(`api/${question}`, document.baseURI);
  for (const [name, value] of Object.entries(parameters)) if (value !== null && value !== undefined) url.searchParams.set(name, value);
  const mine = opened, number = (newest.get(question) || 0) + 1;
  newest.set(question, number);
  busy(1);
  try {
    const answer = await fetch(url).catch(() => {
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
async function doing(what) {
  try {
    complain(null);
    await what();
  } catch (error) {
    if (error === STALE) return;
    complain(error);
    giveUp();
  }
}

// Showing.

function cell(text, kind = "") {
  const made = document.createElement("td");
  if (text === null || text === undefined) {
    made.textContent = "NULL";
    made.className = `${kind} null`.trim();
  } else {
    made.textContent = visible(text);
    made.title = made.textContent;
    if (kind) made.className = kind;
  }
  return made;
}

// Characters that do not print, or turn the direction of writing, are shown as escapes.
function visible(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function fill(id, told, { classOf = null, empty = "Nothing." } = {}) {
  const table = $(id), head = document.createElement("tr");
  const isNumber = told.columns.map((_, i) => told.rows.length > 0 && told.rows.every((row) => row[i] === null || /^[+-]?[\d.]+(e[+-]?\d+)?$/i.test(row[i])));
  told.columns.forEach((name, i) => {
    const th = document.createElement("th");
    th.textContent = visible(name);
    if (isNumber[i]) th.className = "n";
    head.append(th);
  });
  table.tHead.replaceChildren(head);
  const rows = told.rows.map((row) => {
    const tr = document.createElement("tr");
    tr.append(...row.map((text, i) => cell(text, isNumber[i] ? "n" : "")));
    if (classOf) tr.className = classOf(row);
    return tr;
  });
  if (!rows.length) {
    const tr = document.createElement("tr"), td = cell(empty, "null");
    td.colSpan = Math.max(1, told.columns.length);
    tr.append(td);
    rows.push(tr);
  }
  table.tBodies[0].replaceChildren(...rows);
}

function bytes(count) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  return `${count} B`;
}

function duration(seconds) {
  if (seconds === null) return "–";
  const ahead = seconds < 0, s = Math.abs(seconds);
  const [n, unit] = s >= 172800 ? [s / 86400, "days"] : s >= 7200 ? [s / 3600, "h"] : s >= 120 ? [s / 60, "min"] : [s, "s"];
  return `${ahead ? "−" : ""}${Math.round(n)} ${unit}`;
}

function show(template) {
  opened += 1;
  main.replaceChildren($(template).content.cloneNode(true));
  // Until an answer is there, or instead of one that does not come.
  for (const chart of main.querySelectorAll(".chart:not([hidden])")) wait(chart);
  for (const id of ["collections", "contents", "changes"]) if ($(id)) fillRow($(id), "Loading…");
}

function wait(chart) {
  const note = document.createElement("p");
  note.className = "waits";
  note.textContent = "Loading…";
  chart.replaceChildren(note);
}

// What still says that it is loading when nothing is loading any more says that nothing came.
function giveUp() {
  for (const each of main.querySelectorAll(".waits")) each.textContent = "It could not be loaded.";
}

function fillRow(table, text) {
  const row = document.createElement("tr"), td = cell(text, "null waits");
  td.colSpan = Math.max(1, table.tHead.rows.length ? table.tHead.rows[0].cells.length : 1);
  row.append(td);
  table.tBodies[0].replaceChildren(row);
}

const sum = (row) => BigInt(row[row.length - 1]);
const signOf = (row) => (sum(row) > 0n ? "come" : "go");

// The list of collections.

async function openList() {
  show("list-view");
  document.title = "persist";
  let offset = 0, waiting = null;
  const refresh = async () => {
    const told = await ask("collections", { search: $("search").value, offset, limit: PAGE });
    $("location").textContent = visible(told.url);
    const rows = told.items.map((item) => {
      const tr = document.createElement("tr"), name = document.createElement("td"), link = document.createElement("a");
      link.href = `#/${encodeURIComponent(item.name)}`;
      link.textContent = visible(item.name);
      name.append(link);
      const time = (number, moment, none) => {
        const td = cell(number ?? none, "n");
        if (moment) {
          const small = document.createElement("span");
          small.className = "moment";
          small.textContent = moment;
          td.append(small);
        }
        return td;
      };
      tr.append(name, cell(item.rows === null ? "?" : item.rows.toLocaleString("en"), "n"), cell(bytes(item.bytes), "n"), time(item.since, item.since_moment, "–"), time(item.upper, item.upper_moment, "complete"), cell(duration(item.lag_s), "n"), cell(item.waiting ? item.waiting.toLocaleString("en") : "–", "n"));
      return tr;
    });
    $("collections").tBodies[0].replaceChildren(...rows);
    $("range").textContent = told.total ? `${offset + 1} to ${offset + told.items.length} of ${told.total.toLocaleString("en")}` : "No collection has such a name.";
    $("before").disabled = !offset;
    $("after").disabled = offset + PAGE >= told.total;
    const lineage = await ask("lineage");
    $("lineage-section").hidden = !lineage.edges.length && !lineage.left_out;
    $("lineage").hidden = !lineage.edges.length;
    if (lineage.edges.length) drawLineage($("lineage"), lineage, visible);
    const more = [];
    if (lineage.not_drawn) more.push(`${lineage.not_drawn.toLocaleString("en")} more views are not drawn.`);
    if (lineage.left_out) more.push(`${lineage.left_out.toLocaleString("en")} more collections were not looked at.`);
    $("lineage-note").textContent = more.join(" ");
    const commits = await ask("commits");
    drawCommits($("commits"), commits.counts, commits.at_least);
  };
  const turn = (by) => doing(() => ((offset = Math.max(0, offset + by)), refresh()));
  $("before").addEventListener("click", () => turn(-PAGE));
  $("after").addEventListener("click", () => turn(PAGE));
  $("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => doing(() => ((offset = 0), refresh())), 150);
  });
  view = { refresh };
  await refresh();
}

// One collection.

async function openCollection(name, wanted) {
  show("collection-view");
  document.title = `${visible(name)} – persist`;
  $("name").textContent = visible(name);
  let told = null, at = wanted, offset = 0, key = null;
  $("follow").checked = wanted === null;

  const textOf = (time) => (told && told.timeline ? `${time} (${momentOf(time, told.timeline)})` : String(time));
  // As people type it: a moment where times are moments, as long as its year has four digits.
  const typed = (time) => {
    const moment = told.timeline ? momentOf(time, told.timeline) : "";
    return /^\d{4}-/.test(moment) ? moment : String(time);
  };
  const span = () => [BigInt(told.picture.begins ?? 0), told.latest === null ? null : BigInt(told.latest)];

  const refresh = async () => {
    told = await ask("collection", { name });
    $("location").textContent = visible(told.url);
    facts(told, textOf);
    if ($("follow").checked || at === null) at = told.latest;
    showVersions();
    draw();
    await showContents();
  };
  // A time that cannot be read is said so, above the latest contents; a collection that is not there, above nothing.
  const begin = async () => {
    try {
      await refresh();
    } catch (error) {
      if (error === STALE) throw error;
      if (told === null) {
        for (const part of main.querySelectorAll("section ~ section, details")) part.remove();
        view = { refresh: () => openCollection(name, wanted) };
      } else if (wanted !== null && at === wanted) {
        at = told.latest;
        await showContents();
      }
      throw error;
    }
  };
  const draw = () => {
    if (told === null) return; // The window was resized before there was anything to draw.
    const marks = [{ kind: "since", text: "since", time: told.since }, { kind: "upper", text: "upper", time: told.upper }];
    marks.push(...told.picture.holds.map((hold) => ({ kind: "hold", text: hold.name === null ? "a reader" : `hold ${visible(hold.name)}`, time: hold.time })));
    marks.push(...told.picture.tags.map((tag) => ({ kind: "tag", text: `tag ${visible(tag.name)}`, time: tag.time })));
    marks.push({ kind: "now", text: "shown", time: /^\d+$/.test(at) ? at : null });
    drawPicture($("picture"), told.picture, marks, textOf, (time) => doing(() => move(BigInt(Math.max(0, Math.round(time))))));
    const [low, high] = span();
    $("slider").disabled = high === null || high <= low;
    if (high !== null && at !== null && /^\d+$/.test(at)) $("slider").value = high > low ? Number(((BigInt(at) - low) * 1000n) / (high - low)) : 1000;
  };
  // An older version of the schema stays what was chosen when the collection gets a newer one.
  const schema = () => $("schema").value || null;
  const showVersions = () => {
    const chosen = schema(), options = [new Option("newest", "")];
    for (let n = told.version - 1; n >= Math.max(1, told.version - VERSIONS); n--) options.push(new Option(`version ${n}`, String(n)));
    $("versions").hidden = told.version === 1;
    $("schema").replaceChildren(...options);
    $("schema").value = chosen ?? "";
  };
  const showContents = async () => {
    if (at === null) {
      const nothing = "Nothing is sealed yet, so nothing can be read.";
      fill("contents", { columns: [], rows: [] }, { empty: nothing });
      fill("changes", { columns: [], rows: [] }, { empty: nothing });
      $("at").textContent = "…";
      $("plan").replaceChildren();
      $("plan-note").textContent = nothing;
      return;
    }
    const found = await ask("contents", { name, as_of: at, offset, limit: PAGE, key, schema: schema() });
    at = found.as_of;
    $("at").textContent = found.moment ? `${found.as_of}, ${found.moment}` : found.as_of;
    $("time").value = found.moment || found.as_of;
    fill("contents", found, { empty: key === null ? "It is empty then." : "Nothing has this key then." });
    $("rows-range").textContent = found.rows.length ? `rows ${offset + 1} to ${offset + found.rows.length}` : "";
    $("rows-before").disabled = !offset || key !== null;
    $("rows-after").disabled = found.rows.length < PAGE || key !== null;
    draw();
    $("from").value = typed(at);
    $("until").value = typed(BigInt(at) + 1n);
    if (!$("first").value) $("first").value = typed(told.picture.begins ?? 0);
    if (!$("second").value) $("second").value = typed(at);
    await showChanges();
    const plan = await ask("plan", { name, as_of: at });
    $("plan-note").textContent = drawPlan($("plan"), plan);
    $("plan-text").textContent = visible(plan.text).replaceAll("\\u000a", "\n");
  };
  const showChanges = async () => {
    const found = await ask("changes", { name, from: $("from").value, until: $("until").value, schema: schema() });
    fill("changes", found, { classOf: signOf, empty: found.compacted ? "No change after since is in this range." : "Nothing changed." });
    const notes = [];
    if (found.compacted) notes.push(`What changed at since, ${textOf(told.since)}, and before cannot be told apart any more.`);
    if (found.more) notes.push("Only the first of them are shown.");
    $("changes-note").textContent = notes.join(" ");
  };
  const move = async (time) => {
    const [low, high] = span();
    if (high === null) return;
    at = String(time < low ? low : time > high ? high : time);
    $("follow").checked = false;
    offset = 0;
    await showContents();
    history.replaceState(null, "", `#/${encodeURIComponent(name)}?at=${at}`);
  };
  // To the next time at which something may have happened, as far as the runs tell; else by one.
  const step = async (forward) => {
    if (at === null) return;
    const now = BigInt(at), times = told.picture.history.flatMap((p) => [BigInt(p.first), BigInt(p.last)]);
    const others = times.filter((t) => (forward ? t > now : t < now)).sort((a, b) => (a < b ? -1 : 1));
    const next = forward ? others[0] : others[others.length - 1];
    return move(next === undefined ? now + (forward ? 1n : -1n) : next);
  };

  const on = (id, event, what) => $(id).addEventListener(event, (e) => (e.preventDefault(), doing(what)));
  on("earlier", "click", () => step(false));
  on("later", "click", () => step(true));
  $("slider").addEventListener("keydown", (event) => {
    const forward = { ArrowRight: true, ArrowUp: true, ArrowLeft: false, ArrowDown: false }[event.key];
    if (forward === undefined) return;
    event.preventDefault();
    doing(() => step(forward));
  });
  on("slider", "change", () => {
    const [low, high] = span();
    return move(low + ((high - low) * BigInt($("slider").value)) / 1000n);
  });
  on("time-form", "submit", async () => {
    const before = at;
    at = $("time").value.trim();
    $("follow").checked = false;
    offset = 0;
    try {
      await showContents();
    } catch (error) {
      if (error !== STALE) at = before;
      throw error;
    }
  });
  on("key-form", "submit", () => ((key = $("key").value || null), (offset = 0), showContents()));
  on("key-clear", "click", () => ((key = null), ($("key").value = ""), ($("history-section").hidden = true), showContents()));
  on("key-history", "click", async () => {
    const found = await ask("history", { name, key: $("key").value });
    $("history-section").hidden = false;
    $("history-key").textContent = visible($("key").value);
    const had = found.before ? found.before.rows.length : 0;
    $("history-note").textContent = found.since === null ? "Nothing can be read yet." : `As of since=${found.since} it had ${had === 1 ? "1 record" : `${had} records`}; then came ${found.updates.rows.length} updates${found.more ? ", and more than are shown" : ""}.`;
    fill("history", found.updates, { classOf: signOf, empty: "Nothing has changed it since." });
    $("history-section").scrollIntoView({ block: "nearest" });
  });
  on("show-dataflow", "click", async () => {
    $("dataflow").hidden = false;
    wait($("dataflow"));
    $("dataflow-note").textContent = "";
    const found = await ask("dataflow", { name });
    drawDataflow($("dataflow"), found.operators, visible);
    $("dataflow-note").textContent = `Computed here from the ${found.rows.toLocaleString("en")} rows that it reads; nothing was written. What an operator keeps is what a process that refreshes the view has in memory.`;
  });
  on("rows-before", "click", () => ((offset = Math.max(0, offset - PAGE)), showContents()));
  on("rows-after", "click", () => ((offset += PAGE), showContents()));
  on("show-changes", "click", showChanges);
  $("follow").addEventListener("change", () => doing(refresh));
  on("schema", "change", () => ((offset = 0), showContents()));
  on("compare-form", "submit", async () => {
    const first = $("first").value, second = $("second").value;
    const found = await ask("difference", { name, first, second });
    $("compare-note").textContent = found.total ? `${found.total.toLocaleString("en")} records differ${found.more ? "; the first of them are shown" : ""}.` : "They are the same.";
    $("sides").hidden = !found.total;
    $("gone-title").textContent = `Only as of ${first}`;
    $("come-title").textContent = `Only as of ${second}`;
    const keys = found.keys.length, values = found.values.length;
    const side = (from, without) => ({ columns: [...found.keys, ...found.values], rows: found.rows.filter((row) => row[keys + values] !== without).map((row) => [...row.slice(0, keys), ...row.slice(from, from + values)]) });
    fill("gone", side(keys + values + 1, "insert"), { classOf: () => "go" });
    fill("come", side(keys, "delete"), { classOf: () => "come" });
  });
  view = { refresh: async () => ($("follow").checked ? refresh() : ((told = await ask("collection", { name })), facts(told, textOf), showVersions(), draw())), redraw: draw };
  await begin();
}

function facts(told, textOf) {
  const pairs = [
    ["rows", told.rows === null ? "?" : told.rows.toLocaleString("en")],
    ["size", bytes(told.bytes)],
    ["parts", told.parts.toLocaleString("en")],
    ["runs", told.runs.toLocaleString("en")],
    ["keyframes", told.keyframes.toLocaleString("en")],
    ["since", told.since === null ? "–" : textOf(told.since)],
    ["upper", told.upper === null ? "complete for ever" : textOf(told.upper)],
    ["lag", duration(told.lag_s)],
    ["holds", String(told.holds)],
  ];
  $("facts").replaceChildren(
    ...pairs.map(([name, value]) => {
      const box = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = value;
      box.append(dt, dd);
      return box;
    }),
  );
  $("unsealed").textContent = told.unsealed ? `Not sealed yet: ${told.unsealed}` : "";
  $("unsealed").hidden = !told.unsealed;
  $("sql").textContent = told.sql ?? "";
  $("sql").hidden = !told.sql;
  $("dataflow-section").hidden = !told.sql;
  fill("columns", { columns: ["side", "name", "type"], rows: told.columns.map((c) => [c.side, c.name, c.type]) });
}

// Where to go, and what is new.

function route() {
  const [name, query] = location.hash.replace(/^#\/?/, "").split("?");
  const at = new URLSearchParams(query || "").get("at");
  doing(async () => {
    try {
      await (name ? openCollection(decodeURIComponent(name), at) : openList());
    } finally {
      document.body.dataset.view = name ? "collection" : "list";
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
  const typing = /^(INPUT|TEXTAREA)$/.test(event.target.tagName);
  if (event.key === "/" && !typing && ($("search") || $("key"))) {
    event.preventDefault();
    ($("search") || $("key")).focus();
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
