// How the location fares: views, sources and followers, who holds history, what waits to be deleted, and what is due.

import { $, ask, show } from "./asking.js";
import { bytes, counted, duration, fill, linkTo, timeText, visible } from "./showing.js";

const time = (number, moment) => (number === null || number === undefined ? "–" : timeText(number, moment));

export async function openHealth() {
  show("health-view");
  document.title = "Health – persist";
  const refresh = async () => {
    const told = await ask("health");
    $("location").textContent = visible(told.location);
    const waiting = told.waiting_bytes === null ? "more than was counted" : bytes(told.waiting_bytes);
    $("health-line").textContent = `Record ${counted(told.seqno)} of ${told.written_at ?? "a moment that is not known"}; ${bytes(told.live_bytes)} live, ${bytes(told.history_bytes)} of earlier times, ${waiting} waiting to be deleted.`;
    list("due", told.due, ["work", "command", "of", "such as"], (d) => [d.work, d.command, counted(d.count), d.examples.join(", ")], "Nothing is due.");
    list("views", told.views, ["view", "upper", "behind", "slowest input", ...LAST], (v) => [linkTo(v.view), time(v.upper, v.upper_moment), v.is_due ? (v.behind_s === null ? "yes" : duration(v.behind_s)) : "no", v.input ? linkTo(v.input) : "–", ...last(v.wrote)], "There is no view.");
    list("sources", told.sources, ["source", "fills", "behind", ...LAST], (s) => [s.source, s.collections.join(", "), duration(s.behind_s), ...last(s.wrote[0])], "No source fills a collection.");
    list("sinks", told.sinks, ["sink", "gets", "hold", "behind", "not sent"], (s) => [s.sink, s.collections.join(", "), s.hold, duration(s.behind_s), bytes(s.behind_bytes)], "Nothing is sent elsewhere.");
    list("followers", told.followers, ["follower", "of", "has taken up to", "behind"], (s) => [s.follower, linkTo(s.collection), time(s.time, s.moment), duration(s.behind_s)], "Nobody follows a collection by a name.");
    list("lagging", told.lagging, ["collection", "upper", "behind", "not sealed"], (l) => [linkTo(l.collection), time(l.upper, l.upper_moment), duration(l.behind_s), l.unsealed ? counted(l.unsealed) : "–"], "No times are moments, so no lag is known.");
    list("holds", told.holds, ["collection", "held by", "process", "time", "keeps history back"], (h) => [linkTo(h.collection), h.hold, h.holder ?? "–", time(h.time, h.moment), h.keeps_back ? "yes" : "no"], "Nobody holds history.");
    list("waiting", told.waiting, ["collection", "why", "size", "until", "waits for"], (w) => [w.collection, w.why, w.bytes === null ? "?" : bytes(w.bytes), w.until, w.waits_for], "Nothing waits to be deleted.");
    list("clients", told.clients, ["client", "release", "does", "wrote last"], (c) => [c.client, c.release ?? "?", c.does, c.at ?? "–"], "No client is known.");
    for (const name of ["views", "sources", "sinks", "followers", "lagging", "holds", "waiting"]) {
      const left = told[`${name}_total`] - told[name].length;
      const notes = left ? [`${counted(left)} more are not shown: persist status --json has them.`] : [];
      for (const each of told[name]) if (each.failed) notes.push(`${each.view ?? each.source ?? each.sink} failed at ${each.failed.at}, in ${each.failed.by}: ${each.failed.error}`);
      $(`${name}-note`).textContent = visible(notes.join(" · "));
    }
  };
  return { refresh };
}

// Of what a process writes again and again: its last commit, and what all of those cost that the page knows of.
const LAST = ["last commit", "commits", "rows written", "bytes written", "by"];

function last(wrote) {
  return wrote ? [`record ${wrote.record} at ${wrote.at}`, counted(wrote.commits), counted(wrote.rows), bytes(wrote.bytes), wrote.by] : ["–", "–", "–", "–", "–"];
}

function list(id, items, columns, cells, empty) {
  fill(`${id}-table`, { columns, rows: items.map(cells) }, { empty });
}
