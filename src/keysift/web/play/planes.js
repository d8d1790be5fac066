// The other two charts of the geometry view: the window over distance, and values with the outputs they are mixed into.

const WINDOW_HIGH = 180,
  REACH = 1.25; // how far beyond the window the axis goes

function drawWindow(scene, seen) {
  const chart = byId("window-chart");
  const width = sized(chart, WINDOW_HIGH),
    left = 40,
    top = 16,
    base = WINDOW_HIGH - 36;
  const most = Math.max(8, Math.ceil(scene.window * REACH), ...scene.keys.map((key) => key.distance + 1));
  const px = (d) => width - 16 - (d / most) * (width - 16 - left);
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
    set(knob, {
      "aria-label": `key ${letter(j)}: distance from the query`,
      "aria-valuenow": key.distance,
      "aria-valuemin": 0,
      "aria-valuemax": 400,
      class: `handle ${seen.weights.screening[j] > 0 ? "in" : "out"}`,
    });
    const [stem, circle, text] = knob.children;
    const [x, y] = [px(key.distance), py(fade(key.distance, scene.window))];
    set(stem, { x1: x, x2: x, y1: base, y2: y });
    set(circle, { cx: x, cy: y });
    set(text, { x, y: y + 4.5 });
  });
  windowKnob(
    chart,
    scene,
    px(Math.min(scene.window, most)),
    base,
    (x) => ((width - 16 - x) / (width - 16 - left)) * most,
  );
}

function distanceKnob(chart, j, distanceAt) {
  const shape = [
    svg("line", { class: "stem" }),
    svg("circle", { r: 10, class: "knob" }),
    svg("text", { "text-anchor": "middle", class: "name" }, letter(j)),
  ];
  const knob = knobOf(
    chart,
    `distance ${j}`,
    shape,
    (x, y, gesture) => knob.put(knob.distanceAt(x), gesture),
    (event) => {
      const to = keyed(event, store.state.plane.keys[j].distance, 0, 400, event.shiftKey ? 10 : 1);
      if (to !== null) knob.put(to, `keys distance ${j}`);
    },
  );
  knob.distanceAt = distanceAt;
  knob.put = (distance, gesture) => editPlaneKey(j, { distance: Math.min(400, Math.max(0, distance)) }, { gesture });
  return knob;
}

function windowKnob(chart, scene, x, base, windowAt) {
  const put = (w, gesture) =>
    editPlane(() => ({ window: Math.min(300, Math.max(1.1, Number(w.toFixed(1)))) }), { gesture });
  const knob = knobOf(
    chart,
    "window",
    [svg("rect", { width: 16, height: 16, rx: 3, class: "grip" })],
    (px, py, gesture) => put(knob.windowAt(px), gesture),
    (event) => {
      const to = keyed(event, store.state.plane.window, 1.1, 300, event.shiftKey ? 10 : 1);
      if (to !== null) put(to, "keys window");
    },
  );
  knob.windowAt = windowAt;
  set(knob, {
    "aria-label": "end of the window w",
    "aria-valuenow": scene.window,
    "aria-valuemin": 1.1,
    "aria-valuemax": 300,
  });
  set(knob.firstChild, { x: x - 8, y: base - 8 });
}

const MARKS = {
  softmax: "M-8 0a8 8 0 1 0 16 0a8 8 0 1 0 -16 0Z",
  differential_v2: "M0 -10L10 0L0 10L-10 0Z",
  screening: "M-8 -8H8V8H-8Z",
};
const MARK_NAMES = { softmax: "softmax", differential_v2: "differential", screening: "screening" };

function drawValues(scene, seen) {
  const chart = byId("values");
  const width = sized(chart, 350),
    cx = width / 2,
    cy = 206,
    radius = 120;
  const at = ([x, y]) => [cx + radius * x, cy - radius * y];
  const corners = hull(scene.keys.map((key) => key.value));
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
    ...Object.entries(MARKS).flatMap(([name, d], k) => {
      const [x, y] = at(seen.outputs[name]);
      return [
        svg("path", { d, transform: `translate(${x} ${y})`, class: `output s${k}` }),
        svg(
          "text",
          { x: 12, y: 18 + 18 * k, class: "note" },
          `${"●◆■"[k]} ${MARK_NAMES[name]} (${seen.outputs[name].map(number).join(", ")})`,
        ),
      ];
    }),
  );
}

