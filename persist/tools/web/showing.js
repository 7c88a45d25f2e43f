// Rows, sizes and times as text: nothing that is stored is ever parsed as markup.

import { momentOf } from "./moments.js";
import { $ } from "./asking.js";

// Characters that do not print, or turn the direction of writing, are shown as escapes.
export function visible(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

export function cell(text, kind = "") {
  const made = document.createElement("td");
  if (text === null || text === undefined) {
    made.textContent = "NULL";
    made.className = `${kind} null`.trim();
  } else if (text instanceof Node) {
    made.append(text);
    if (kind) made.className = kind;
  } else {
    made.textContent = visible(text);
    made.title = made.textContent;
    if (kind) made.className = kind;
  }
  return made;
}

export const isNumeric = (text) => text === null || /^[+-]?(\d[\d.]*|\.\d+)(e[+-]?\d+)?$/i.test(text);

// Fills a table. `sort` is { by, descending, choose }: then the names of columns are buttons that choose the order.
export function fill(id, told, { classOf = null, empty = "Nothing.", sort = null } = {}) {
  const table = $(id), head = document.createElement("tr");
  const isNumber = told.columns.map((_, i) => told.rows.length > 0 && told.rows.every((row) => !(row[i] instanceof Node) && isNumeric(row[i])));
  told.columns.forEach((name, i) => {
    const th = document.createElement("th");
    th.scope = "col";
    if (isNumber[i]) th.className = "n";
    if (sort) th.append(sortButton(th, name, sort));
    else th.textContent = visible(name);
    head.append(th);
  });
  table.tHead.replaceChildren(...(told.columns.length ? [head] : []));
  const rows = told.rows.map((row) => {
    const tr = document.createElement("tr");
    tr.append(...row.map((text, i) => cell(text, isNumber[i] ? "n" : text instanceof HTMLAnchorElement ? "name" : "")));
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

// Upwards first, then downwards, then not at all.
function sortButton(th, name, sort) {
  const button = document.createElement("button"), isBy = sort.by === name;
  button.type = "button";
  button.className = "sort";
  button.textContent = visible(name);
  if (isBy) {
    th.setAttribute("aria-sort", sort.descending ? "descending" : "ascending");
    const mark = document.createElement("span");
    mark.setAttribute("aria-hidden", "true");
    mark.textContent = sort.descending ? " ▼" : " ▲";
    button.append(mark);
  }
  button.addEventListener("click", () => (isBy && sort.descending ? sort.choose(null, false) : sort.choose(name, isBy)));
  return button;
}

export function bytes(count) {
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) if (count >= size) return `${(count / size).toFixed(1)} ${unit}`;
  return `${count} B`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const ahead = seconds < 0, s = Math.abs(seconds);
  const [n, unit] = s >= 172800 ? [s / 86400, "days"] : s >= 7200 ? [s / 3600, "h"] : s >= 120 ? [s / 60, "min"] : [s, "s"];
  return `${ahead ? "−" : ""}${Math.round(n)} ${unit}`;
}

export const counted = (n) => n.toLocaleString("en");

// A time: its moment, if it has one, broken before the time of day, and before parts of seconds, where room is short; its number is its title then.
export function timeText(number, moment) {
  const box = document.createElement("span");
  if (moment) {
    moment.split(/(?=[T.])/).forEach((part, i) => box.append(...(i ? [document.createElement("wbr")] : []), part));
    box.title = number;
    box.className = "moment";
  } else box.textContent = number;
  return box;
}

export function linkTo(name) {
  const link = document.createElement("a");
  link.href = `#/${encodeURIComponent(name)}`;
  link.textContent = visible(name);
  return link;
}

// Who wrote something, as cells of a table.
export const WHO = ["by", "record", "at", "message"];
export const whoCells = (who) => WHO.map((field) => (who && who[field] ? String(who[field]) : "–"));

// Times as people read them: as moments, where times are moments.
export function texts(timeline) {
  const isFar = (time) => (timeline ? /^(\d{5,}|[3-9]\d{3}|2[1-9]\d\d)-|^[+?]/.test(momentOf(time, timeline)) : BigInt(time) >= 2n ** 62n) || BigInt(time) >= 2n ** 63n - 3n;
  return (time) => (isFar(time) ? "for ever" : timeline && BigInt(time) ? momentOf(time, timeline) : String(time));
}

// A slider over whole numbers of 64 bits, in a thousand steps; it says its time while it moves, and to screen readers.
export function timeSlider(slider, output, { span, textOf, choose, step }) {
  const at = () => {
    const [low, high] = span();
    return low + ((high - low) * BigInt(slider.value)) / 1000n;
  };
  const say = (text) => {
    output.textContent = text;
    slider.setAttribute("aria-valuetext", text);
  };
  slider.addEventListener("input", () => say(textOf(at())));
  slider.addEventListener("change", () => choose(at()));
  slider.addEventListener("keydown", (event) => {
    const forward = { ArrowRight: true, ArrowUp: true, ArrowLeft: false, ArrowDown: false }[event.key];
    if (forward === undefined) return;
    event.preventDefault();
    step(forward);
  });
  return (time) => {
    const [low, high] = span();
    slider.disabled = high === null || high <= low;
    if (high !== null && time !== null && /^\d+$/.test(time)) {
      slider.value = high > low ? Number(((BigInt(time) - low) * 1000n) / (high - low)) : 1000;
      say(textOf(time));
    }
  };
}
