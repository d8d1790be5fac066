// Screening in the plane: unit vectors, the rotation that encodes distance (MiPE), and outputs of three mechanisms.

/** @type {SceneMechanism[]} */
const SCENE_MECHANISMS = ["softmax", "differential_v2", "screening"];
const MIPE_MAX_WINDOW = 256; // keys of larger windows are not rotated

/**
 * Rotation between neighbouring positions, in radians.
 * @type {(window: number) => number}
 */
function mipeAngle(window) {
  return window < MIPE_MAX_WINDOW ? (Math.PI * (1 + Math.cos((Math.PI * window) / MIPE_MAX_WINDOW))) / (2 * window) : 0;
}

/**
 * Cosine between a query and a key `distance` positions before it; angles in degrees.
 * @type {(query: number, key: number, distance: number, window: number, rotate?: boolean) => number}
 */
function cosineAt(query, key, distance, window, rotate = true) {
  return Math.cos(((query - key) * Math.PI) / 180 + (rotate ? distance * mipeAngle(window) : 0));
}

/** @type {(w: Float64Array, values: Point[]) => Point} */
function weightedSum(w, values) {
  /** @type {Point} */
  const out = [0, 0];
  for (let j = 0; j < w.length; j++) {
    out[0] += w[j] * values[j][0];
    out[1] += w[j] * values[j][1];
  }
  return out;
}

/** @type {(vector: Point) => Point} */
function unit([x, y]) {
  const length = Math.hypot(x, y);
  return length > 0 ? [x / length, y / length] : [0, 0];
}

/**
 * tanh(|h|) / |h| * h: keeps the direction and bounds the length by one.
 * @type {(vector: Point) => Point}
 */
function tanhNorm([x, y]) {
  const length = Math.hypot(x, y);
  const factor = length > 0 ? Math.tanh(length) / length : 1;
  return [factor * x, factor * y];
}

/**
 * Weights and outputs of softmax, differential attention and screening in the geometry view.
 * @type {(scene: Scene) => SceneResult}
 */
function computeScene(scene) {
  /** @param {number} angle */
  const logits = (angle) =>
    Float64Array.from(scene.keys, (key) => scene.sharpness * cosineAt(angle, key.angle, 0, 1, false));
  const keep = new Uint8Array(scene.keys.length).fill(1);
  const distance = scene.keys.map((key) => key.distance);
  const cosines = Float64Array.from(scene.keys, (key) =>
    cosineAt(scene.query, key.angle, key.distance, scene.window, scene.rotate),
  );
  const values = scene.keys.map((key) => key.value);
  const x = logits(scene.query);
  const row = {
    keep,
    distance,
    second: logits(scene.second),
    lam: scene.lam,
    acceptance: scene.acceptance,
    effective_window: scene.window,
  };
  const weights = {
    softmax: WEIGH.softmax(x, row),
    differential_v2: WEIGH.differential_v2(x, row),
    screening: WEIGH.screening(cosines, row),
  };
  const outputs = {
    softmax: weightedSum(weights.softmax, values),
    differential_v2: weightedSum(weights.differential_v2, values),
    screening: tanhNorm(weightedSum(weights.screening, values.map(unit))),
  };
  return { weights, outputs, cosines };
}

/**
 * Corners of the convex hull, in order.
 * @type {(points: Point[]) => Point[]}
 */
function convexHull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  /** @type {(o: Point, a: Point, b: Point) => number} */
  const turn = (o, a, b) => (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  /** @type {(ordered: Point[]) => Point[]} */
  const half = (ordered) => {
    /** @type {Point[]} */
    const chain = [];
    for (const p of ordered) {
      while (chain.length > 1 && turn(chain[chain.length - 2], chain[chain.length - 1], p) <= 0) chain.pop();
      chain.push(p);
    }
    return chain.slice(0, -1);
  };
  return sorted.length < 3 ? sorted : [...half(sorted), ...half(sorted.reverse())];
}
