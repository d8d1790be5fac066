// The map view: a record of relevance maps, walked by layer, head and query.

let maps = null;

function startMaps() {
  const drop = byId("drop");
  const stop = (event) => event.preventDefault();
  for (const name of ["dragenter", "dragover"]) {
    drop.addEventListener(name, (event) => [stop(event), drop.classList.add("over")]);
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    stop(event);
    drop.classList.remove("over");
    takeFile(event.dataTransfer.files[0]);
  });
  // A file dropped beside the box must not replace the page.
  for (const name of ["dragover", "drop"]) window.addEventListener(name, stop);
  byId("pick").addEventListener("change", () => takeFile(byId("pick").files[0]));
  byId("paste-read").addEventListener("click", () => takeText(byId("paste").value));
  byId("example").addEventListener("click", () => takeText(JSON.stringify(exampleMaps())));
  for (const id of ["layer", "head", "query"]) {
    byId(`map-${id}`).addEventListener("input", () => walkMap({ [id]: Number(byId(`map-${id}`).value) }));
    byId(`map-${id}`).addEventListener("change", endGesture);
  }
  byId("heat").addEventListener("pointerdown", (event) => {
    const box = byId("heat").getBoundingClientRect();
    walkMap({ query: Math.floor(((event.clientY - box.top) / box.height) * maps.tokens.length) });
  });
}

function walkMap(to) {
  change((state) => ({ ...state, map: { ...state.map, ...to } }), {
    gesture: `map ${Object.keys(to)}`,
    compare: false,
  });
}

async function takeFile(file) {
  if (!file) return;
  if (file.size > MAPS_LIMITS.bytes)
    return refuse(
      `${file.name} has ${count(Math.round(file.size / 1e6))} MB; the page reads up to ${MAPS_LIMITS.bytes / 1e6}.`,
    );
  try {
    takeText(await file.text());
  } catch {
    refuse(`${file.name} could not be read.`);
  }
}

function takeText(text) {
  try {
    maps = readMaps(text);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return refuse(error.message);
  }
  say(
    byId("map-message"),
    `${count(maps.tokens.length)} tokens, ${count(maps.layers.length)} ${maps.layers.length === 1 ? "layer" : "layers"}.`,
  );
  set(byId("map-message"), { class: "" });
  walkMap({ layer: 0, head: 0, query: maps.tokens.length - 1 });
}

/** What was shown before stays; the message says why nothing changed. */
function refuse(message) {
  say(byId("map-message"), message);
  set(byId("map-message"), { class: "refused" });
}

/** A softmax head and a screening head reading the same toy vectors, so that the view is never empty. */
function exampleMaps() {
  const tokens = [
    "Once",
    " upon",
    " a",
    " time",
    " there",
    " was",
    " a",
    " needle",
    " in",
    " a",
    " hay",
    "stack",
    ".",
    " The",
    " needle",
  ];
  const angles = [15, 95, 130, 80, 150, 120, 131, 20, 110, 129, 50, 55, 170, 128, 22];
  const cosines = angles.map((a) => angles.map((b) => Number(Math.cos(((a - b) * Math.PI) / 180).toFixed(4))));
  const head = (name, factor, threshold) => ({
    threshold,
    scores: cosines.map((row) => row.map((c) => Number((factor * c).toFixed(4)))),
    weights: cosines.map((row, t) => {
      const keep = Uint8Array.from(row, (_, s) => Number(s <= t));
      const x = Float64Array.from(row, (c) => factor * c);
      const scalars = { acceptance: 0.5, reach: NO_WINDOW, distance: row.map((_, s) => t - s) };
      return [...weigher(name)(x, { keep, ...scalars })];
    }),
  });
  return {
    format: "keysift-maps",
    version: 1,
    tokens,
    layers: [{ heads: [head("softmax", 4, null), head("screening", 1, 0.5)] }],
  };
}

