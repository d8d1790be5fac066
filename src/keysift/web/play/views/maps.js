// Map view: relevance maps by layer, head and query.

const EXAMPLE = "Example: a screening head and a softmax head on the same vectors.";
const LABEL_PIXELS = 12; // of one token label along a side of the map

/** @type {Maps} */
let maps;

function startMaps() {
  loadExample();
  const drop = byId("drop");
  /** @param {Event} event */
  const stop = (event) => event.preventDefault();
  for (const name of ["dragenter", "dragover"]) {
    drop.addEventListener(name, (event) => [stop(event), drop.classList.add("over")]);
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    stop(event);
    drop.classList.remove("over");
    loadFile(event.dataTransfer?.files[0]);
  });
  // A file dropped outside the box must not replace the page.
  for (const name of ["dragover", "drop"]) window.addEventListener(name, stop);
  byId("pick").addEventListener("change", () => loadFile(inputById("pick").files?.[0]));
  byId("paste-read").addEventListener("click", () => loadText(/** @type {HTMLTextAreaElement} */ (byId("paste")).value));
  byId("example").addEventListener("click", () => [loadExample(), chooseFirst()]);
  for (const id of ["layer", "head", "query"]) {
    byId(`map-${id}`).addEventListener("input", () => chooseMap({ [id]: Number(inputById(`map-${id}`).value) }));
    byId(`map-${id}`).addEventListener("change", endGesture);
  }
  byId("heat").addEventListener("pointerdown", (event) => {
    const box = byId("heat").getBoundingClientRect();
    chooseMap({ query: Math.floor(((event.clientY - box.top) / box.height) * maps.tokens.length) });
  });
}

/** @type {(choice: Partial<MapChoice>) => void} */
function chooseMap(choice) {
  updateState((state) => ({ ...state, map: { ...state.map, ...choice } }), {
    gesture: `map ${Object.keys(choice)}`,
    compare: false,
  });
}

/** @type {(file: File | undefined) => Promise<void>} */
async function loadFile(file) {
  if (!file) return;
  if (file.size > MAPS_LIMITS.bytes)
    return showMapError(
      `${file.name} has ${formatCount(Math.round(file.size / 1e6))} MB; the page reads up to ${MAPS_LIMITS.bytes / 1e6} MB.`,
    );
  try {
    loadText(await file.text());
  } catch {
    showMapError(`${file.name} could not be read.`);
  }
}

/** @type {(text: string) => void} */
function loadText(text) {
  try {
    maps = readMaps(text);
  } catch (error) {
    if (!(error instanceof InvalidMaps)) throw error;
    return showMapError(error.message);
  }
  showMapMessage(
    `${formatCount(maps.tokens.length)} tokens, ${formatCount(maps.layers.length)} ${maps.layers.length === 1 ? "layer" : "layers"}.`,
  );
  chooseFirst();
}

function loadExample() {
  maps = readMaps(JSON.stringify(exampleMaps()));
  showMapMessage(EXAMPLE);
}

function chooseFirst() {
  chooseMap({ layer: 0, head: 0, query: maps.tokens.length - 1 });
}

/** @type {(message: string) => void} */
function showMapMessage(message) {
  setText(byId("map-message"), message);
  setAttributes(byId("map-message"), { class: "" });
}

/**
 * Show why the file was rejected; the maps shown before stay.
 * @type {(message: string) => void}
 */
function showMapError(message) {
  setText(byId("map-message"), message);
  setAttributes(byId("map-message"), { class: "error" });
}

/** A screening head and a softmax head on the same vectors. */
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
  /** @type {(name: string, weigh: WeightFunction, factor: number, threshold: number | null) => object} */
  const head = (name, weigh, factor, threshold) => ({
    name,
    threshold,
    scores: cosines.map((row) => row.map((c) => Number((factor * c).toFixed(4)))),
    weights: cosines.map((row, t) => {
      const keep = Uint8Array.from(row, (_, s) => Number(s <= t));
      const x = Float64Array.from(row, (c) => factor * c);
      const scalars = { acceptance: 0.5, effective_window: NO_WINDOW, distance: row.map((_, s) => t - s) };
      return [...weigh(x, { keep, second: new Float64Array(row.length), ...scalars })];
    }),
  });
  return {
    format: "keysift-maps",
    version: 1,
    tokens,
    layers: [{ heads: [head("screening", WEIGH.screening, 1, 0.5), head("softmax", WEIGH.softmax, 4, null)] }],
  };
}

