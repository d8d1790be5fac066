// Geometry view: query and keys as arrows on the unit circle, with the acceptance cone of screening.

/** @type {Map<string, Knob>} */
const knobs = new Map();
let moving = 0; // the running animation frame, or 0

/** @type {(edit: (plane: Plane) => Partial<Plane>, options?: UpdateOptions) => void} */
function editPlane(edit, options = {}) {
  updateState((state) => ({ ...state, plane: { ...state.plane, ...edit(state.plane) } }), { compare: false, ...options });
}

/** @type {(j: number, edit: Partial<PlaneKey>, options?: UpdateOptions) => void} */
function editPlaneKey(j, edit, options) {
  editPlane(({ keys }) => ({ keys: keys.map((key, i) => (i === j ? { ...key, ...edit } : key)) }), options);
}

const screeningDial = () => mechanism("screening").dials[0];
const lamDial = () => mechanism("differential_v2").dials[0];

/** @type {(state: State) => Scene} */
function currentScene(state) {
  return {
    ...state.plane,
    acceptance: dialValue(state, "screening", screeningDial()),
    lam: dialValue(state, "differential_v2", lamDial()),
    sharpness: sharpness(state),
  };
}

/** @type {(name: string, of: Dial, value: number, gesture: string) => void} */
function setDial(name, of, value, gesture) {
  updateState((state) => ({ ...state, dials: { ...state.dials, [`${name}.${of.name}`]: value } }), { gesture });
}

/**
 * A draggable knob. It stays in the page between drawings, so that it keeps the focus.
 * @type {(chart: SVGSVGElement, id: string, shape: SVGElement[], move: MovePointer, key: (event: KeyboardEvent) => void) => Knob}
 */
function knobElement(chart, id, shape, move, key) {
  if (!knobs.has(id)) {
    const element = svg("g", { tabindex: 0, role: "slider", class: "handle" }, ...shape);
    draggable(element, chart, id, move);
    element.addEventListener("keydown", key);
    knobs.set(id, element);
    chart.append(element);
  }
  return /** @type {Knob} */ (knobs.get(id));
}

/**
 * Angle of a point in the chart of the circle; the centre depends on the width.
 * @type {(chart: SVGSVGElement, x: number, y: number) => number}
 */
function degreesIn(chart, x, y) {
  return Math.round((Math.atan2(160 - y, x - chart.viewBox.baseVal.width / 2) * 180) / Math.PI);
}

/** @type {(state: State) => void} */
function drawGeometry(state) {
  const scene = currentScene(state);
  const view = computeScene(scene);
  for (const [id, element] of knobs) {
    const j = Number(id.split(" ")[1]);
    if (j >= scene.keys.length) [element.remove(), knobs.delete(id)];
  }
  drawCircle(scene, view);
  drawWindow(scene, view);
  drawValues(scene, view);
  drawPlaneSettings(scene, view);
}

/** @type {(scene: Scene, result: SceneResult) => void} */
function drawCircle(scene, view) {
  const chart = svgById("circle");
  const width = fitWidth(chart, 320),
    cx = width / 2,
    cy = 160,
    radius = 128;
  /** @type {(angle: number, r?: number) => Point} */
  const at = (angle, r = 1) => [
    cx + radius * r * Math.cos((angle * Math.PI) / 180),
    cy - radius * r * Math.sin((angle * Math.PI) / 180),
  ];
  const half = (Math.acos(Math.max(-1, 1 - scene.acceptance)) * 180) / Math.PI;
  const [a, b] = [at(scene.query + half), at(scene.query - half)];
  byId("circle-back").replaceChildren(
    svg("circle", { cx, cy, r: radius, class: "ring" }),
    svg("path", { d: `M${cx} ${cy}L${a}A${radius} ${radius} 0 ${half > 90 ? 1 : 0} 1 ${b}Z`, class: "cone" }),
    ...groupMarks(scene, at, radius),
    ...scene.keys.flatMap((key, j) => keyArrow(scene, view, key, j, at, [cx, cy])),
  );
  const query = arrowKnob(chart, "query", "Q", (angle, gesture) => editPlane(() => ({ query: angle }), { gesture }));
  placeKnob(query, at(scene.query, 0.62), "query Q: angle in degrees", scene.query, [cx, cy]);
  const second = arrowKnob(chart, "second", "Q2", (angle, gesture) =>
    editPlane(() => ({ second: angle }), { gesture }),
  );
  for (const arrow of [query, second]) setAttributes(arrow, { class: "handle query" });
  placeKnob(second, at(scene.second, 0.62), "second query of differential attention: angle in degrees", scene.second, [
    cx,
    cy,
  ]);
  scene.keys.forEach((key, j) => {
    const knob = arrowKnob(chart, `key ${j}`, keyName(j), (angle, gesture) => editPlaneKey(j, { angle }, { gesture }));
    placeKnob(knob, at(key.angle), `key ${keyName(j)}: angle in degrees`, key.angle, [cx, cy]);
    setAttributes(knob, { class: `handle ${view.weights.screening[j] > 0 ? "in" : "out"}` });
  });
  coneKnob(chart, scene, at(scene.query + half, 0.8));
}

