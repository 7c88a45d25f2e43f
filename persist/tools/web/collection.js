// One collection: over time and key, its contents as of a time, the history of a key, and the difference of two times.

import { $, addressOf, ask, doing, on, remember, show, STALE, wait } from "./asking.js";
import { drawPicture, drawPlan } from "./drawing.js";
import { drawDataflow } from "./graphs.js";
import { momentOf } from "./moments.js";
import { bytes, counted, duration, fill, texts, timeSlider, visible, WHO, whoCells } from "./showing.js";

const PAGE = 50;
const VERSIONS = 1000; // Of a schema, as many as are offered.

export async function openCollection(name, asked) {
  show("collection-view");
  document.title = `${visible(name)} – persist`;
  $("name").textContent = visible(name);
  const wanted = asked.get("at");
  const state = {
    offset: Number(asked.get("offset")) || 0, key: asked.get("key"), where: asked.get("where"), sort: asked.get("sort"),
    descending: asked.get("order") === "desc", history: asked.get("history"), first: asked.get("first"), second: asked.get("second"),
    schema: asked.get("schema"),
  };
  let told = null, at = wanted;
  $("follow").checked = wanted === null;
  $("key").value = state.key ?? state.history ?? "";
  $("where").value = state.where ?? "";
  $("query-link").href = `#sql?${new URLSearchParams({ q: `FROM ${quoted(name)}` })}`;

  const textOf = (time) => texts(told ? told.timeline : null)(time);
  // As people type it: a moment where times are moments, as long as its year has four digits.
  const typed = (time) => {
    const moment = told.timeline ? momentOf(time, told.timeline) : "";
    return /^\d{4}-/.test(moment) ? moment : String(time);
  };
  // Updates, with their times as people type them.
  const dated = (found) => {
    const column = found.columns.lastIndexOf("_time");
    return { ...found, rows: found.rows.map((row) => row.map((text, i) => (i === column ? typed(text) : text))) };
  };
  const span = () => [BigInt(told.picture.begins ?? 0), told.picture.ends === null ? null : BigInt(told.picture.ends)];
  const note = () =>
    remember(`/${encodeURIComponent(name)}`, {
      at: $("follow").checked ? null : at, key: state.key, where: state.where, sort: state.sort, order: state.descending ? "desc" : null,
      offset: state.offset, schema: state.schema, history: state.history, first: state.first, second: state.second,
    });

  const refresh = async () => {
    told = await ask("collection", { name });
    $("location").textContent = visible(told.url);
    facts(told, textOf);
    if ($("follow").checked || at === null) at = told.picture.ends;
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
        for (const part of document.querySelectorAll("main section ~ section, main details, #query-link")) part.remove();
        view.refresh = () => openCollection(name, asked);
      } else if (wanted !== null && at === wanted) {
        at = told.picture.ends;
        await showContents();
      }
      throw error;
    }
    if (state.history !== null) await showHistory();
    if (state.first !== null && state.second !== null) {
      $("first").value = state.first;
      $("second").value = state.second;
      await compare();
    }
  };
  const draw = () => {
    if (told === null) return; // The window was resized before there was anything to draw.
    const marks = [{ kind: "since", text: "since", time: told.since }];
    if (!told.for_ever) marks.push({ kind: "upper", text: "upper", time: told.upper });
    marks.push(...told.picture.holds.map((hold) => ({ kind: "hold", text: hold.name === null ? "a reader" : `hold ${visible(hold.name)}`, time: hold.time })));
    marks.push(...told.picture.tags.map((tag) => ({ kind: "tag", text: `tag ${visible(tag.name)}`, time: tag.time })));
    marks.push({ kind: "now", text: "shown", time: /^\d+$/.test(at) ? at : null });
    drawPicture($("picture"), told.picture, marks, textOf, (time) => doing(() => move(BigInt(Math.max(0, Math.round(time))))));
    showSlider(at);
  };
  // An older version of the schema stays what was chosen when the collection gets a newer one.
  const showVersions = () => {
    const options = [new Option("newest", "")];
    for (let n = told.version - 1; n >= Math.max(1, told.version - VERSIONS); n--) options.push(new Option(`version ${n}`, String(n)));
    $("versions").hidden = told.version === 1;
    $("schema").replaceChildren(...options);
    $("schema").value = state.schema ?? "";
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
    const { offset, key, where, sort, schema } = state, order = state.descending ? "desc" : null;
    const found = await ask("contents", { name, as_of: at, offset, limit: PAGE, key, where, sort, order, schema });
    at = found.as_of;
    note();
    $("at").textContent = found.moment || found.as_of;
    $("time").value = found.moment || found.as_of;
    const choose = (by, descending) => doing(() => (Object.assign(state, { sort: by, descending, offset: 0 }), showContents()));
    const empty = key ? "Nothing has this key then." : where ? "Nothing meets this condition then." : "It is empty then.";
    fill("contents", found, { empty, sort: { by: sort, descending: state.descending, choose } });
    $("rows-range").textContent = found.rows.length ? `rows ${counted(offset + 1)} to ${counted(offset + found.rows.length)}` : "";
    $("rows-before").disabled = !offset || Boolean(key);
    $("rows-after").disabled = found.rows.length < PAGE || Boolean(key);
    for (const format of ["csv", "parquet"]) $(`download-${format}`).href = addressOf("download", { name, as_of: at, where, format });
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
    const found = dated(await ask("changes", { name, from: $("from").value, until: $("until").value, schema: state.schema }));
    fill("changes", found, { classOf: signOfColumn(found), empty: found.compacted ? "No change after since is in this range." : "Nothing changed." });
    const notes = [];
    if (found.compacted) notes.push(`What changed at since, ${textOf(told.since)}, and before cannot be told apart any more.`);
    if (found.more) notes.push("Only the first of them are shown.");
    $("changes-note").textContent = notes.join(" ");
  };
  const showHistory = async () => {
    const found = await ask("history", { name, key: state.history });
    note();
    $("history-section").hidden = false;
    $("history-key").textContent = visible(state.history);
    const had = found.before ? found.before.rows.length : 0;
    $("history-note").textContent = found.since === null ? "Nothing can be read yet." : `As of since, ${typed(found.since)}, it had ${had === 1 ? "1 record" : `${had} records`}; then came ${found.updates.rows.length} updates${found.more ? ", and more than are shown" : ""}.`;
    const rows = dated(found.updates).rows.map((row, i) => [...row, ...whoCells(found.who[i])]);
    fill("history", { columns: [...found.updates.columns, ...WHO], rows }, { classOf: signOfColumn(found.updates), empty: "Nothing has changed it since." });
    $("history-section").scrollIntoView({ block: "nearest" });
  };
  const compare = async () => {
    const first = $("first").value, second = $("second").value;
    const found = await ask("difference", { name, first, second });
    Object.assign(state, { first, second });
    note();
    $("compare-note").textContent = found.total ? `${counted(found.total)} records differ${found.more ? "; the first of them are shown" : ""}.${columnsOf(found)}` : "They are the same.";
    $("sides").hidden = !found.total;
    $("gone-title").textContent = `Only as of ${first}`;
    $("come-title").textContent = `Only as of ${second}`;
    const keys = found.keys.length, values = found.values.length, named = [...found.keys, ...found.values];
    const side = (from, without, more) =>
      found.rows.flatMap((row, i) => (row[keys + values] === without ? [] : [[...row.slice(0, keys), ...row.slice(from, from + values), ...more(i)]]));
    const differ = (i) => [found.differ[i].length ? found.differ[i].map(visible).join(", ") : "–"];
    fill("gone", { columns: named, rows: side(keys + values + 1, "insert", () => []) }, { classOf: () => "go" });
    fill("come", { columns: named, rows: side(keys, "delete", () => []) }, { classOf: () => "come" });
    const who = found.rows.map((row, i) => [...row.slice(0, keys), row[keys + values], ...differ(i), found.times[i] === null ? "–" : typed(found.times[i]), ...whoCells(found.who[i])]);
    fill("who", { columns: [...found.keys, "change", "columns that differ", "last changed", ...WHO], rows: who });
  };
  const move = async (time) => {
    const [low, high] = span();
    if (high === null) return;
    at = String(time < low ? low : time > high ? high : time);
    $("follow").checked = false;
    state.offset = 0;
    await showContents();
  };
  // To the next time at which something may have happened, as far as the runs tell; else by one.
  const step = async (forward) => {
    if (at === null) return;
    const now = BigInt(at), times = told.picture.history.flatMap((p) => [BigInt(p.first), BigInt(p.last)]);
    const others = times.filter((t) => (forward ? t > now : t < now)).sort((a, b) => (a < b ? -1 : 1));
    const next = forward ? others[0] : others[others.length - 1];
    return move(next === undefined ? now + (forward ? 1n : -1n) : next);
  };
  const showSlider = timeSlider($("slider"), $("slider-at"), { span, textOf, choose: (time) => doing(() => move(time)), step: (forward) => doing(() => step(forward)) });

  on("earlier", "click", () => step(false));
  on("later", "click", () => step(true));
  on("time-form", "submit", async () => {
    const before = at;
    at = $("time").value.trim();
    $("follow").checked = false;
    state.offset = 0;
    try {
      await showContents();
    } catch (error) {
      if (error !== STALE) at = before;
      throw error;
    }
  });
  on("key-form", "submit", () => (Object.assign(state, { key: $("key").value || null, offset: 0 }), showContents()));
  on("where-form", "submit", async () => {
    const before = state.where;
    Object.assign(state, { where: $("where").value.trim() || null, offset: 0 });
    try {
      await showContents();
    } catch (error) {
      if (error !== STALE) state.where = before;
      throw error;
    }
  });
  on("key-clear", "click", () => {
    Object.assign(state, { key: null, history: null, where: null, offset: 0 });
    $("key").value = $("where").value = "";
    $("history-section").hidden = true;
    return showContents();
  });
  on("key-history", "click", () => ((state.history = $("key").value), showHistory()));
  on("show-dataflow", "click", async () => {
    $("dataflow").hidden = false;
    wait($("dataflow"));
    $("dataflow-note").textContent = "";
    const found = await ask("dataflow", { name });
    drawDataflow($("dataflow"), found.operators, visible);
    $("dataflow-note").textContent = `Computed here from the ${counted(found.rows)} rows that it reads; nothing was written. What an operator keeps is what a process that refreshes the view has in memory.`;
  });
  on("rows-before", "click", () => ((state.offset = Math.max(0, state.offset - PAGE)), showContents()));
  on("rows-after", "click", () => ((state.offset += PAGE), showContents()));
  on("show-changes", "click", showChanges);
  $("follow").addEventListener("change", () => doing(refresh));
  on("schema", "change", () => (Object.assign(state, { schema: $("schema").value || null, offset: 0 }), showContents()));
  on("compare-form", "submit", compare);
  const view = { refresh: async () => ($("follow").checked ? refresh() : ((told = await ask("collection", { name })), facts(told, textOf), showVersions(), draw())), redraw: draw, begin };
  return view;
}

