// Several records on one page: models side by side with findings that differ and matched heads, or checkpoints of a run.

function drawCompare() {
  const { records, rows, matches, film } = CONTENT;
  byId("compare").hidden = records.length < 2;
  if (records.length < 2) return;
  const names = records.map((r) => (film ? `step ${formatCount(r.made.step ?? 0)}` : r.model.name));
  const table = createTable(["mean over heads", ...names], rows.map(([title, values]) => [title, ...values.map((v) => v ?? "–")]), "models side by side");
  if (film) {
    setText(byId("compare-title"), "How heads form during training");
    byId("compared").replaceChildren(html("div", { id: "forming" }), folded("All checkpoints in numbers", table));
    return;
  }
  byId("compared").replaceChildren(table, differingFindings(names), matchTable(matches));
}

/** One row for each topic in which the models have different findings. @type {(names: string[]) => HTMLElement} */
function differingFindings(names) {
  const { records, kinds } = CONTENT;
  const topics = [...new Set(records.flatMap((r) => r.findings.filter((f) => f.weight > 0).map((f) => f.topic)))];
  /** @type {Cell[][]} */
  const rows = topics.flatMap((topic) => {
    const found = records.map((r) => r.findings.find((f) => f.topic === topic && f.weight > 0));
    if (new Set(found.map((f) => f?.sentence)).size < 2) return [];
    return [[topic, ...found.map((f, model) => (f ? html("span", {}, f.sentence, " ", ...f.heads.slice(0, 3).map(([l, h]) => headChip(model, l, h))) : "–"))]];
  });
  for (const kind of kinds) {
    const having = records.map((r) => r.heads.filter((h) => h.kinds.includes(kind.name)));
    if (new Set(having.map((heads) => heads.map(label).join())).size < 2) continue;
    rows.push([`${kind.name} heads`, ...having.map((heads, model) => (heads.length ? html("span", {}, `${heads.length}: `, ...heads.slice(0, 4).map((h) => headChip(model, h.layer, h.head))) : "none"))]);
  }
  const table = createTable(["", ...names], rows, "findings that differ");
  table.classList.add("sentences");
  return html("div", {}, html("h3", {}, "Findings that differ"), table);
}

/** @type {(matches: Match[]) => HTMLElement} */
function matchTable(matches) {
  const rows = matches.map((m) => {
    const first = { model: 0, map: 0, layer: m.head[0], head: m.head[1] };
    const second = { model: m.model, map: 0, layer: m.other[0], head: m.other[1] };
    const both = html("button", { type: "button", class: "chip", onclick: () => ((view.other = second), showHead(first, true)) }, "side by side");
    return [headChip(0, ...m.head), CONTENT.records[m.model].model.name, headChip(m.model, ...m.other), m.distance, kindsOf(first), kindsOf(second), both];
  });
  const titles = ["head", "model", "most similar head", "distance", "kind", "its kind", ""];
  const note = "Heads are matched by where their attention goes: mass on the first, previous and own token, copies, spread and largest weight. Distance 0 is identical behaviour.";
  return folded("Heads matched by behaviour", html("p", {}, note), createTable(titles, rows, "matched heads"));
}

/** @type {(place: Place) => string} */
const kindsOf = (place) => headAt(place)?.kinds.join(", ") || "–";

/** Show another checkpoint; head, query, zoom and removed keys stay. @type {(model: number) => void} */
function showFrame(model) {
  view.model = model;
  drawAll();
}

/** @type {number | undefined} */
let playing;

/** Slider over the checkpoints of a run, with a button that plays them once. It is made once, so that it keeps the focus. */
function drawFilm() {
  const last = CONTENT.records.length - 1;
  const bar = byId("frames");
  if (bar.hidden) {
    const play = () => {
      window.clearInterval(playing);
      showFrame(0);
      playing = window.setInterval(() => (view.model < last ? showFrame(view.model + 1) : window.clearInterval(playing)), 700);
    };
    const slider = html("input", { type: "range", id: "film", min: 0, max: last, step: 1, "aria-label": "checkpoint" });
    slider.oninput = () => showFrame(Number(slider.value));
    bar.replaceChildren(slider, html("output", { for: "film", id: "frame" }), html("button", { type: "button", id: "play", onclick: play }, "play"));
    bar.hidden = false;
  }
  const name = `step ${formatCount(record().made.step ?? 0)}`;
  inputById("film").value = String(view.model);
  byId("film").setAttribute("aria-valuetext", name);
  setText(byId("frame"), name);
}

const FORMING = ["first_mass", "previous_mass", "own_mass", "duplicate_mass", "induction_mass"];

/** Scores of the current head over the checkpoints. */
function drawForming() {
  const panel = document.getElementById("forming");
  if (!panel) return;
  const steps = CONTENT.records.map((r) => r.made.step ?? 0);
  const heads = CONTENT.records.map((_, model) => headAt({ ...view, model }));
  const [width, height, left, right, base] = [560, 210, 40, 400, 170];
  const x = (/** @type {number} */ at) => left + ((right - left) * (steps[at] - steps[0])) / Math.max(1, steps[steps.length - 1] - steps[0]);
  const y = (/** @type {number} */ share) => base - 150 * share;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "forming" }, ...axis([0, 0.5, 1], y, left, right));
  const ends = FORMING.map((name) => ({ name, end: heads[heads.length - 1]?.values[name] ?? 0 })).sort((a, b) => b.end - a.end);
  let free = 0;
  for (const { name, end } of ends) {
    const points = heads.flatMap((h, at) => (h?.values[name] === null || h?.values[name] === undefined ? [] : [`${x(at).toFixed(1)} ${y(h.values[name]).toFixed(1)}`]));
    if (!points.length) continue;
    free = Math.max(free + 14, y(end) + 4);
    const line = FORMING.indexOf(name);
    chart.append(svg("path", { d: `M${points.join("L")}`, class: `forming-line line-${line}` }), svg("path", { d: `M${right} ${y(end)}L${right + 12} ${free - 4}h8`, class: `forming-line thin line-${line}` }));
    chart.append(svg("text", { x: right + 24, y: free, class: "tick" }, `${term(name).title} ${formatPercent(end)}`));
  }
  chart.append(svg("line", { x1: x(view.model), x2: x(view.model), y1: 16, y2: base, class: "cursor" }));
  chart.append(svg("text", { x: left, y: height - 16, class: "tick" }, `step ${formatCount(steps[0])}`), svg("text", { x: right, y: height - 16, "text-anchor": "end", class: "tick" }, formatCount(steps[steps.length - 1])));
  chart.setAttribute("aria-label", `Scores of ${label(view)} from step ${steps[0]} to ${steps[steps.length - 1]}; at the end: ${ends.map(({ name, end }) => `${term(name).title} ${formatPercent(end)}`).join(", ")}`);
  const losses = CONTENT.records.map((r) => r.texts.reduce((sum, t) => sum + t.loss, 0) / r.texts.length);
  const note = `${label(view)}: where its attention goes at each of ${steps.length} checkpoints. The loss on this text falls from ${formatValue(losses[0])} to ${formatValue(losses[losses.length - 1])} nats per token. Select another head below, and move the slider.`;
  panel.replaceChildren(html("p", {}, note), chart);
}
