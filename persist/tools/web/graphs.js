// Graphs, drawn in layers from the left to the right: what a node reads is at its left.

import { counted, element } from "./drawing.js";

const LANE = 10; // The height that an edge takes where it passes a layer.
const SWEEPS = 4; // How often the layers are put in order again; a few times bring nearly all that can be had.

// Returns where the nodes of a graph are drawn, and the paths of its edges: { places, paths, width, height }.
// `depths` are the layers of the nodes; `edges` are pairs of their numbers. No edge runs behind a node: one that passes a
// layer has a lane of its own there, which all edges from the same node share. (This is Sugiyama's method: layers,
// order by the mean place of the neighbours, then places.)
export function layered(depths, edges, { wide, high, gapX, gapY }) {
  const layers = [];
  const put = (depth, item) => (layers[depth] ||= []).push(item);
  const nodes = depths.map((depth) => ({ depth, tall: high, before: [], after: [] }));
  nodes.forEach((node) => put(node.depth, node));
  const lanes = new Map(), ways = edges.map(([from, to]) => {
    const way = [nodes[from]];
    for (let depth = depths[from] + 1; depth < depths[to]; depth++) {
      const name = `${from}/${depth}`;
      if (!lanes.has(name)) {
        lanes.set(name, { depth, tall: LANE, before: [], after: [], isLane: true });
        put(depth, lanes.get(name));
      }
      way.push(lanes.get(name));
    }
    way.push(nodes[to]);
    if (depths[from] < depths[to]) for (let i = 1; i < way.length; i++) (way[i].before.push(way[i - 1]), way[i - 1].after.push(way[i]));
    return way;
  });
  arrange(layers);
  const side = edges.some(([from, to]) => depths[from] >= depths[to]) ? gapX / 2 : 4; // An edge of a loop goes round the nodes.
  let height = 0;
  for (const layer of layers) {
    let free = 4;
    for (const item of layer) {
      item.x = side + item.depth * (wide + gapX);
      item.y = Math.max(free, item.before.length ? mean(item.before, (each) => each.y + each.tall / 2) - item.tall / 2 : free);
      free = item.y + item.tall + gapY;
    }
    height = Math.max(height, free - gapY + 4);
  }
  const back = height + LANE / 2; // Below all nodes, for edges of loops, which lead to the left.
  const paths = ways.map((way) => {
    const goesBack = way[0].depth >= way[way.length - 1].depth;
    if (goesBack) height = Math.max(height, back + LANE);
    return pathOf(way, wide, gapX, goesBack ? back : null);
  });
  return { places: nodes.map((node) => [node.x, node.y]), paths, width: 2 * side + layers.length * (wide + gapX) - gapX, height };
}

const mean = (items, of) => items.reduce((sum, item) => sum + of(item), 0) / items.length;

// Puts the items of each layer in the order of the mean place of their neighbours, by turns to the right and to the left.
function arrange(layers) {
  const number = (layer) => layer.forEach((item, i) => (item.at = (i + 0.5) / layer.length));
  const sort = (layer, side) => {
    layer.forEach((item) => (item.wish = item[side].length ? mean(item[side], (each) => each.at) : item.at));
    layer.sort((a, b) => a.wish - b.wish);
    number(layer);
  };
  layers.forEach(number);
  for (let i = 0; i < SWEEPS; i++) {
    for (const layer of layers.slice(1)) sort(layer, "before");
    if (i < SWEEPS - 1) for (const layer of layers.slice(0, -1).reverse()) sort(layer, "after");
  }
}

function pathOf(way, wide, gapX, back) {
  let at = [way[0].x + wide, way[0].y + way[0].tall / 2], path = `M${at[0]} ${at[1]}`;
  const bend = (x, y) => {
    path += ` C${at[0] + gapX / 2} ${at[1]} ${x - gapX / 2} ${y} ${x} ${y}`;
    at = [x, y];
  };
  const last = way[way.length - 1], end = last.y + last.tall / 2;
  if (back !== null) return `${path} h${gapX / 3} V${back} H${last.x - gapX / 3} V${end} h${gapX / 3}`;
  for (const lane of way.slice(1, -1)) {
    bend(lane.x, lane.y + lane.tall / 2);
    path += ` H${lane.x + wide}`;
    at = [lane.x + wide, lane.y + lane.tall / 2];
  }
  bend(last.x, end);
  return path;
}

function frame({ width, height, paths }, label) {
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": label });
  for (const d of paths) svg.append(element("path", { class: "edge", d }));
  return svg;
}

// The operators of a view: what each gave, how fast, and what it keeps.
export function drawDataflow(box, operators, visible) {
  const wide = 215, high = 54;
  const edges = operators.flatMap((each, to) => each.inputs.map((from) => [from, to]));
  const found = layered(operators.map((each) => each.depth), edges, { wide, high, gapX: 46, gapY: 14 });
  const svg = frame(found, "The operators of the view");
  operators.forEach((each, at) => {
    const [x, y] = found.places[at], made = element("g"), title = visible(each.title), number = (n) => Math.round(n).toLocaleString("en");
    made.append(element("title", {}, `${title}: ${each.kind}`));
    made.append(element("rect", { class: each.kept_bytes ? "node keeps" : "node", x, y, width: wide, height: high, rx: 5 }));
    made.append(element("text", { x: x + 9, y: y + 17 }, title.length > 28 ? `${title.slice(0, 27)}…` : title));
    made.append(element("text", { x: x + 9, y: y + 32 }, `${counted(each.updates, "update")}${each.rate === null ? "" : `, ${number(each.rate)}/s`}`));
    made.append(element("text", { x: x + 9, y: y + 47 }, each.kept_bytes ? `keeps ${number(each.kept_updates)} in ${number(each.kept_bytes)} B` : each.kind));
    svg.append(made);
  });
  box.replaceChildren(svg);
}

// What feeds what: sources and data that users write at the left, what is made of it to the right, and how far each is.
export function drawLineage(box, told, visible) {
  const wide = 236, high = 44, numbers = new Map(told.nodes.map((node, i) => [node.name, i]));
  const edges = told.edges.map(([from, to]) => [numbers.get(from), numbers.get(to)]);
  const found = layered(told.nodes.map((node) => node.depth), edges, { wide, high, gapX: 60, gapY: 14 });
  const svg = frame(found, "Sources, collections, views and their followers");
  told.nodes.forEach((node, at) => {
    const [x, y] = found.places[at], isOurs = node.kind !== "source" && node.kind !== "follower", name = visible(node.name);
    const made = isOurs ? element("a", { href: `#/${encodeURIComponent(node.name)}` }) : element("g");
    const time = node.moment ? node.moment.replace(/\.\d+/, "") : node.upper, until = node.kind === "source" ? "" : time === null ? "for ever" : `up to ${time}`;
    made.append(element("rect", { class: `node ${node.kind}`, x, y, width: wide, height: high, rx: isOurs ? 5 : 16 }));
    made.append(element("text", { x: x + 10, y: y + 18 }, name.length > 28 ? `${name.slice(0, 27)}…` : name));
    made.append(element("text", { class: "until", x: x + 10, y: y + 35 }, `${node.kind}${until ? ` ${until}` : ""}`));
    made.append(element("title", {}, `${node.kind} ${name} ${until}`));
    svg.append(made);
  });
  box.replaceChildren(svg);
}