const quoted = (name) => (/^[A-Za-z_]\w*$/.test(name) ? name : `"${name.replaceAll('"', '""')}"`);

// By the sign of the column `_diff`, whatever stands behind it.
function signOfColumn(told) {
  const at = told.columns.lastIndexOf("_diff");
  return (row) => (BigInt(row[at]) > 0n ? "come" : "go");
}

// Says how many records differ in which columns.
function columnsOf(found) {
  const counts = new Map();
  for (const names of found.differ) for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
  return counts.size ? ` Values differ in ${[...counts].map(([name, n]) => `${visible(name)} (${counted(n)})`).join(", ")}.` : "";
}

function facts(told, textOf) {
  const pairs = [
    ["kind", told.kind === "filled" ? `filled from ${told.source}` : told.kind],
    ["rows", told.rows === null ? "?" : counted(told.rows)],
    ["size", bytes(told.bytes)],
    ["parts", counted(told.parts)],
    ["runs", counted(told.runs)],
    ["keyframes", counted(told.keyframes)],
    ["since", told.since === null ? "–" : textOf(told.since)],
    ["upper", told.for_ever ? "complete for ever" : textOf(told.upper)],
    ["lag", told.for_ever ? "–" : duration(told.lag_s)],
    ["holds", String(told.holds)],
  ];
  $("facts").replaceChildren(
    ...pairs.map(([name, value]) => {
      const box = document.createElement("div"), dt = document.createElement("dt"), dd = document.createElement("dd");
      dt.textContent = name;
      dd.textContent = visible(value);
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
