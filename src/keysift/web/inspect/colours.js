// Colour scales of the maps. Blue and orange are told apart by every common kind of colour vision.

/** @type {(name: string) => Rgb} */
function cssColour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim().replace("#", "");
  const full = text.length === 3 ? [...text].map((c) => c + c).join("") : text;
  const part = (/** @type {number} */ i) => parseInt(full.slice(i, i + 2), 16);
  return [part(0), part(2), part(4)];
}

/**
 * 256 colours through some stops, as packed RGB.
 * @type {(stops: string[]) => Uint8ClampedArray}
 */
function ramp(stops) {
  const colours = stops.map(cssColour);
  const table = new Uint8ClampedArray(256 * 3);
  for (let i = 0; i < 256; i++) {
    const at = (i / 255) * (colours.length - 1);
    const low = Math.min(Math.floor(at), colours.length - 2);
    for (let c = 0; c < 3; c++) table[3 * i + c] = colours[low][c] + (at - low) * (colours[low + 1][c] - colours[low][c]);
  }
  return table;
}

/** @type {Map<string, Uint8ClampedArray>} */
const ramps = new Map();
/** @type {(kind: "sequential" | "diverging" | "standing") => Uint8ClampedArray} */
function rampOf(kind) {
  const known = ramps.get(kind);
  if (known) return known;
  const stops = {
    sequential: ["--map-0", "--map-1", "--map-2"],
    diverging: ["--map-minus-2", "--map-minus-1", "--map-0", "--map-1", "--map-2"],
    // Percentile among best keys: grey below one half, then orange.
    standing: ["--map-0", "--map-grey", "--map-minus-1", "--map-minus-2"],
  }[kind];
  const table = ramp(stops);
  ramps.set(kind, table);
  return table;
}

/**
 * How a head is coloured in a mode: the value of a cell as a share of the ramp, and the legend.
 * @typedef {{ ramp: Uint8ClampedArray, share: (score: number, weight: number) => number, low: string, high: string, title: string }} Scale
 */

/** @type {(place: Place, mode: Mode) => Scale} */
function scaleOf(place, mode) {
  const found = mapOf(place);
  const meta = found?.map.meta.heads[found.index];
  if (mode === "score" && found) {
    let low = Infinity;
    let high = -Infinity;
    for (const s of found.map.scores(found.index)) {
      if (s < low) low = s;
      if (s > high) high = s;
    }
    const span = high - low || 1;
    return {
      ramp: rampOf("sequential"),
      share: (score) => (score - low) / span,
      low: formatValue(low),
      high: formatValue(high),
      title: meta?.acceptance !== null && meta?.acceptance !== undefined ? "cosine of query and key" : "raw score, before the weights",
    };
  }
  if (mode === "absolute") {
    const threshold = thresholdOf(place);
    if (threshold !== null) {
      return {
        ramp: rampOf("diverging"),
        share: (score) => Math.min(1, Math.max(0, 0.5 + (score - threshold) / 2)),
        low: "−1: refused",
        high: "+1: accepted",
        title: `score minus the threshold ${formatValue(threshold)}`,
      };
    }
    return {
      ramp: rampOf("standing"),
      share: (score) => percentile(place, score, "best") ?? 0,
      low: "0%: every unrelated row has a better key",
      high: "100%: better than the best key of any unrelated row",
      title: "share of unrelated queries whose best key scores lower",
    };
  }
  let most = 1e-9;
  if (found) for (const w of found.map.weights(found.index)) if (Math.abs(w) > most) most = Math.abs(w);
  const signed = found ? found.map.weights(found.index).some((w) => w < 0) : false;
  return {
    ramp: rampOf(signed ? "diverging" : "sequential"),
    share: (_, weight) => (signed ? 0.5 + (0.5 * Math.sign(weight) * Math.sqrt(Math.abs(weight) / most)) : Math.sqrt(weight / most)),
    low: signed ? formatValue(-most) : "0",
    high: formatValue(most),
    title: "weight, on a square-root scale",
  };
}

/** Threshold of a head: learned, or that of the slider for r. @type {(place: Place) => number | null} */
function thresholdOf(place) {
  const found = mapOf(place);
  const meta = found?.map.meta.heads[found.index];
  if (!meta || meta.threshold === null) return null;
  return view.width !== null && meta.acceptance !== null ? 1 - view.width : meta.threshold;
}

/** A map as an image with one pixel per cell. @type {(place: Place, mode: Mode) => HTMLCanvasElement | null} */
function mapImage(place, mode) {
  const found = mapOf(place);
  if (!found) return null;
  const { map, index } = found;
  const scale = scaleOf(place, mode);
  const scores = map.scores(index);
  const weights = mode === "weight" ? map.weights(index) : scores;
  return paint(map.side, scale.ramp, (cell) => (Number.isNaN(scores[cell]) && mode !== "weight" ? NaN : scale.share(scores[cell], weights[cell])));
}

/** Lower triangle as an image; NaN cells are transparent. @type {(side: number, table: Uint8ClampedArray, share: (cell: number) => number) => HTMLCanvasElement} */
function paint(side, table, share) {
  const canvas = html("canvas", { width: side, height: side });
  const context = canvas.getContext("2d");
  if (!context) return canvas;
  const image = context.createImageData(side, side);
  for (let g = 0, cell = 0; g < side; g++) {
    for (let s = 0; s <= g; s++, cell++) {
      const value = share(cell);
      if (Number.isNaN(value)) continue;
      const colour = 3 * Math.round(255 * Math.min(1, Math.max(0, value)));
      const at = 4 * (g * side + s);
      image.data[at] = table[colour];
      image.data[at + 1] = table[colour + 1];
      image.data[at + 2] = table[colour + 2];
      image.data[at + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas;
}
