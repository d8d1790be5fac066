// Line charts: every series has its own colour and dash, so that none depends on colour alone.

const LINES_HIGH = 240,
  LINES_LEFT = 44,
  LINES_RIGHT = 24,
  LINES_BOTTOM = 38;
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 5", "4 2", "1 4", "6 2 2 2"];

/**
 * Draw series as lines; `dot` marks the current value of a series.
 * @type {(chart: SVGSVGElement, x: ChartAxis, y: ChartAxis, series: Series[]) => void}
 */
function drawLines(chart, x, y, series) {
  const width = fitWidth(chart, LINES_HIGH);
  const { marks: legend, rows } = legendParts(series, width);
  const top = 12 + 16 * rows;
  /** @type {(along: ChartAxis, value: number) => number} */
  const fraction = (along, value) => {
    const scale = along.log ? Math.log10 : Number;
    return (scale(value) - scale(along.low)) / (scale(along.high) - scale(along.low));
  };
  /** @param {number} value */
  const px = (value) => LINES_LEFT + fraction(x, value) * (width - LINES_LEFT - LINES_RIGHT);
  /** @param {number} value */
  const py = (value) => LINES_HIGH - LINES_BOTTOM - fraction(y, value) * (LINES_HIGH - LINES_BOTTOM - top);
  const parts = [
    ...legend,
    ...axis(ticks(y.low, y.high, 4), py, LINES_LEFT, width - LINES_RIGHT),
    ...xTicks(x, px),
  ];
  parts.push(svg("text", { x: width - LINES_RIGHT, y: LINES_HIGH - 4, "text-anchor": "end", class: "note" }, x.label));
  series.forEach(({ points, dot }, k) => {
    const path = points.map(([a, b]) => `${px(a).toFixed(1)},${py(Math.min(y.high, Math.max(y.low, b))).toFixed(1)}`);
    parts.push(
      svg("polyline", { points: path.join(" "), class: `line s${k % 8}`, "stroke-dasharray": DASHES[k % 8] }),
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

/** @type {(x: ChartAxis, px: (value: number) => number) => SVGElement[]} */
function xTicks(x, px) {
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
      formatCount(value).replace("-", "−"),
    ),
  ]);
}

/** @type {(series: Series[], width: number) => { marks: SVGElement[], rows: number }} */
function legendParts(series, width) {
  let x = LINES_LEFT,
    row = 0;
  const marks = series.flatMap(({ name }, k) => {
    const wide = 34 + 7 * name.length;
    if (x > LINES_LEFT && x + wide > width) [x, row] = [LINES_LEFT, row + 1];
    const mark = [
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
    return mark;
  });
  return { marks, rows: row + 1 };
}

/**
 * Weight of the selected key over its own score; where the curve is flat the gradient is zero.
 * @type {(state: State) => void}
 */
function drawResponse(state) {
  const j = state.keys.findIndex((key) => key.name === state.selected);
  const box = byId("response-box");
  box.hidden = j < 0 || state.keys[j].masked;
  if (box.hidden) return;
  setText(byId("response-title"), `Weight of key ${state.selected} over its own score`);
  const cosines = allCosines(state);
  const points = state.crowd > 1000 ? 21 : 81;
  /** @type {Series[]} */
  const series = state.shown.map((name) => ({
    name: mechanism(name).title,
    points: Array.from({ length: points }, (_, i) => {
      const c = -1 + (2 * i) / (points - 1);
      const moved = Float64Array.from(cosines);
      moved[j] = c;
      return [c, computeWeights(name, moved, state)[j]];
    }),
    dot: [cosines[j], computeWeights(name, cosines, state)[j]],
  }));
  drawLines(svgById("response"), { low: -1, high: 1, label: "cosine of the selected key" }, weightAxis(series), series);
  setAttributes(svgById("response"), {
    "aria-label": `Weight of key ${state.selected} for cosines from -1 to 1. ${series.map(({ name, dot }) => `${name}: now ${dot ? formatNumber(dot[1]) : "–"}`).join(", ")}.`,
  });
}

const LENGTHS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

/**
 * Weight of the selected key as distractors are added: dilution.
 * @type {(state: State) => void}
 */
function drawDilution(state) {
  const j = state.keys.findIndex((key) => key.name === state.selected);
  byId("dilution-box").hidden = j < 0 || state.keys[j].masked;
  if (byId("dilution-box").hidden) return;
  setText(byId("dilution-title"), `Weight of key ${state.selected} over the number of distractors`);
  /** @type {(name: string, crowd: number) => number} */
  const weight = (name, crowd) => {
    const longer = { ...state, crowd };
    return computeWeights(name, allCosines(longer), longer)[j];
  };
  /** @type {Series[]} */
  const series = state.shown.map((name) => ({
    name: mechanism(name).title,
    points: LENGTHS.map((n) => [n, weight(name, n)]),
    dot: state.crowd ? [state.crowd, weight(name, state.crowd)] : null,
  }));
  drawLines(
    svgById("dilution"),
    { low: 1, high: 10000, log: true, label: "distractors, logarithmic" },
    weightAxis(series),
    series,
  );
  setAttributes(svgById("dilution"), {
    "aria-label": `Weight of key ${state.selected} with 1, 100 and 10,000 distractors. ${series.map(({ name, points }) => `${name}: ${[0, 6, 12].map((k) => formatNumber(points[k][1])).join(", ")}`).join(". ")}.`,
  });
}

/**
 * From 0 to 1, extended to the largest and smallest weight.
 * @type {(series: Series[]) => ChartAxis}
 */
function weightAxis(series) {
  const all = series.flatMap(({ points, dot }) => [...points.map((p) => p[1]), ...(dot ? [dot[1]] : [])]);
  return { low: drawable(Math.min(0, ...all)), high: drawable(Math.max(1, ...all)) };
}
