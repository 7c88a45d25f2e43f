// A collection in a notebook: the page's picture, a slider over time, and what it holds then. `drawing.js` comes before this.

function visibleText(text) {
  return String(text).replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function tableOf(told, classOf) {
  const table = document.createElement("table"), head = table.createTHead().insertRow(), body = table.createTBody();
  for (const name of told.columns || []) {
    const th = document.createElement("th");
    th.textContent = visibleText(name);
    head.append(th);
  }
  for (const row of told.rows || []) {
    const tr = body.insertRow();
    if (classOf) tr.className = classOf(row);
    for (const text of row) tr.insertCell().textContent = text === null ? "NULL" : visibleText(text);
  }
  return table;
}

function render({ model, el }) {
  const part = (name, kind = "div") => {
    const made = document.createElement(kind);
    made.className = name;
    el.append(made);
    return made;
  };
  el.classList.add("persist-slider");
  const chart = part("chart"), line = part("line"), error = part("error", "p"), contents = part("contents"), title = part("title", "p"), changes = part("changes");
  const slider = document.createElement("input"), time = document.createElement("output");
  slider.type = "range";
  slider.min = 0;
  slider.max = 1000;
  slider.setAttribute("aria-label", "Time");
  line.append(slider, time);
  const choose = (at) => (model.set("at", String(at)), model.save_changes());
  const draw = () => {
    const told = model.get("told"), shown = model.get("shown");
    const marks = [{ kind: "since", text: "since", time: told.since }, { kind: "upper", text: "upper", time: told.upper }, { kind: "now", text: "shown", time: shown.as_of ?? null }];
    for (const tag of told.picture.tags) marks.push({ kind: "tag", text: `tag ${visibleText(tag.name)}`, time: tag.time });
    for (const hold of told.picture.holds) marks.push({ kind: "hold", text: visibleText(hold.name ?? "a reader"), time: hold.time });
    drawPicture(chart, told.picture, marks, String, (at) => choose(Math.max(0, Math.round(at))));
    slider.disabled = told.latest === null || told.picture.ends === told.picture.begins;
    if (told.latest !== null && shown.as_of !== undefined) {
      const low = BigInt(told.picture.begins), high = BigInt(told.picture.ends);
      slider.value = high > low ? Number(((BigInt(shown.as_of) - low) * 1000n) / (high - low)) : 1000;
    }
    slider.setAttribute("aria-valuetext", shown.as_of === undefined ? "nothing" : shown.moment ?? shown.as_of);
    time.textContent = shown.as_of === undefined ? "nothing is sealed yet" : `as of ${shown.moment ?? shown.as_of}`;
    error.textContent = visibleText(model.get("error"));
    error.hidden = !model.get("error");
    contents.replaceChildren(tableOf(shown));
    const changed = model.get("changed");
    title.textContent = changed.rows && changed.rows.length ? "What changed at this time:" : "Nothing changed at this time.";
    changes.replaceChildren(tableOf(changed.rows && changed.rows.length ? changed : {}, (row) => (row[row.length - 1].startsWith("-") ? "go" : "come")));
  };
  slider.addEventListener("input", () => {
    const told = model.get("told"), low = BigInt(told.picture.begins), high = BigInt(told.picture.ends);
    time.textContent = `as of ${low + ((high - low) * BigInt(slider.value)) / 1000n}`;
  });
  slider.addEventListener("change", () => {
    const told = model.get("told"), low = BigInt(told.picture.begins), high = BigInt(told.picture.ends);
    choose(low + ((high - low) * BigInt(slider.value)) / 1000n);
  });
  for (const name of ["told", "shown", "changed", "error"]) model.on(`change:${name}`, draw);
  draw();
  const every = model.get("every_s"), timer = every ? setInterval(() => model.send("refresh"), every * 1000) : null;
  return () => clearInterval(timer); // When it is shown no more.
}

export default { render };
