// A mechanism's weights as bars. What moved although its own score did not carries an arrow, the amount and an outline
// of where it was.

const BARS_HIGH = 190,
  BARS_TOP = 30,
  BARS_BOTTOM = 22,
  BARS_LEFT = 40;

const MOST_DRAWN = 1e12; // an unbounded weight may be infinite; its bar ends here and its number says so
const drawable = (w) => Math.max(-MOST_DRAWN, Math.min(MOST_DRAWN, w));

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

function drawBars(chart, state, weights, moved) {
  const width = sized(chart, BARS_HIGH);
  const [low, high] = barsRange(weights, moved.before);
  const y = (w) =>
    BARS_TOP + ((high - drawable(w)) / (high - low)) * (BARS_HIGH - BARS_TOP - BARS_BOTTOM - (low < 0 ? 14 : 0));
  const { each, x, crowdLeft, right } = slots(width, state.keys.length, state.crowd, BARS_LEFT);
  const parts = axis(ticks(low, high, 4), y, BARS_LEFT, right);
  const wide = Math.min(40, each * 0.6);
  state.keys.forEach((key, j) =>
    parts.push(...bar(key, weights[j], moved.keys[j], moved.before[j], x(j), wide, each, y, state)),
  );
  if (state.crowd) parts.push(crowdBars(weights, state.keys.length, crowdLeft, right, y));
  chart.replaceChildren(...parts);
}

function bar(key, w, by, was, x, wide, each, y, state) {
  const top = Math.min(y(w), y(0)),
    tall = Math.abs(y(w) - y(0));
  const found = [
    svg("rect", {
      x: x - wide / 2,
      y: top,
      width: wide,
      height: Math.max(tall, w === 0 ? 0 : 0.75),
      class: by === null ? "bar" : "bar moved",
    }),
  ];
  if (by !== null) {
    const old = Math.min(y(was), y(0));
    found.push(
      svg("rect", { x: x - wide / 2 - 2, y: old, width: wide + 4, height: Math.abs(y(was) - y(0)), class: "ghost" }),
    );
  }
  const above = w >= 0 ? Math.min(top, by === null ? top : y(Math.max(was, 0))) - 4 : y(w) + 12;
  if (each >= 42)
    found.push(
      svg("text", { x, y: above, "text-anchor": "middle", class: "weight" }, key.masked ? "masked" : number(w)),
    );
  if (by !== null && each >= 20) {
    const text = (by > 0 ? "▲" : "▼") + (each >= 56 ? signed(by) : "");
    found.push(svg("text", { x, y: w >= 0 ? above - 13 : above + 13, "text-anchor": "middle", class: "mark" }, text));
  }
  found.push(
    svg(
      "text",
      { x, y: BARS_HIGH - 6, "text-anchor": "middle", class: state.selected === key.name ? "name selected" : "name" },
      each >= 14 ? key.name : "",
    ),
  );
  return found;
}

/** Ten thousand keys as one path: in each pixel column the largest and the smallest weight. */
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

/** The chart in words, for those who hear it. */
function spoken(about, state, weights, moved, { mass, accepted }) {
  const keys = state.keys.map(
    (key, j) =>
      `${key.name} ${key.masked ? "masked" : number(weights[j])}${moved.keys[j] === null ? "" : ` (moved ${signed(moved.keys[j])})`}`,
  );
  const rest = state.crowd ? `, and ${count(state.crowd)} distractors` : "";
  return `${about.title}: ${keys.join(", ") || "no keys"}${rest}. Mass ${number(mass)}, ${count(accepted)} not zero.`;
}
