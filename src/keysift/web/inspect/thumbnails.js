// Thumbnails of all heads: one row per layer.

function drawModes() {
  const found = mapOf(view);
  const threshold = found && found.map.meta.heads[found.index].threshold !== null;
  /** @type {[Mode, string, string][]} */
  const modes = [
    ["weight", "Weight", "share of the attention: relative to the other keys of the query"],
    ["score", "Raw score", "similarity of query and key before the weights are computed: does not depend on other keys"],
    ["absolute", "Absolute", threshold ? "distance of the score from the threshold" : "compared with the best keys of unrelated text"],
  ];
  const parts = modes.map(([mode, title, help]) => {
    const input = html("input", { type: "radio", name: "mode", value: mode, checked: view.mode === mode });
    input.addEventListener("change", () => {
      view.mode = mode;
      drawAll();
    });
    return html("label", { title: help, class: view.mode === mode ? "chosen" : null }, input, title);
  });
  byId("modes").replaceChildren(html("legend", { class: "hidden" }, "What the maps show"), ...parts);
  const scale = scaleOf(view, view.mode);
  const strip = html("canvas", { width: 96, height: 1, class: "strip", role: "img", "aria-label": `colours from ${scale.low} to ${scale.high}` });
  const context = strip.getContext("2d");
  if (context)
    for (let i = 0; i < 96; i++) {
      const c = 3 * Math.round((255 * i) / 95);
      context.fillStyle = `rgb(${scale.ramp[c]},${scale.ramp[c + 1]},${scale.ramp[c + 2]})`;
      context.fillRect(i, 0, 1, 1);
    }
  byId("legend").replaceChildren(`${scale.title}: ${scale.low} `, strip, ` ${scale.high}`);
}

/** Choices of model and text. */
function drawPlaces() {
  /** @type {HTMLElement[]} */
  const parts = [];
  if (CONTENT.records.length > 1) {
    const select = html("select", { id: "model" }, CONTENT.records.map((r, i) => html("option", { value: i, selected: i === view.model }, r.model.name)));
    select.onchange = () => showModel(Number(select.value));
    parts.push(html("label", {}, "model ", select));
  }
  const maps = record().maps;
  if (maps.length > 1) {
    const names = maps.map((m) => mapName(record(), m));
    const select = html("select", { id: "text" }, names.map((name, i) => html("option", { value: i, selected: i === view.map }, name)));
    select.onchange = () => {
      view.map = Number(select.value);
      view.query = Math.min(view.query, (currentMap()?.meta.tokens.length ?? 1) - 1);
      view.removed = new Set();
      drawAll();
    };
    parts.push(html("label", {}, "text ", select));
  }
  byId("places").replaceChildren(...parts);
}

/** @type {(of: InspectionRecord, map: MapRecord) => string} */
const mapName = (of, map) => `${of.texts[map.text].name}${map.swap ? ` with ${map.swap}` : ""}`;

function drawThumbnails() {
  const heads = record().heads;
  /** @type {Map<number, HeadRecord[]>} */
  const layers = new Map();
  heads.forEach((h) => layers.set(h.layer, [...(layers.get(h.layer) ?? []), h]));
  const columns = Math.max(...[...layers.values()].map((row) => row.length));
  const top = html("tr", {}, html("th", { scope: "col" }, "layer"));
  for (let h = 0; h < columns; h++) top.append(html("th", { scope: "col" }, `${h}`));
  const rows = [...layers].map(([layer, row]) => html("tr", {}, html("th", { scope: "row" }, String(layer)), row.map((h) => html("td", {}, thumbnail(h)))));
  byId("thumbnails").replaceChildren(html("table", { class: "thumbnails" }, html("thead", {}, top), html("tbody", {}, rows)));
}

/** @type {(head: HeadRecord) => HTMLElement} */
function thumbnail(head) {
  const place = { ...view, layer: head.layer, head: head.head };
  const kinds = head.kinds.join(", ") || "no single kind";
  const pressed = head.layer === view.layer && head.head === view.head;
  const button = html("button", {
    type: "button",
    title: `${label(head)}: ${kinds}`,
    "aria-label": `layer ${head.layer}, head ${head.head}: ${kinds}`,
    "aria-pressed": String(pressed),
    "data-head": label(head),
    onclick: () => showHead({ model: view.model, map: view.map, layer: head.layer, head: head.head }, true),
  });
  const image = mapImage(place, view.mode);
  if (image) {
    const size = 72;
    const small = html("canvas", { width: size, height: size });
    const context = small.getContext("2d");
    if (context) {
      context.imageSmoothingEnabled = image.width > size;
      context.imageSmoothingQuality = "high";
      context.drawImage(image, 0, 0, size, size);
    }
    button.append(small);
  }
  button.append(html("span", { class: "kind" }, head.kinds[0] ?? "–"));
  return button;
}

function markThumbnail() {
  for (const button of byId("thumbnails").querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(button.getAttribute("data-head") === label(view)));
}
