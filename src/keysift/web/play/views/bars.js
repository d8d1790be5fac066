// Weights of a mechanism as bars. A weight that changed although its score did not gets an arrow, the change and an
// outline of the previous bar.

const BARS_HIGH = 190,
  BARS_TOP = 30,
  BARS_BOTTOM = 22,
  BARS_LEFT = 40;

const MAX_DRAWN = 1e12; // a weight may be infinite: its bar ends here, its number does not
/** @type {(w: number) => number} */
const drawable = (w) => Math.max(-MAX_DRAWN, Math.min(MAX_DRAWN, w));

/** @type {(weights: Float64Array, before: (number | null)[]) => Point} */
function barsRange(weights, before) {
  let low = 0,
    high = 1;
  for (const w of weights) {
    if (w < low) low = w;
    if (w > high) high = w;
  }
  for (const w of before) if (w !== null) [low, high] = [Math.min(low, w), Math.max(high, w)];
  return [drawable(low), drawable(high)];
}

/** @type {(chart: SVGSVGElement, state: State, weights: Float64Array, changes: Changes) => void} */
function drawBars(chart, state, weights, changes) {
  const width = fitWidth(chart, BARS_HIGH);
  const [low, high] = barsRange(weights, changes.before);
  /** @param {number} w */
  const y = (w) =>
    BARS_TOP + ((high - drawable(w)) / (high - low)) * (BARS_HIGH - BARS_TOP - BARS_BOTTOM - (low < 0 ? 14 : 0));
  const { each, x, crowdLeft, right } = keyLayout(width, state.keys.length, state.crowd, BARS_LEFT);
  const parts = axis(ticks(low, high, 4), y, BARS_LEFT, right);
  const barWidth = Math.min(40, each * 0.6);
  state.keys.forEach((key, j) =>
    parts.push(...barParts(key, weights[j], changes.keys[j], changes.before[j] ?? 0, { x: x(j), barWidth, each, y }, state)),
  );
  if (state.crowd) parts.push(crowdBars(weights, state.keys.length, crowdLeft, right, y));
  chart.replaceChildren(...parts);
}

/**
 * Bar, outline, number, arrow and name of one key; `change` is null unless the weight changed while the score did not.
 * @param {Key} key
 * @param {number} w
 * @param {number | null} change
 * @param {number} before
 * @param {{ x: number, barWidth: number, each: number, y: (w: number) => number }} place
 * @param {State} state
 */
function barParts(key, w, change, before, { x, barWidth, each, y }, state) {
  const top = Math.min(y(w), y(0)),
    height = Math.abs(y(w) - y(0));
  /** @type {SVGElement[]} */
  const parts = [
    svg("rect", {
      x: x - barWidth / 2,
      y: top,
      width: barWidth,
      height: Math.max(height, w === 0 ? 0 : 0.75),
      class: change === null ? "bar" : "bar moved",
    }),
  ];
  if (change !== null) {
    const old = Math.min(y(before), y(0));
    parts.push(
      svg("rect", { x: x - barWidth / 2 - 2, y: old, width: barWidth + 4, height: Math.abs(y(before) - y(0)), class: "ghost" }),
    );
  }
  const above = w >= 0 ? Math.min(top, change === null ? top : y(Math.max(before, 0))) - 4 : y(w) + 12;
  if (each >= 42)
    parts.push(
      svg("text", { x, y: above, "text-anchor": "middle", class: "weight" }, key.masked ? "masked" : formatNumber(w)),
    );
  if (change !== null && each >= 20) {
    const text = (change > 0 ? "▲" : "▼") + (each >= 56 ? formatSigned(change) : "");
    parts.push(svg("text", { x, y: w >= 0 ? above - 13 : above + 13, "text-anchor": "middle", class: "mark" }, text));
  }
  parts.push(
    svg(
      "text",
      { x, y: BARS_HIGH - 6, "text-anchor": "middle", class: state.selected === key.name ? "name selected" : "name" },
      each >= 14 ? key.name : "",
    ),
  );
  return parts;
}

/**
 * Up to ten thousand distractors as one path: the smallest and the largest weight of every pixel column.
 * @type {(weights: Float64Array, from: number, left: number, right: number, y: (w: number) => number) => SVGElement}
 */
function crowdBars(weights, from, left, right, y) {
  const n = weights.length - from;
  const columns = Math.max(1, Math.min(n, Math.floor((right - left) / 2)));
  let path = "";
  for (let column = 0; column < columns; column++) {
    let low = 0,
      high = 0;
    const end = from + Math.floor(((column + 1) * n) / columns);
    for (let j = from + Math.floor((column * n) / columns); j < end; j++) {
      if (weights[j] > high) high = weights[j];
      if (weights[j] < low) low = weights[j];
    }
    if (high > low)
      path += `M${(left + ((column + 0.5) / columns) * (right - left)).toFixed(1)} ${y(low).toFixed(2)}V${y(high).toFixed(2)}`;
  }
  return svg("path", {
    d: path,
    class: "crowd-bars",
    "stroke-width": Math.max(1, ((right - left) / columns) * 0.7).toFixed(1),
  });
}

/**
 * The chart in words, for screen readers.
 * @type {(about: Mechanism, state: State, weights: Float64Array, changes: Changes, summary: Summary) => string}
 */
function describeBars(about, state, weights, changes, { mass, accepted }) {
  const keys = state.keys.map((key, j) => {
    const change = changes.keys[j];
    const weight = key.masked ? "masked" : formatNumber(weights[j]);
    return `${key.name} ${weight}${change === null ? "" : ` (changed by ${formatSigned(change)})`}`;
  });
  const rest = state.crowd ? `, and ${formatCount(state.crowd)} distractors` : "";
  return `${about.title}: ${keys.join(", ") || "no keys"}${rest}. Mass ${formatNumber(mass)}, ${formatCount(accepted)} not zero.`;
}
