// The list of collections, what feeds what, and the commits of the last hour.

import { $, ask, doing, remember, show } from "./asking.js";
import { drawCommits } from "./drawing.js";
import { drawLineage } from "./graphs.js";
import { bytes, cell, counted, duration, linkTo, timeText, visible } from "./showing.js";

const PAGE = 50;

export async function openList(asked) {
  show("list-view");
  document.title = "persist";
  let offset = Number(asked.get("offset")) || 0, waiting = null;
  $("search").value = asked.get("search") ?? "";
  const refresh = async () => {
    const told = await ask("collections", { search: $("search").value, offset, limit: PAGE });
    remember("/", { search: $("search").value, offset });
    $("location").textContent = visible(told.url);
    const rows = told.items.map((item) => {
      const tr = document.createElement("tr"), end = item.for_ever ? "for ever" : item.upper;
      tr.append(
        cell(linkTo(item.name), "name"),
        cell(item.kind, "spare"),
        cell(item.rows === null ? "?" : counted(item.rows), "n"),
        cell(bytes(item.bytes), "n spare"),
        cell(timeText(item.since ?? "–", item.since_moment), "n spare"),
        cell(timeText(end, item.for_ever ? null : item.upper_moment), "n"),
        cell(item.for_ever ? "–" : duration(item.lag_s), "n"),
        cell(item.waiting ? counted(item.waiting) : "–", "n"),
      );
      return tr;
    });
    $("collections").tBodies[0].replaceChildren(...rows);
    $("range").textContent = told.total ? `${counted(offset + 1)} to ${counted(offset + told.items.length)} of ${counted(told.total)}` : "No collection has such a name.";
    $("before").disabled = !offset;
    $("after").disabled = offset + PAGE >= told.total;
    const commits = await ask("commits");
    drawCommits($("commits"), commits.counts, commits.at_least);
    await showLineage();
  };
  const turn = (by) => doing(() => ((offset = Math.max(0, offset + by)), refresh()));
  $("before").addEventListener("click", () => turn(-PAGE));
  $("after").addEventListener("click", () => turn(PAGE));
  $("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => doing(() => ((offset = 0), refresh())), 150);
  });
  return { refresh };
}

async function showLineage() {
  const lineage = await ask("lineage"), more = [];
  $("lineage-section").hidden = !lineage.edges.length && !lineage.left_out;
  $("lineage").hidden = !lineage.edges.length;
  if (lineage.edges.length) drawLineage($("lineage"), lineage, visible);
  if (lineage.not_drawn) more.push(`${counted(lineage.not_drawn)} more views are not drawn.`);
  if (lineage.left_out) more.push(`${counted(lineage.left_out)} more collections were not looked at.`);
  $("lineage-note").textContent = more.join(" ");
}
