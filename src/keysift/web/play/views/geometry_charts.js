// Geometry view: the window over distance, and the values with the outputs they are combined into.

const WINDOW_HIGH = 180,
  AXIS_MARGIN = 1.25; // the axis ends at this multiple of the window

/** @type {(scene: Scene, result: SceneResult) => void} */
function drawWindow(scene, view) {
  const chart = svgById("window-chart");
  const width = fitWidth(chart, WINDOW_HIGH),
    left = 40,
    top = 16,
    base = WINDOW_HIGH - 36;
  const most = Math.max(8, Math.ceil(scene.window * AXIS_MARGIN), ...scene.keys.map((key) => key.distance + 1));
  /** @param {number} d */
  const px = (d) => width - 16 - (d / most) * (width - 16 - left);
  /** @param {number} m */
  const py = (m) => base - m * (base - top);
  const curve = Array.from({ length: 121 }, (_, i) => [(i / 120) * most, fade((i / 120) * most, scene.window)]);
  const line = curve.map(([d, m]) => `${px(d).toFixed(1)},${py(m).toFixed(1)}`).join(" ");
  byId("window-back").replaceChildren(
    ...axis([0, 0.5, 1], py, left, width - 16),
    svg("polygon", { points: `${px(0)},${base} ${line} ${px(most)},${base}`, class: "band" }),
    svg("polyline", { points: line, class: "line s0" }),
    ...ticks(0, most, 5).map((d) =>
      svg("text", { x: px(d), y: base + 16, "text-anchor": "middle", class: "tick" }, String(d)),
    ),
    svg("text", { x: left, y: WINDOW_HIGH - 4, class: "note" }, "← further back"),
    svg("text", { x: width - 16, y: WINDOW_HIGH - 4, "text-anchor": "end", class: "note" }, "distance from the query"),
  );
  scene.keys.forEach((key, j) => {
    const knob = distanceKnob(chart, j, (x) => Math.round(((width - 16 - x) / (width - 16 - left)) * most));
    setAttributes(knob, {
      "aria-label": `key ${keyName(j)}: distance from the query`,
      "aria-valuenow": key.distance,
      "aria-valuemin": 0,
      "aria-valuemax": 400,
      class: `handle ${view.weights.screening[j] > 0 ? "in" : "out"}`,
    });
    const [stem, circle, text] = knob.children;
    const [x, y] = [px(key.distance), py(fade(key.distance, scene.window))];
    setAttributes(stem, { x1: x, x2: x, y1: base, y2: y });
    setAttributes(circle, { cx: x, cy: y });
    setAttributes(text, { x, y: y + 4.5 });
  });
  windowKnob(
    chart,
    scene,
    px(Math.min(scene.window, most)),
    base,
    (x) => ((width - 16 - x) / (width - 16 - left)) * most,
  );
}

/** @type {(chart: SVGSVGElement, j: number, toDistance: (x: number) => number) => Knob} */
function distanceKnob(chart, j, toDistance) {
  /** @type {(distance: number, gesture: string) => void} */
  const setDistance = (distance, gesture) =>
    editPlaneKey(j, { distance: Math.min(400, Math.max(0, distance)) }, { gesture });
  const shape = [
    svg("line", { class: "stem" }),
    svg("circle", { r: 10, class: "knob" }),
    svg("text", { "text-anchor": "middle", class: "name" }, keyName(j)),
  ];
  const knob = knobElement(
    chart,
    `distance ${j}`,
    shape,
    (x, _y, gesture) => setDistance(knob.toValue?.(x) ?? 0, gesture),
    (event) => {
      const distance = sliderValue(event, store.state.plane.keys[j].distance, 0, 400, event.shiftKey ? 10 : 1);
      if (distance !== null) setDistance(distance, `keys distance ${j}`);
    },
  );
  knob.toValue = toDistance; // depends on the width of the chart, so it is set at every drawing
  return knob;
}