function drawMaps(state) {
  byId("map-box").hidden = maps === null;
  if (maps === null) return;
  const clip = (value, most) => Math.max(0, Math.min(value, most - 1));
  const layer = clip(state.map.layer, maps.layers.length),
    heads = maps.layers[layer];
  const h = clip(state.map.head, heads.length),
    head = heads[h];
  const query = clip(state.map.query, maps.tokens.length);
  for (const [id, value, most, note] of [
    ["layer", layer, maps.layers.length, ""],
    ["head", h, heads.length, head.name ? `: ${visible(head.name)}` : ""],
    ["query", query, maps.tokens.length, `: “${visible(maps.tokens[query])}”`],
  ]) {
    set(byId(`map-${id}`), { max: most - 1 });
    if (Number(byId(`map-${id}`).value) !== value) byId(`map-${id}`).value = value;
    say(byId(`map-${id}-out`), `${value + 1} of ${most}${note}`);
  }
  drawHeat(head, query);
  drawQuery(head, query);
}

/** White space and control characters, made visible; the direction of a text cannot reach beyond its cell. */
function visible(token) {
  return token
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/ /g, "·")
    .replace(/[\p{Cc}\p{Cf}]/gu, "�");
}

function drawHeat(head, query) {
  const n = maps.tokens.length,
    canvas = byId("heat");
  const context = canvas.getContext("2d");
  if (canvas.width !== n) [canvas.width, canvas.height] = [n, n];
  const style = getComputedStyle(canvas);
  const [paper, ink, under] = ["--heat-low", "--heat-high", "--heat-under"].map((name) =>
    rgb(style.getPropertyValue(name)),
  );
  const most = head.weights.reduce((top, w) => Math.max(top, Math.abs(w)), 1e-12);
  const image = context.createImageData(n, n);
  head.weights.forEach((w, i) => {
    const depth = Math.sqrt(Math.abs(w) / most),
      to = w < 0 ? under : ink;
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = paper[c] + (to[c] - paper[c]) * depth;
    image.data[4 * i + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  set(canvas, {
    "aria-label": `Weights of all ${n} queries; the largest is ${number(most)}. The row of query ${query + 1} is listed beside it.`,
  });
  byId("heat-row").style.top = `${(query / n) * 100}%`;
  byId("heat-row").style.height = `${100 / n}%`;
}

function rgb(text) {
  const hex = text.trim().slice(1);
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

function drawQuery(head, query) {
  const n = maps.tokens.length;
  const row = head.weights.subarray(query * n, (query + 1) * n),
    scores = head.scores?.subarray(query * n, (query + 1) * n);
  const most = row.reduce((top, w) => Math.max(top, Math.abs(w)), 1e-12);
  const { mass, accepted, entropy } = summary(row);
  say(
    byId("map-facts"),
    `Mass ${number(mass)}, ${count(accepted)} keys not zero, entropy ${number(entropy)}${head.threshold === null ? "" : `, threshold ${number(head.threshold)}`}.`,
  );
  const rows = [];
  for (let s = 0; s < n; s++) {
    if (s > query && row[s] === 0) continue; // not seen by a causal query
    const passes = head.threshold === null || !scores ? null : scores[s] > head.threshold;
    rows.push(
      html(
        "tr",
        {},
        html("td", {}, String(s + 1)),
        html("th", { scope: "row" }, html("bdi", {}, visible(maps.tokens[s]))),
        html("td", {}, number(row[s])),
        html(
          "td",
          { class: "meter", "aria-hidden": "true" },
          html("span", { class: row[s] < 0 ? "under" : "", style: `width:${(100 * Math.abs(row[s])) / most}%` }),
        ),
        html("td", {}, scores ? number(scores[s]) : "–"),
        html("td", {}, passes === null ? "–" : passes ? "above" : "below"),
      ),
    );
  }
  byId("map-rows").replaceChildren(...rows);
}