/**
 * Direction of the key after MiPE rotates it by its distance, if that differs.
 * @type {(scene: Scene, result: SceneResult, key: PlaneKey, j: number, at: (angle: number, r?: number) => Point, centre: Point) => SVGElement[]}
 */
function keyArrow(scene, view, key, j, at, [cx, cy]) {
  const rotated = key.angle - (scene.rotate ? (key.distance * mipeAngle(scene.window) * 180) / Math.PI : 0);
  if (Math.abs(rotated - key.angle) < 0.01) return [];
  const [x, y] = at(rotated, 0.8);
  return [
    svg("line", { x1: cx, y1: cy, x2: x, y2: y, class: view.weights.screening[j] > 0 ? "rotated in" : "rotated" }),
    svg("text", { x, y: y + 4, "text-anchor": "middle", class: "note" }, `${keyName(j)}′`),
  ];
}

/** @type {(chart: SVGSVGElement, id: string, label: string, setAngle: (angle: number, gesture: string) => void) => Knob} */
function arrowKnob(chart, id, label, setAngle) {
  const shape = [
    svg("line", { class: "arrow" }),
    svg("circle", { r: 12, class: "knob" }),
    svg("text", { "text-anchor": "middle", class: "name" }, label),
  ];
  return knobElement(
    chart,
    id,
    shape,
    (x, y, gesture) => setAngle(degreesIn(chart, x, y), gesture),
    (event) => {
      const now = Number(knobs.get(id)?.getAttribute("aria-valuenow"));
      const angle = sliderValue(event, now, -180, 180, event.shiftKey ? 10 : 1);
      if (angle !== null) setAngle(angle, `keys ${id}`);
      else if (event.key === "Delete" && id.startsWith("key ")) removePlaneKey(Number(id.split(" ")[1]));
    },
  );
}

/** @type {(group: Knob, at: Point, label: string, value: number, from: Point) => void} */
function placeKnob(group, [x, y], label, value, from) {
  const wrapped = ((((value + 180) % 360) + 360) % 360) - 180;
  setAttributes(group, {
    "aria-label": label,
    "aria-valuenow": wrapped,
    "aria-valuemin": -180,
    "aria-valuemax": 180,
    "aria-valuetext": `${wrapped} degrees`,
  });
  const [line, knob, text] = group.children;
  setAttributes(line, { x1: from[0], y1: from[1], x2: x, y2: y });
  setAttributes(knob, { cx: x, cy: y });
  setAttributes(text, { x, y: y + 4.5 });
}

/** @type {(chart: SVGSVGElement, scene: Scene, at: Point) => void} */
function coneKnob(chart, scene, [x, y]) {
  /** @type {(r: number, gesture: string) => void} */
  const setWidth = (r, gesture) =>
    setDial("screening", screeningDial(), Math.min(1, Math.max(0.01, Number(r.toFixed(3)))), gesture);
  const knob = knobElement(
    chart,
    "cone",
    [svg("rect", { width: 16, height: 16, rx: 3, class: "grip" })],
    (px, py, gesture) => {
      const away = ((degreesIn(chart, px, py) - store.state.plane.query) * Math.PI) / 180;
      setWidth(1 - Math.cos(away), gesture);
    },
    (event) => {
      const width = sliderValue(event, currentScene(store.state).acceptance, 0.01, 1, event.shiftKey ? 0.1 : 0.01);
      if (width !== null) setWidth(width, "keys cone");
    },
  );
  setAttributes(knob, {
    "aria-label": "edge of the acceptance cone: acceptance width r",
    "aria-valuenow": scene.acceptance,
    "aria-valuemin": 0.01,
    "aria-valuemax": 1,
  });
  setAttributes(knob.children[0], { x: x - 8, y: y - 8 });
}

function addPlaneKey() {
  if (store.state.plane.keys.length >= 12) return announce("The plane shows up to 12 keys.");
  editPlane(({ keys, query }) => ({ keys: [...keys, { angle: query - 20, distance: 3, value: [0.2, 0.6] }] }));
}

/** @type {(j?: number) => void} */
function removePlaneKey(j = store.state.plane.keys.length - 1) {
  if (store.state.plane.keys.length > 1) editPlane(({ keys }) => ({ keys: keys.filter((_, i) => i !== j) }));
}

/** Move every key one position away per step: MiPE rotates it and the window fades it. */
function startMoving() {
  stopMoving();
  const reduced = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const farthest = Math.ceil(store.state.plane.window) + 2;
  let last = 0;
  /** @param {number} now */
  const step = (now) => {
    if (now - last > (reduced ? 700 : 160)) {
      last = now;
      editPlane(
        ({ keys }) => ({
          keys: keys.map((key) => ({ ...key, distance: key.distance >= farthest ? 0 : key.distance + 1 })),
        }),
        { gesture: "move away" },
      );
    }
    moving = requestAnimationFrame(step);
  };
  moving = requestAnimationFrame(step);
  setText(byId("move-away"), "Stop");
}

function stopMoving() {
  cancelAnimationFrame(moving);
  moving = 0;
  setText(byId("move-away"), "Move the keys away");
}
