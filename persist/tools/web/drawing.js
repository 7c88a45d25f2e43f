// Pictures, as SVG made of elements: no text is ever parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

export function element(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== null) made.textContent = text;
  return made;
}

// Parts of a collection over time (to the right) and key (upwards); `choose` is told a time that was clicked.
export function drawPicture(box, picture, marks, textOf, choose) {
  const width = Math.max(320, box.clientWidth || 320), height = width < 560 ? 220 : 280;
  const left = 34, right = 12, top = 12, bottom = 30;
  // What is after the last time that can be looked at means "for ever", and is drawn at the right edge.
  const ends = picture.ends === null || picture.ends === undefined ? null : Number(picture.ends);
  const isFar = (t) => ends !== null && Number(t) > Math.max(2 ** 61, ends * 4);
  const times = [...picture.history.flatMap((p) => [p.first, p.last]), ...picture.keyframes.map((p) => p.as_of)].filter((t) => !isFar(t));
  // Lines before all data are drawn at the left edge: since is 0 at first, which may be 1970.
  const begins = picture.begins === null ? null : Number(picture.begins);
  times.push(...marks.filter((m) => m.time !== null && !(Number(m.time) < begins) && !isFar(m.time)).map((m) => m.time));
  const numbers = times.map(Number);
  let low = numbers.length ? Math.min(...numbers) : 0, high = (numbers.length ? Math.max(...numbers) : 1);
  if (high <= low) high = low + 1;
  const pad = (high - low) * 0.02;
  low -= pad;
  high += pad;
  const x = (t) => left + Math.min(1, Math.max(0, (Number(t) - low) / (high - low))) * (width - left - right);
  const y = (k) => height - bottom - k * (height - top - bottom);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Runs and keyframes over time and key" });
  svg.append(element("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }));
  svg.append(element("line", { class: "axis", x1: left, x2: left, y1: top, y2: height - bottom }));
  svg.append(element("text", { x: 12, y: (top + height - bottom) / 2, transform: `rotate(-90 12 ${(top + height - bottom) / 2})`, "text-anchor": "middle" }, "key"));
  for (const part of picture.history) svg.append(rectangle(part, x(part.first), x(part.last), y, part.retracts ? "retracts" : "history", 5));
  for (const part of picture.keyframes) svg.append(rectangle(part, x(part.as_of), x(part.as_of), y, "keyframe", 4));
  for (const mark of marks) {
    if (mark.time === null || isFar(mark.time)) continue;
    const line = element("line", { class: `mark ${mark.kind}`, x1: x(mark.time), x2: x(mark.time), y1: top, y2: height - bottom });
    line.append(element("title", {}, `${mark.text} ${textOf(mark.time)}`));
    svg.append(line);
  }
  const first = Math.round(low + pad), last = Math.round(high - pad);
  svg.append(...endsOfAxis(textOf(String(first)), textOf(String(last)), left, width - right, height));
  svg.addEventListener("click", (event) => {
    const place = svg.getBoundingClientRect();
    const at = ((event.clientX - place.left) / place.width) * width;
    choose(low + ((at - left) / (width - left - right)) * (high - low));
  });
  box.replaceChildren(svg);
}

// What stands at both ends of an axis: one below the other where both have no room side by side.
function endsOfAxis(first, last, left, right, height) {
  const apart = (first.length + last.length + 2) * 6.8 > right - left ? 7 : 0;
  return [element("text", { x: left, y: height - 10 - apart }, first), element("text", { x: right, y: height - 10 + apart, "text-anchor": "end" }, last)];
}

function rectangle(part, from, to, y, kind, least) {
  const wide = Math.max(least, to - from), high = Math.max(6, y(part.low) - y(part.high));
  const made = element("rect", { class: `part ${kind}`, x: (from + to - wide) / 2, y: Math.min(y(part.high), y(0) - high), width: wide, height: high, rx: 1.5 });
  const when = part.as_of === undefined ? `times ${part.first} to ${part.last}` : `keyframe as of ${part.as_of}`;
  made.append(element("title", {}, `${when}: ${part.rows.toLocaleString("en")} rows, ${part.bytes.toLocaleString("en")} bytes`));
  return made;
}

export function drawCommits(box, counts, atLeast) {
  const width = Math.max(320, box.clientWidth || 320), height = 110, left = 34, bottom = 22, top = 8;
  const most = Math.max(1, ...counts), step = (width - left - 10) / counts.length;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Commits per minute" });
  svg.append(element("text", { x: left - 6, y: top + 10, "text-anchor": "end" }, String(most)));
  svg.append(element("line", { class: "axis", x1: left, x2: width - 10, y1: height - bottom, y2: height - bottom }));
  counts.forEach((count, i) => {
    if (!count) return;
    const high = (count / most) * (height - top - bottom);
    const bar = element("rect", { class: "bar-of", x: left + i * step + 0.5, y: height - bottom - high, width: Math.max(1, step - 1), height: high });
    const ago = counts.length - 1 - i;
    bar.append(element("title", {}, `${count} commits ${ago ? `${ago} minutes ago` : "in this minute"}`));
    svg.append(bar);
  });
  svg.append(element("text", { x: left, y: height - 6 }, atLeast ? "an hour ago (older records were not counted)" : "an hour ago"));
  svg.append(element("text", { x: width - 10, y: height - 6, "text-anchor": "end" }, "now"));
  box.replaceChildren(svg);
}

export function drawPlan(box, plan) {
  const width = Math.max(320, box.clientWidth || 320), height = 44, left = 12;
  const all = Math.max(1, plan.rows), wide = width - 2 * left;
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Rows that are read, of the keyframe and of history" });
  const base = (plan.base_rows / all) * wide, rest = plan.rows - plan.base_rows;
  svg.append(element("rect", { class: "part keyframe", x: left, y: 12, width: base, height: 20 }));
  svg.append(element("rect", { class: "part history", x: left + base, y: 12, width: (rest / all) * wide, height: 20 }));
  const from = plan.keyframe === null ? "no keyframe" : `${counted(plan.base_rows, "row")} of the keyframe as of ${plan.keyframe}`;
  box.replaceChildren(svg);
  return `${from}, ${counted(rest, "row")} of history ${plan.keyframe === null ? "" : plan.direction}`;
}

export function counted(number, what) {
  return `${Math.round(number).toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;
}

const LINES_MAX = 8;

// Points { x, y, line } as lines over whatever x is: numbers, moments, or else texts in their order. Returns how many lines
// were left out. Each line has its name at its end, because a colour alone tells nothing to whoever cannot see it.
export function drawLines(box, points, { label, textOf }) {
  const width = Math.max(320, box.clientWidth || 320), height = width < 560 ? 240 : 300, left = 64, right = width < 560 ? 70 : 130, top = 14, bottom = 34;
  const shown = points.filter((p) => p.x !== null && p.y !== null && Number.isFinite(Number(p.y)));
  const xs = shown.map((p) => p.x), numberOf = placing(xs), all = new Map();
  for (const p of shown) (all.get(p.line) ?? all.set(p.line, []).get(p.line)).push({ at: numberOf(p.x), x: p.x, y: Number(p.y) });
  const lines = [...all].slice(0, LINES_MAX);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const ys = lines.flatMap(([, line]) => line.map((p) => p.y)), ats = lines.flatMap(([, line]) => line.map((p) => p.at));
  let low = Math.min(0, ...ys), high = Math.max(...ys, low + 1e-9);
  if (!ys.length) [low, high] = [0, 1];
  const first = Math.min(...ats), last = Math.max(...ats);
  const x = (at) => left + (last > first ? (at - first) / (last - first) : 0.5) * (width - left - right);
  const y = (value) => height - bottom - ((value - low) / (high - low)) * (height - top - bottom);
  for (const value of [low, (low + high) / 2, high]) {
    svg.append(element("line", { class: "axis", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
    svg.append(element("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, Number(value.toPrecision(4)).toLocaleString("en")));
  }
  const ends = [];
  lines.forEach(([name, line], i) => {
    line.sort((a, b) => a.at - b.at);
    svg.append(element("polyline", { class: `series s${i}`, points: line.map((p) => `${x(p.at).toFixed(1)},${y(p.y).toFixed(1)}`).join(" ") }));
    for (const p of line) {
      const dot = element("circle", { class: `dot s${i}`, cx: x(p.at), cy: y(p.y), r: line.length > 60 ? 1.5 : 3 });
      dot.append(element("title", {}, `${name}: ${p.y.toLocaleString("en")} at ${textOf(p.x)}`));
      svg.append(dot);
    }
    const end = line[line.length - 1];
    ends.push({ name, y: y(end.y), i });
  });
  // Names that would lie on each other move down.
  ends.sort((a, b) => a.y - b.y);
  ends.forEach((each, i) => (each.y = i && each.y - ends[i - 1].y < 14 ? ends[i - 1].y + 14 : each.y));
  const chars = width < 560 ? 9 : 18;
  for (const { name, y: at, i } of ends) svg.append(element("text", { class: `name s${i}`, x: width - right + 8, y: at + 4 }, name.length > chars ? `${name.slice(0, chars - 1)}…` : name));
  const sorted = shown.slice().sort((a, b) => numberOf(a.x) - numberOf(b.x));
  if (sorted.length) {
    svg.append(...endsOfAxis(textOf(sorted[0].x), textOf(sorted[sorted.length - 1].x), left, width - right, height));
  }
  box.replaceChildren(svg);
  return Math.max(0, all.size - lines.length);
}

// Returns what says where a value stands: numbers and moments by their size, all else by its place in the order.
function placing(values) {
  for (const of of [Number, Date.parse]) if (values.length && values.every((value) => Number.isFinite(of(value)))) return of;
  const order = new Map([...new Set(values)].sort().map((value, i) => [value, i]));
  return (value) => order.get(value);
}
