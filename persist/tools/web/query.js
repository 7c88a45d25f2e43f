// SQL over everything, as of the time of a slider: rows to sort, draw and download.

import { $, addressOf, ask, doing, on, remember, show, STALE } from "./asking.js";
import { drawLines } from "./drawing.js";
import { momentOf } from "./moments.js";
import { counted, fill, isNumeric, texts, timeSlider, visible } from "./showing.js";

const POINTS = 24; // Times at which a query is asked for a chart over time.
const TIMES = "as of";

export async function openQuery(asked) {
  show("sql-view");
  document.title = "SQL – persist";
  let found = null, span = null, at = asked.get("at");
  const state = { q: asked.get("q") ?? "", sort: asked.get("sort"), descending: asked.get("order") === "desc", x: asked.get("x"), y: asked.get("y") };
  $("query").value = state.q;
  const textOf = (time) => texts(span ? span.timeline : null)(time);
  const note = () => remember("sql", { q: state.q, at, sort: state.sort, order: state.descending ? "desc" : null, x: state.x, y: state.y });

  const run = async () => {
    const { sort } = state, order = state.descending ? "desc" : null;
    found = await ask("sql", { sql: state.q, as_of: at, sort, order });
    note();
    span = found.span;
    const choose = (by, descending) => doing(() => (Object.assign(state, { sort: by, descending }), run()));
    fill("answer", found, { empty: "No row.", sort: { by: sort, descending: state.descending, choose } });
    $("answer-note").textContent = `${found.more ? `The first ${counted(found.rows.length)} rows` : found.rows.length === 1 ? "1 row" : `${counted(found.rows.length)} rows`}, in ${found.seconds} s. ${read()}`;
    for (const format of ["csv", "parquet"]) $(`answer-${format}`).href = addressOf("download", { sql: state.q, as_of: at, sort, order, format });
    $("answer-section").hidden = false;
    $("times").hidden = span === null;
    if (span !== null) showSlider(at ?? span.ends);
    offerColumns();
    await drawChart();
  };
  const read = () => (found.read.length ? `Read ${found.read.map((each) => `${visible(each.table)} as of ${span ? textOf(each.as_of) : each.as_of}`).join(", ")}.` : "");
  // What may be drawn, over what: numbers over any column, or over the times at which the query is asked.
  const offerColumns = () => {
    const numbers = found.columns.filter((_, i) => found.rows.length && found.rows.every((row) => isNumeric(row[i])));
    const xs = ["", ...(span ? [TIMES] : []), ...found.columns];
    $("chart-x").replaceChildren(...xs.map((name) => new Option(name === "" ? "no chart" : name === TIMES ? "time (asks at several)" : visible(name), name)));
    $("chart-y").replaceChildren(...numbers.map((name) => new Option(visible(name), name)));
    $("chart-x").value = xs.includes(state.x) ? state.x : "";
    $("chart-y").value = numbers.includes(state.y) ? state.y : numbers[numbers.length - 1] ?? "";
    $("chart-form").hidden = !numbers.length;
  };
  const drawChart = async () => {
    const x = $("chart-x").value, y = $("chart-y").value;
    Object.assign(state, { x: x || null, y: x ? y : null });
    note();
    $("chart").hidden = !x || !y;
    if (!x || !y) return;
    const told = x === TIMES ? await ask("over-time", { sql: state.q, points: POINTS }) : found;
    const atX = told.columns.indexOf(x), atY = told.columns.lastIndexOf(y);
    // A line for each value of a text beside the two.
    const atName = told.columns.findIndex((_, i) => i !== atX && i !== atY && told.rows.some((row) => row[i] !== null && !isNumeric(row[i])));
    const points = told.rows.map((row) => ({ x: row[atX], y: row[atY], line: atName < 0 ? visible(y) : visible(row[atName] ?? "NULL") }));
    const left = drawLines($("chart"), points, { label: `${visible(y)} over ${visible(x)}`, textOf: x === TIMES ? (t) => (told.timeline ? momentOf(t, told.timeline) : String(t)) : String });
    $("chart-note").textContent = left ? `${counted(left)} more lines are not drawn.` : "";
  };
  const ends = () => (span ? [BigInt(span.begins), BigInt(span.ends)] : [0n, null]);
  const move = (time) => {
    const [low, high] = ends();
    if (high === null) return;
    at = time >= high ? null : String(time < low ? low : time);
    return run();
  };
  const step = (forward) => {
    const [low, high] = ends();
    const size = high === null || high - low < 1000n ? 1n : (high - low) / 1000n;
    return move(BigInt(at ?? high ?? 0n) + (forward ? size : -size));
  };
  const showSlider = timeSlider($("query-slider"), $("query-at"), { span: ends, textOf, choose: (time) => doing(() => move(time)), step: (forward) => doing(() => step(forward)) });
  const again = async () => {
    const before = { ...state, at };
    Object.assign(state, { q: $("query").value.trim(), sort: null, descending: false });
    if (!state.q) return;
    try {
      await run();
    } catch (error) {
      if (error !== STALE) Object.assign(state, { sort: before.sort, descending: before.descending });
      throw error;
    }
  };
  on("query-form", "submit", again);
  $("query").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    doing(again);
  });
  on("query-latest", "click", () => ((at = null), run()));
  on("chart-x", "change", drawChart);
  on("chart-y", "change", drawChart);
  const begin = async () => {
    const { items, url } = await ask("collections", { limit: 200 });
    $("location").textContent = visible(url);
    $("names").textContent = items.length ? `Tables: ${items.map((item) => visible(item.name)).join(", ")}` : "There is no collection.";
    if (state.q) await run();
  };
  return { begin, refresh: async () => (state.q && found && at === null ? run() : undefined), redraw: () => found && !$("chart").hidden && doing(drawChart) };
}
