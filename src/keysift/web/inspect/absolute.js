// Heads that accept keys by a threshold: the slider for r, and the picture of windows and acceptances.

function drawAcceptance() {
  const panel = byId("acceptance");
  const found = mapOf(view);
  const meta = found?.map.meta.heads[found.index];
  panel.hidden = !meta || meta.threshold === null;
  if (!meta || meta.threshold === null) return;
  const values = headAt(view)?.values ?? {};
  /** @type {[string, string][]} */
  const facts = [
    ["keys that pass", `${formatValue(values.accepted)} per query (${formatPercent(values.accepted_share ?? null)} of the visible ones)`],
    ["rows that refuse everything", formatPercent(values.refuses_all ?? null)],
    ["best refused key", `${formatValue(values.refused_margin)} below the threshold on average`],
    ["threshold", formatValue(meta.threshold)],
  ];
  if (meta.window !== null) facts.push(["window", Number.isFinite(meta.window) ? `${formatValue(meta.window)} tokens` : "no end"]);
  const list = html("dl", {}, facts.flatMap(([name, text]) => [html("dt", {}, name), html("dd", {}, text)]));
  panel.replaceChildren(html("h3", {}, "Accepting and refusing"), list, slider(meta) ?? "", html("div", { id: "groups" }, groupsPicture(meta)), acceptancePicture() ?? "");
}

/** @type {(meta: MapHead) => HTMLElement | null} */
function slider(meta) {
  const curves = record().tests.acceptance;
  const row = curves?.heads.find((h) => h.layer === meta.layer && h.head === meta.head);
  if (!curves || !row || meta.acceptance === null) return null;
  const { widths } = curves;
  const at = view.width === null ? nearest(widths, meta.acceptance) : nearest(widths, view.width);
  const input = html("input", { type: "range", min: 0, max: widths.length - 1, step: 1, value: at, id: "width", "aria-describedby": "width-note" });
  const note = html("p", { class: "hint", id: "width-note" });
  const write = (/** @type {number} */ index) => {
    const what = view.width === null ? `learned: ${formatValue(meta.acceptance)}` : `r = ${widths[index]}`;
    setText(note, `${what}. At r = ${widths[index]}, ${formatValue(row.passing[index])} keys pass per query and ${formatPercent(row.empty[index])} of the queries accept none.`);
    input.setAttribute("aria-valuetext", `r = ${widths[index]}`);
  };
  input.oninput = () => {
    view.width = widths[Number(input.value)];
    write(Number(input.value));
    view.mode = "absolute";
    byId("groups").replaceChildren(...groupsPicture(meta));
    drawModes();
    buildPanes();
    drawQuery();
    saveAddress();
  };
  const reset = html("button", { type: "button", onclick: () => ((view.width = null), drawAll()) }, "learned r");
  write(at);
  return html("div", {}, html("label", { for: "width" }, "What would pass with another r?"), input, note, reset);
}

/** @type {(values: number[], target: number) => number} */
const nearest = (values, target) => values.reduce((best, v, i) => (Math.abs(v - target) < Math.abs(values[best] - target) ? i : best), 0);

/** Window and acceptance of every head as points; the current head is marked. */
function acceptancePicture() {
  const heads = currentMap()?.meta.heads.filter((h) => h.acceptance !== null) ?? [];
  if (!heads.length) return null;
  const [width, height] = [300, 190];
  const windows = heads.map((h) => h.window ?? Infinity).filter(Number.isFinite);
  const most = Math.max(2, ...windows) * 1.5;
  const x = (/** @type {number | null} */ w) => 40 + ((width - 60) * Math.log(Math.min(w ?? most, most))) / Math.log(most);
  const y = (/** @type {number} */ r) => 150 - 130 * r;
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", class: "windows" });
  chart.append(...axis([0, 0.5, 1], y, 36, width - 10));
  for (const tick of [1, 10, 100, 1000, 10000].filter((t) => t <= most)) chart.append(svg("text", { x: x(tick), y: 168, "text-anchor": "middle", class: "tick" }, String(tick)));
  chart.append(svg("text", { x: width / 2, y: 184, "text-anchor": "middle", class: "tick" }, "window, tokens (right edge: no end)"), svg("text", { x: 4, y: 8, class: "tick" }, "acceptance r"));
  for (const h of heads) {
    const chosen = h.layer === view.layer && h.head === view.head;
    const dot = svg("circle", { cx: x(h.window), cy: y(h.acceptance ?? 0), r: chosen ? 7 : 4, class: chosen ? "dot chosen" : "dot" });
    dot.append(svg("title", {}, `${label(h)}: window ${formatValue(h.window)}, r ${formatValue(h.acceptance)}`));
    dot.addEventListener("click", () => showHead({ ...view, layer: h.layer, head: h.head }, false));
    chart.append(dot);
  }
  const own = heads.find((h) => h.layer === view.layer && h.head === view.head);
  chart.setAttribute("aria-label", `Window and acceptance of ${heads.length} heads; ${label(view)}: window ${formatValue(own?.window)}, r ${formatValue(own?.acceptance)}`);
  return chart;
}
