// The geometry view: arrows on the unit circle with screening's cone, its window over distance, and values in the plane.

const planeParts = new Map();
let walking = 0;

function editPlane(edit, options = {}) {
  change((state) => ({ ...state, plane: { ...state.plane, ...edit(state.plane) } }), { compare: false, ...options });
}

function editPlaneKey(j, edit, options) {
  editPlane(({ keys }) => ({ keys: keys.map((key, i) => (i === j ? { ...key, ...edit } : key)) }), options);
}

const screeningDial = () => mechanism("screening").dials[0];
const lamDial = () => mechanism("differential_v2").dials[0];

function sceneOf(state) {
  return {
    ...state.plane,
    acceptance: dial(state, "screening", screeningDial()),
    lam: dial(state, "differential_v2", lamDial()),
    sharpness: sharpness(state),
  };
}

function setDial(name, of, value, gesture) {
  change((state) => ({ ...state, dials: { ...state.dials, [`${name}.${of.name}`]: value } }), { gesture });
}

/** A thing to drag that stays in place between drawings, so that it keeps the focus. */
function knobOf(chart, id, shape, move, key) {
  if (!planeParts.has(id)) {
    const element = svg("g", { tabindex: 0, role: "slider", class: "handle" }, ...shape);
    draggable(element, chart, id, move);
    element.addEventListener("keydown", key);
    planeParts.set(id, element);
    chart.append(element);
  }
  return planeParts.get(id);
}

/** The angle of a point of the circle's chart, whose middle moves with its width. */
function degreesIn(chart, x, y) {
  return Math.round((Math.atan2(160 - y, x - chart.viewBox.baseVal.width / 2) * 180) / Math.PI);
}

function drawGeometry(state) {
  const scene = sceneOf(state);
  const seen = lookAt(scene);
  for (const [id, element] of planeParts) {
    const j = Number(id.split(" ")[1]);
    if (j >= scene.keys.length) [element.remove(), planeParts.delete(id)];
  }
  drawCircle(scene, seen);
  drawWindow(scene, seen);
  drawValues(scene, seen);
  drawPlaneSettings(state, scene, seen);
}

function drawCircle(scene, seen) {
  const chart = byId("circle");
  const width = sized(chart, 320),
    cx = width / 2,
    cy = 160,
    radius = 128;
  const at = (angle, r = 1) => [
    cx + radius * r * Math.cos((angle * Math.PI) / 180),
    cy - radius * r * Math.sin((angle * Math.PI) / 180),
  ];
  const half = (Math.acos(Math.max(-1, 1 - scene.acceptance)) * 180) / Math.PI;
  const [a, b] = [at(scene.query + half), at(scene.query - half)];
  byId("circle-back").replaceChildren(
    svg("circle", { cx, cy, r: radius, class: "ring" }),
    svg("path", { d: `M${cx} ${cy}L${a}A${radius} ${radius} 0 ${half > 90 ? 1 : 0} 1 ${b}Z`, class: "cone" }),
    ...scene.keys.flatMap((key, j) => keyArrow(scene, seen, key, j, at, [cx, cy])),
  );
  const query = arrowKnob(chart, "query", "Q", (angle, gesture) => editPlane(() => ({ query: angle }), { gesture }));
  placeKnob(query, at(scene.query, 0.62), "query Q: angle in degrees", scene.query, [cx, cy]);
  const second = arrowKnob(chart, "second", "Q2", (angle, gesture) =>
    editPlane(() => ({ second: angle }), { gesture }),
  );
  for (const arrow of [query, second]) set(arrow, { class: "handle query" });
  placeKnob(second, at(scene.second, 0.62), "second query of differential attention: angle in degrees", scene.second, [
    cx,
    cy,
  ]);
  scene.keys.forEach((key, j) => {
    const knob = arrowKnob(chart, `key ${j}`, letter(j), (angle, gesture) => editPlaneKey(j, { angle }, { gesture }));
    placeKnob(knob, at(key.angle), `key ${letter(j)}: angle in degrees`, key.angle, [cx, cy]);
    set(knob, { class: `handle ${seen.weights.screening[j] > 0 ? "in" : "out"}` });
  });
  coneKnob(chart, scene, at(scene.query + half, 0.8));
}