function placeValue(chart, key, j, at, [cx, cy, radius]) {
  const put = (x, y, gesture) =>
    editPlaneKey(j, { value: [x, y].map((v) => Math.min(1, Math.max(-1, Math.round(v * 100) / 100))) }, { gesture });
  const knob = knobOf(
    chart,
    `value ${j}`,
    [svg("circle", { r: 11, class: "knob" }), svg("text", { "text-anchor": "middle", class: "name" }, letter(j))],
    (x, y, gesture) => put((x - knob.centre[0]) / knob.centre[2], (knob.centre[1] - y) / knob.centre[2], gesture),
    (event) => {
      const by = { ArrowUp: [0, 1], ArrowDown: [0, -1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] }[event.key];
      if (!by) return;
      event.preventDefault();
      const [x, y] = store.state.plane.keys[j].value,
        by_ = event.shiftKey ? 0.1 : 0.02;
      put(x + by[0] * by_, y + by[1] * by_, `keys value ${j}`);
    },
  );
  knob.centre = [cx, cy, radius];
  set(knob, {
    role: "slider",
    "aria-label": `value of key ${letter(j)}: arrow keys move it in the plane`,
    "aria-valuenow": key.value[0],
    "aria-valuemin": -1,
    "aria-valuemax": 1,
    "aria-valuetext": `${key.value[0]}, ${key.value[1]}`,
  });
  const [x, y] = at(key.value);
  set(knob.children[0], { cx: x, cy: y });
  set(knob.children[1], { x, y: y + 4.5 });
}

function drawPlaneSettings(state, scene, seen) {
  const put = (id, value, text) => {
    if (Number(byId(id).value) !== value) byId(id).value = value;
    say(byId(`${id}-out`), text);
  };
  put("g-accept", scene.acceptance, number(scene.acceptance));
  put("g-window", scene.window, String(scene.window));
  put("g-lam", scene.lam, number(scene.lam));
  byId("g-turning").checked = scene.turning;
  const rows = scene.keys.map((key, j) =>
    html(
      "tr",
      {},
      html("th", { scope: "row" }, letter(j)),
      ...[seen.cosines[j], seen.weights.softmax[j], seen.weights.differential_v2[j], seen.weights.screening[j]].map(
        (v) => html("td", {}, number(v)),
      ),
    ),
  );
  byId("plane-table").replaceChildren(...rows);
  const zero = seen.outputs.screening.every((v) => v === 0);
  const outside = !inside(
    seen.outputs.differential_v2,
    scene.keys.map((key) => key.value),
  );
  say(
    byId("plane-note"),
    `${zero ? "Screening accepts no key: its output is exactly zero. " : ""}${outside ? "Differential attention has left the hull of the values." : ""}`,
  );
}

/** Whether a point lies in the hull of others, edges included. */
function inside([x, y], points) {
  const corners = hull(points);
  return corners.every(([ax, ay], i) => {
    const [bx, by] = corners[(i + 1) % corners.length];
    return (bx - ax) * (y - ay) - (by - ay) * (x - ax) >= -1e-9;
  });
}

function startGeometry() {
  const ranged = (id, put) => {
    byId(id).addEventListener("input", () => put(Number(byId(id).value), `range ${id}`));
    byId(id).addEventListener("change", endGesture);
  };
  ranged("g-accept", (value, gesture) => setDial("screening", screeningDial(), value, gesture));
  ranged("g-lam", (value, gesture) => setDial("differential_v2", lamDial(), value, gesture));
  ranged("g-window", (value, gesture) => editPlane(() => ({ window: value }), { gesture }));
  byId("g-turning").addEventListener("change", () => editPlane(() => ({ turning: byId("g-turning").checked })));
  byId("walk").addEventListener("click", () => (walking ? stopWalking() : walk()));
  byId("plane-add").addEventListener("click", addPlaneKey);
  byId("plane-remove").addEventListener("click", () => removePlaneKey());
}
