// All heads: thumbnails, one row per layer, and the heads by name.

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
  if (CONTENT.film) drawFilm();
  else if (CONTENT.records.length > 1) {
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

const NAMED = 6; // heads that a row shows

/** Heads by name: the heads of each kind, or the head that comes nearest, with its score and the limit. */
function drawKinds() {
  const heads = record().heads;
  const rows = CONTENT.kinds.flatMap((kind, at) => {
    const score = (/** @type {HeadRecord} */ h) => h.values[kind.score] ?? null;
    const scored = heads.filter((h) => score(h) !== null).sort((a, b) => (score(b) ?? 0) - (score(a) ?? 0));
    const having = scored.filter((h) => h.kinds.includes(kind.name));
    const general = CONTENT.kinds.slice(at + 1).some((k) => k.score === kind.score); // "sink" follows its two special kinds
    if (!scored.length || (!having.length && (general || kind.limit === null))) return [];
    const shown = having.length ? having : scored.slice(0, 1);
    const chips = shown.slice(0, NAMED).flatMap((h) => [headChip(view.model, h.layer, h.head), ` ${kindScore(kind, score(h))} `]);
    const more = having.length > NAMED ? [`and ${having.length - NAMED} more`] : [];
    const nearest = having.length ? [] : [html("span", { class: "soft" }, "none; nearest ")];
    return [[html("span", { title: kind.meaning }, kind.name), html("span", {}, ...nearest, ...chips, ...more), kind.limit === null ? "–" : `> ${kindScore(kind, kind.limit)}`]];
  });
  const meanings = html("dl", {}, CONTENT.kinds.flatMap((kind) => [html("dt", {}, kind.name), html("dd", {}, kind.meaning)]));
  const help = html("details", {}, html("summary", {}, "What the kinds mean"), meanings);
  byId("kinds-by-name").replaceChildren(html("h3", {}, "Heads by name"), createTable(["kind", "heads with their score", "limit"], rows, "kinds of heads"), help);
}

/** Scores of kinds are shares; the margin of a threshold is a score. Near its limit a share has one digit more. @type {(kind: Kind, score: number | null) => string} */
function kindScore(kind, score) {
  if (kind.limit === null || score === null) return formatValue(score);
  const near = score !== kind.limit && formatPercent(score) === formatPercent(kind.limit);
  return near ? `${(100 * score).toFixed(1)}%` : formatPercent(score);
}