/** Where the key points once MiPE has turned it by its distance, if that is elsewhere. */
function keyArrow(scene, seen, key, j, at, [cx, cy]) {
  const turned = key.angle - (scene.turning ? (key.distance * mipeAngle(scene.window) * 180) / Math.PI : 0);
  if (Math.abs(turned - key.angle) < 0.01) return [];
  const [x, y] = at(turned, 0.8);
  return [
    svg("line", { x1: cx, y1: cy, x2: x, y2: y, class: seen.weights.screening[j] > 0 ? "turned in" : "turned" }),
    svg("text", { x, y: y + 4, "text-anchor": "middle", class: "note" }, `${letter(j)}′`),
  ];
}

function arrowKnob(chart, id, label, turn) {
  const shape = [
    svg("line", { class: "arrow" }),
    svg("circle", { r: 12, class: "knob" }),
    svg("text", { "text-anchor": "middle", class: "name" }, label),
  ];
  return knobOf(
    chart,
    id,
    shape,
    (x, y, gesture) => turn(degreesIn(chart, x, y), gesture),
    (event) => {
      const now = Number(event.currentTarget.getAttribute("aria-valuenow"));
      const to = keyed(event, now, -180, 180, event.shiftKey ? 10 : 1);
      if (to !== null) turn(to, `keys ${id}`);
      else if (event.key === "Delete" && id.startsWith("key ")) removePlaneKey(Number(id.split(" ")[1]));
    },
  );
}

function placeKnob(group, [x, y], label, value, from) {
  const wrapped = ((((value + 180) % 360) + 360) % 360) - 180;
  set(group, {
    "aria-label": label,
    "aria-valuenow": wrapped,
    "aria-valuemin": -180,
    "aria-valuemax": 180,
    "aria-valuetext": `${wrapped} degrees`,
  });
  const [line, knob, text] = group.children;
  set(line, { x1: from[0], y1: from[1], x2: x, y2: y });
  set(knob, { cx: x, cy: y });
  set(text, { x, y: y + 4.5 });
}

function coneKnob(chart, scene, [x, y]) {
  const put = (r, gesture) =>
    setDial("screening", screeningDial(), Math.min(1, Math.max(0.01, Number(r.toFixed(3)))), gesture);
  const knob = knobOf(
    chart,
    "cone",
    [svg("rect", { width: 16, height: 16, rx: 3, class: "grip" })],
    (px, py, gesture) => {
      const away = ((degreesIn(chart, px, py) - store.state.plane.query) * Math.PI) / 180;
      put(1 - Math.cos(away), gesture);
    },
    (event) => {
      const to = keyed(event, sceneOf(store.state).acceptance, 0.01, 1, event.shiftKey ? 0.1 : 0.01);
      if (to !== null) put(to, "keys cone");
    },
  );
  set(knob, {
    "aria-label": "edge of the acceptance cone: acceptance width r",
    "aria-valuenow": scene.acceptance,
    "aria-valuemin": 0.01,
    "aria-valuemax": 1,
  });
  set(knob.firstChild, { x: x - 8, y: y - 8 });
}

function addPlaneKey() {
  if (store.state.plane.keys.length >= 12) return announce("The plane shows up to 12 keys.");
  editPlane(({ keys, query }) => ({ keys: [...keys, { angle: query - 20, distance: 3, value: [0.2, 0.6] }] }));
}

function removePlaneKey(j = store.state.plane.keys.length - 1) {
  if (store.state.plane.keys.length > 1) editPlane(({ keys }) => ({ keys: keys.filter((_, i) => i !== j) }));
}

/** One step further away for every key; MiPE turns them, the window fades them. */
function walk() {
  stopWalking();
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const furthest = Math.ceil(store.state.plane.window) + 2;
  let last = 0;
  const go = (now) => {
    if (now - last > (still ? 700 : 160)) {
      last = now;
      editPlane(
        ({ keys }) => ({
          keys: keys.map((key) => ({ ...key, distance: key.distance >= furthest ? 0 : key.distance + 1 })),
        }),
        { gesture: "walk" },
      );
    }
    walking = requestAnimationFrame(go);
  };
  walking = requestAnimationFrame(go);
  say(byId("walk"), "Stop");
}

function stopWalking() {
  cancelAnimationFrame(walking);
  walking = 0;
  say(byId("walk"), "Walk the keys away");
}