/** @type {(state: State) => void} */
function drawMaps(state) {
  /** @type {(value: number, most: number) => number} */
  const clip = (value, most) => Math.max(0, Math.min(value, most - 1));
  const layer = clip(state.map.layer, maps.layers.length),
    heads = maps.layers[layer];
  const h = clip(state.map.head, heads.length),
    head = heads[h];
  const query = clip(state.map.query, maps.tokens.length);
  const address = headAddress(head, layer, h);
  /** @type {[string, number, number, string][]} */
  const choices = [
    ["layer", layer, maps.layers.length, String(address.layer)],
    ["head", h, heads.length, `${address.head}${head.name ? `: ${visibleText(head.name)}` : ""}`],
    ["query", query, maps.tokens.length, `${query}: “${visibleText(maps.tokens[query])}”`],
  ];
  for (const [id, value, most, label] of choices) {
    setAttributes(byId(`map-${id}`), { max: most - 1, "aria-valuetext": label });
    if (Number(inputById(`map-${id}`).value) !== value) inputById(`map-${id}`).value = String(value);
    setText(byId(`map-${id}-out`), label);
  }
  const threshold = head.threshold === null ? "no threshold" : `threshold ${formatNumber(head.threshold)}`;
  const named = head.name === null || address.named ? "" : `, ${visibleText(head.name)}`;
  setText(byId("map-title"), `Layer ${address.layer}, head ${address.head}${named}: ${threshold}`);
  drawHeat(head, query, maps.tokens.length);
  drawHeatLabels(maps.tokens);
  drawQuery(head, query, maps.tokens);
}

/**
 * Layer and head as in the address of a tap, from a name such as layers.4.heads.2: a file may hold some layers only.
 * @type {(head: MapHead, layer: number, index: number) => { layer: number, head: number, named: boolean }}
 */
function headAddress(head, layer, index) {
  const parts = /^layers\.(\d+)\.heads\.(\d+)$/.exec(head.name ?? "");
  return parts ? { layer: Number(parts[1]), head: Number(parts[2]), named: true } : { layer, head: index, named: false };
}

/**
 * Tokens beside the rows and below the columns; every k-th token if there are many.
 * @type {(tokens: string[]) => void}
 */
function drawHeatLabels(tokens) {
  const n = tokens.length,
    every = Math.ceil((LABEL_PIXELS * n) / (heatCanvas().clientHeight || LABEL_PIXELS * n));
  /** @type {(side: "top" | "left") => HTMLElement[]} */
  const labels = (side) =>
    tokens.flatMap((token, at) =>
      at % every ? [] : [html("span", { style: `${side}:${(100 * (at + 0.5)) / n}%` }, visibleText(token).slice(0, 12))],
    );
  byId("heat-queries").replaceChildren(...labels("top"));
  byId("heat-keys").replaceChildren(...labels("left"));
}

const heatCanvas = () => /** @type {HTMLCanvasElement} */ (byId("heat"));

/** @type {(head: MapHead, query: number, n: number) => void} */
function drawHeat(head, query, n) {
  const canvas = heatCanvas();
  const context = canvas.getContext("2d");
  if (!context) return;
  if (canvas.width !== n) [canvas.width, canvas.height] = [n, n];
  const style = getComputedStyle(canvas);
  const [zero, positive, negative] = ["--heat-low", "--heat-high", "--heat-under"].map((name) =>
    rgb(style.getPropertyValue(name)),
  );
  const most = head.weights.reduce((top, w) => Math.max(top, Math.abs(w)), 1e-12);
  const image = context.createImageData(n, n);
  head.weights.forEach((w, i) => {
    const depth = Math.sqrt(Math.abs(w) / most),
      full = w < 0 ? negative : positive;
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = zero[c] + (full[c] - zero[c]) * depth;
    image.data[4 * i + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  setAttributes(canvas, {
    "aria-label": `Weights of all ${n} queries; the largest is ${formatNumber(most)}. The table lists the row of query ${query}.`,
  });
  byId("heat-row").style.top = `${(query / n) * 100}%`;
  byId("heat-row").style.height = `${100 / n}%`;
}

/** @type {(text: string) => number[]} */
function rgb(text) {
  const hex = text.trim().slice(1);
  return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
}

/** @type {(head: MapHead, query: number, tokens: string[]) => void} */
function drawQuery(head, query, tokens) {
  const n = tokens.length;
  const row = head.weights.subarray(query * n, (query + 1) * n),
    scores = head.scores?.subarray(query * n, (query + 1) * n);
  const most = row.reduce((top, w) => Math.max(top, Math.abs(w)), 1e-12);
  const { mass, accepted, entropy } = rowSummary(row);
  setText(
    byId("map-facts"),
    `Mass ${formatNumber(mass)}, ${formatCount(accepted)} keys with non-zero weight, entropy ${formatNumber(entropy)}${head.threshold === null ? "" : `, threshold ${formatNumber(head.threshold)}`}.`,
  );
  const rows = [];
  for (let s = 0; s < n; s++) {
    if (s > query && row[s] === 0) continue; // not visible to a causal query
    const passes = head.threshold === null || !scores ? null : scores[s] > head.threshold;
    rows.push(
      html(
        "tr",
        {},
        html("td", {}, String(s)),
        html("th", { scope: "row" }, html("bdi", {}, visibleText(tokens[s]))),
        html("td", {}, formatNumber(row[s])),
        html(
          "td",
          { class: "meter", "aria-hidden": "true" },
          html("span", { class: row[s] < 0 ? "under" : "", style: `width:${(100 * Math.abs(row[s])) / most}%` }),
        ),
        html("td", {}, scores ? formatNumber(scores[s]) : "–"),
        html("td", {}, passes === null ? "–" : passes ? "above" : "below"),
      ),
    );
  }
  byId("map-rows").replaceChildren(...rows);
}