/** @type {(chart: SVGSVGElement, scene: Scene, x: number, base: number, toWindow: (x: number) => number) => void} */
function windowKnob(chart, scene, x, base, toWindow) {
  /** @type {(w: number, gesture: string) => void} */
  const setWindow = (w, gesture) =>
    editPlane(() => ({ window: Math.min(300, Math.max(1.1, Number(w.toFixed(1)))) }), { gesture });
  const knob = knobElement(
    chart,
    "window",
    [svg("rect", { width: 16, height: 16, rx: 3, class: "grip" })],
    (px, _py, gesture) => setWindow(knob.toValue?.(px) ?? scene.window, gesture),
    (event) => {
      const w = sliderValue(event, store.state.plane.window, 1.1, 300, event.shiftKey ? 10 : 1);
      if (w !== null) setWindow(w, "keys window");
    },
  );
  knob.toValue = toWindow;
  setAttributes(knob, {
    "aria-label": "end of the window w",
    "aria-valuenow": scene.window,
    "aria-valuemin": 1.1,
    "aria-valuemax": 300,
  });
  setAttributes(knob.children[0], { x: x - 8, y: base - 8 });
}

/** @type {Record<SceneMechanism, string>} */
const MARKS = {
  softmax: "M-8 0a8 8 0 1 0 16 0a8 8 0 1 0 -16 0Z",
  differential_v2: "M0 -10L10 0L0 10L-10 0Z",
  screening: "M-8 -8H8V8H-8Z",
};
/** @type {Record<SceneMechanism, string>} */
const MARK_NAMES = { softmax: "softmax", differential_v2: "differential", screening: "screening" };

/** @type {(scene: Scene, result: SceneResult) => void} */
function drawValues(scene, view) {
  const chart = svgById("values");
  const width = fitWidth(chart, 350),
    cx = width / 2,
    cy = 206,
    radius = 120;
  /** @type {(value: Point) => Point} */
  const at = ([x, y]) => [cx + radius * x, cy - radius * y];
  const corners = convexHull(scene.keys.map((key) => key.value));
  byId("values-back").replaceChildren(
    svg("line", { x1: cx - radius * 1.15, x2: cx + radius * 1.15, y1: cy, y2: cy, class: "grid" }),
    svg("line", { x1: cx, x2: cx, y1: cy - radius * 1.15, y2: cy + radius * 1.15, class: "grid" }),
    svg("circle", { cx, cy, r: radius, class: "ring" }),
    svg("polygon", { points: corners.map((p) => at(p).join(",")).join(" "), class: "hull" }),
  );
  scene.keys.forEach((key, j) => placeValue(chart, key, j, at, [cx, cy, radius]));
  const front = byId("values-front");
  if (chart.lastChild !== front) chart.append(front);
  front.replaceChildren(
    ...SCENE_MECHANISMS.flatMap((name, k) => {
      const [x, y] = at(view.outputs[name]);
      return [
        svg("path", { d: MARKS[name], transform: `translate(${x} ${y})`, class: `output s${k}` }),
        svg(
          "text",
          { x: 12, y: 18 + 18 * k, class: "note" },
          `${"●◆■"[k]} ${MARK_NAMES[name]} (${view.outputs[name].map(formatNumber).join(", ")})`,
        ),
      ];
    }),
  );
}

