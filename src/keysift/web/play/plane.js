// Screening in the plane: unit vectors, the rotation that encodes distance (MiPE), and outputs of three mechanisms.

const MIPE_ENDS = 256; // from this window on nothing is rotated

/** The angle, in radians, by which neighbouring positions are turned against each other. */
function mipeAngle(window) {
  return window < MIPE_ENDS ? (Math.PI * (1 + Math.cos((Math.PI * window) / MIPE_ENDS))) / (2 * window) : 0;
}

/** The cosine of a query and a key that stands `distance` positions before it; angles in degrees. */
function cosineAt(query, key, distance, window, turning = true) {
  return Math.cos(((query - key) * Math.PI) / 180 + (turning ? distance * mipeAngle(window) : 0));
}

function mix(w, values) {
  const out = [0, 0];
  for (let j = 0; j < w.length; j++) {
    out[0] += w[j] * values[j][0];
    out[1] += w[j] * values[j][1];
  }
  return out;
}

function unit([x, y]) {
  const length = Math.hypot(x, y);
  return length > 0 ? [x / length, y / length] : [0, 0];
}

/** tanh(|h|) / |h| * h: the direction stays, the length stays below one. */
function tanhNorm([x, y]) {
  const length = Math.hypot(x, y);
  const factor = length > 0 ? Math.tanh(length) / length : 1;
  return [factor * x, factor * y];
}

/** Weights and output of softmax, differential attention and screening in a scene of the geometry view. */
function lookAt(scene) {
  const plain = (angle) =>
    Float64Array.from(scene.keys, (key) => scene.sharpness * cosineAt(angle, key.angle, 0, 1, false));
  const keep = new Uint8Array(scene.keys.length).fill(1);
  const distance = scene.keys.map((key) => key.distance);
  const cosines = Float64Array.from(scene.keys, (key) =>
    cosineAt(scene.query, key.angle, key.distance, scene.window, scene.turning),
  );
  const values = scene.keys.map((key) => key.value);
  const x = plain(scene.query);
  const row = {
    keep,
    distance,
    second: plain(scene.second),
    lam: scene.lam,
    acceptance: scene.acceptance,
    reach: scene.window,
  };
  const weights = {
    softmax: WEIGH.softmax(x, row),
    differential_v2: WEIGH.differential_v2(x, row),
    screening: WEIGH.screening(cosines, row),
  };
  const outputs = {
    softmax: mix(weights.softmax, values),
    differential_v2: mix(weights.differential_v2, values),
    screening: tanhNorm(mix(weights.screening, values.map(unit))),
  };
  return { weights, outputs, cosines };
}

/** The corners of the convex hull, in order. */
function hull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const left = (o, a, b) => (a[0] - o[0]) * (b[1] - o[1]) - (a[1] - o[1]) * (b[0] - o[0]);
  const half = (ordered) => {
    const chain = [];
    for (const p of ordered) {
      while (chain.length > 1 && left(chain.at(-2), chain.at(-1), p) <= 0) chain.pop();
      chain.push(p);
    }
    return chain.slice(0, -1);
  };
  return sorted.length < 3 ? sorted : [...half(sorted), ...half(sorted.reverse())];
}
