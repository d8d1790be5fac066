// Line charts: every series has a colour and a dash of its own, so that none depends on colour alone.

const LINES_HIGH = 240,
  LINES_LEFT = 44,
  LINES_RIGHT = 24,
  LINES_BOTTOM = 38;
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 5", "4 2", "1 4", "6 2 2 2"];

/** `x` and `y` are { low, high, label, log }, `series` a list of { name, points: [[x, y], ...], dot }. */
function drawLines(chart, x, y, series) {
  const width = sized(chart, LINES_HIGH);
  const { marks: legend, rows } = legendOf(series, width);
  const top = 12 + 16 * rows;
  const place = (axisOf, value) => {
    const by = axisOf.log ? Math.log10 : (v) => v;
    return (by(value) - by(axisOf.low)) / (by(axisOf.high) - by(axisOf.low));
  };
  const px = (value) => LINES_LEFT + place(x, value) * (width - LINES_LEFT - LINES_RIGHT);
  const py = (value) => LINES_HIGH - LINES_BOTTOM - place(y, value) * (LINES_HIGH - LINES_BOTTOM - top);
  const parts = [
    ...legend,
    ...axis(ticks(y.low, y.high, 4), py, LINES_LEFT, width - LINES_RIGHT),
    ...acrossTicks(x, px),
  ];
  parts.push(svg("text", { x: width - LINES_RIGHT, y: LINES_HIGH - 4, "text-anchor": "end", class: "note" }, x.label));
  series.forEach(({ points, dot }, k) => {
    const inside = points.map(([a, b]) => `${px(a).toFixed(1)},${py(Math.min(y.high, Math.max(y.low, b))).toFixed(1)}`);
    parts.push(
      svg("polyline", { points: inside.join(" "), class: `line s${k % 8}`, "stroke-dasharray": DASHES[k % 8] }),
    );
    if (dot)
      parts.push(
        svg("circle", {
          cx: px(dot[0]),
          cy: py(Math.min(y.high, Math.max(y.low, dot[1]))),
          r: 5,
          class: `dot s${k % 8}`,
        }),
      );
  });
  chart.replaceChildren(...parts);
}

function acrossTicks(x, px) {
  const powers = [];
  const by = x.high / x.low > 200 ? 10 : 2;
  for (let p = x.low; x.log && p <= x.high * 1.0001; p *= by) powers.push(p);
  return (x.log ? powers : ticks(x.low, x.high, 5)).flatMap((value) => [
    svg("line", {
      x1: px(value),
      x2: px(value),
      y1: LINES_HIGH - LINES_BOTTOM,
      y2: LINES_HIGH - LINES_BOTTOM + 4,
      class: "zero",
    }),
    svg(
      "text",
      { x: px(value), y: LINES_HIGH - LINES_BOTTOM + 17, "text-anchor": "middle", class: "tick" },
      count(value).replace("-", "−"),
    ),
  ]);
}

function legendOf(series, width) {
  let x = LINES_LEFT,
    row = 0;
  const marks = series.flatMap(({ name }, k) => {
    const wide = 34 + 7 * name.length;
    if (x > LINES_LEFT && x + wide > width) [x, row] = [LINES_LEFT, row + 1];
    const found = [
      svg("line", {
        x1: x,
        x2: x + 24,
        y1: 9 + 16 * row,
        y2: 9 + 16 * row,
        class: `line s${k % 8}`,
        "stroke-dasharray": DASHES[k % 8],
      }),
      svg("text", { x: x + 29, y: 13 + 16 * row }, name),
    ];
    x += wide;
    return found;
  });
  return { marks, rows: row + 1 };
}

/** The chosen key's weight over its own score, everything else as it is: flat means no gradient. */
function drawResponse(state) {
  const j = state.keys.findIndex((key) => key.name === state.selected);
  const box = byId("response-box");
  box.hidden = j < 0 || state.keys[j].masked;
  if (box.hidden) return;
  say(byId("response-title"), `Weight of key ${state.selected} over its own score`);
  const cosines = cosinesOf(state);
  const points = state.crowd > 1000 ? 21 : 81;
  const series = state.shown.map((name) => ({
    name: mechanism(name).title,
    points: Array.from({ length: points }, (_, i) => {
      const c = -1 + (2 * i) / (points - 1);
      const moved = Float64Array.from(cosines);
      moved[j] = c;
      return [c, weightsOf(name, moved, state)[j]];
    }),
    dot: [cosines[j], weightsOf(name, cosines, state)[j]],
  }));
  drawLines(byId("response"), { low: -1, high: 1, label: "cosine of the chosen key" }, weightAxis(series), series);
  set(byId("response"), {
    "aria-label": `Weight of key ${state.selected} as its cosine goes from -1 to 1. ${series.map(({ name, dot }) => `${name}: now ${number(dot[1])}`).join(", ")}.`,
  });
}

const LENGTHS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

/** The chosen key's weight as distractors join: dilution. */
function drawDilution(state) {
  const j = state.keys.findIndex((key) => key.name === state.selected);
  byId("dilution-box").hidden = j < 0 || state.keys[j].masked;
  if (byId("dilution-box").hidden) return;
  say(byId("dilution-title"), `Weight of key ${state.selected} as distractors join`);
  const weight = (name, crowd) => {
    const longer = { ...state, crowd };
    return weightsOf(name, cosinesOf(longer), longer)[j];
  };
  const series = state.shown.map((name) => ({
    name: mechanism(name).title,
    points: LENGTHS.map((n) => [n, weight(name, n)]),
    dot: state.crowd ? [state.crowd, weight(name, state.crowd)] : null,
  }));
  drawLines(
    byId("dilution"),
    { low: 1, high: 10000, log: true, label: "distractors, logarithmic" },
    weightAxis(series),
    series,
  );
  set(byId("dilution"), {
    "aria-label": `Weight of key ${state.selected} with 1, 100 and 10,000 distractors. ${series.map(({ name, points }) => `${name}: ${[0, 6, 12].map((k) => number(points[k][1])).join(", ")}`).join(". ")}.`,
  });
}

/** From 0 to 1, and as far beyond as the weights go. */
function weightAxis(series) {
  const all = series.flatMap(({ points, dot }) => [...points.map((p) => p[1]), ...(dot ? [dot[1]] : [])]);
  return { low: drawable(Math.min(0, ...all)), high: drawable(Math.max(1, ...all)) };
}