/** @type {(chart: SVGSVGElement, key: PlaneKey, j: number, at: (value: Point) => Point, centre: [number, number, number]) => void} */
function placeValue(chart, key, j, at, [cx, cy, radius]) {
  /** @param {number} v */
  const rounded = (v) => Math.min(1, Math.max(-1, Math.round(v * 100) / 100));
  /** @type {MovePointer} */
  const setValue = (x, y, gesture) => editPlaneKey(j, { value: [rounded(x), rounded(y)] }, { gesture });
  const knob = knobElement(
    chart,
    `value ${j}`,
    [svg("circle", { r: 11, class: "knob" }), svg("text", { "text-anchor": "middle", class: "name" }, keyName(j))],
    (px, py, gesture) => {
      const [left, top, size] = knob.circle ?? [cx, cy, radius];
      setValue((px - left) / size, (top - py) / size, gesture);
    },
    (event) => {
      /** @type {Record<string, Point>} */
      const directions = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
      const direction = directions[event.key];
      if (!direction) return;
      event.preventDefault();
      const [x, y] = store.state.plane.keys[j].value,
        step = event.shiftKey ? 0.1 : 0.02;
      setValue(x + direction[0] * step, y + direction[1] * step, `keys value ${j}`);
    },
  );
  knob.circle = [cx, cy, radius]; // changes with the width of the chart
  setAttributes(knob, {
    role: "slider",
    "aria-label": `value of key ${keyName(j)}: arrow keys move it in the plane`,
    "aria-valuenow": key.value[0],
    "aria-valuemin": -1,
    "aria-valuemax": 1,
    "aria-valuetext": `${key.value[0]}, ${key.value[1]}`,
  });
  const [x, y] = at(key.value);
  setAttributes(knob.children[0], { cx: x, cy: y });
  setAttributes(knob.children[1], { x, y: y + 4.5 });
}

/** @type {(scene: Scene, result: SceneResult) => void} */
function drawPlaneSettings(scene, view) {
  /** @type {(id: string, value: number, text: string) => void} */
  const show = (id, value, text) => {
    if (Number(inputById(id).value) !== value) inputById(id).value = String(value);
    setText(byId(`${id}-out`), text);
  };
  show("g-accept", scene.acceptance, formatNumber(scene.acceptance));
  show("g-window", scene.window, String(scene.window));
  show("g-lam", scene.lam, formatNumber(scene.lam));
  inputById("g-rotate").checked = scene.rotate;
  const rows = scene.keys.map((_, j) =>
    html(
      "tr",
      {},
      html("th", { scope: "row" }, keyName(j)),
      ...[view.cosines[j], view.weights.softmax[j], view.weights.differential_v2[j], view.weights.screening[j]].map(
        (v) => html("td", {}, formatNumber(v)),
      ),
    ),
  );
  byId("plane-table").replaceChildren(...rows);
  const zero = view.outputs.screening.every((v) => v === 0);
  const outside = !insideHull(
    view.outputs.differential_v2,
    scene.keys.map((key) => key.value),
  );
  setText(
    byId("plane-note"),
    `${zero ? "Screening accepts no key: its output is exactly zero. " : ""}${outside ? "The output of differential attention is outside the hull of the values." : ""}`,
  );
}

/**
 * Whether a point is inside the convex hull of others, edges included.
 * @type {(point: Point, points: Point[]) => boolean}
 */
function insideHull([x, y], points) {
  const corners = convexHull(points);
  return corners.every(([ax, ay], i) => {
    const [bx, by] = corners[(i + 1) % corners.length];
    return (bx - ax) * (y - ay) - (by - ay) * (x - ax) >= -1e-9;
  });
}

function startGeometry() {
  /** @type {(id: string, edit: (value: number, gesture: string) => void) => void} */
  const onSlider = (id, edit) => {
    byId(id).addEventListener("input", () => edit(Number(inputById(id).value), `range ${id}`));
    byId(id).addEventListener("change", endGesture);
  };
  onSlider("g-accept", (value, gesture) => setDial("screening", screeningDial(), value, gesture));
  onSlider("g-lam", (value, gesture) => setDial("differential_v2", lamDial(), value, gesture));
  onSlider("g-window", (value, gesture) => editPlane(() => ({ window: value }), { gesture }));
  byId("g-rotate").addEventListener("change", () => editPlane(() => ({ rotate: inputById("g-rotate").checked })));
  byId("move-away").addEventListener("click", () => (moving ? stopMoving() : startMoving()));
  byId("plane-add").addEventListener("click", addPlaneKey);
  byId("plane-remove").addEventListener("click", () => removePlaneKey());
}
