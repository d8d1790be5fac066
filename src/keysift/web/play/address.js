// The state in the address of the page, so that a link shows what its sender saw. Invalid parts are ignored.

/** @type {(value: number) => string} */
const shortNumber = (value) => String(Number(value.toFixed(4)));

/** @type {(keys: Key[]) => string} */
function writeKeys(keys) {
  return keys
    .map(
      ({ name, cosine, second, masked }) =>
        `${name}~${shortNumber(cosine)}${second ? `/${shortNumber(second)}` : ""}${masked ? "m" : ""}`,
    )
    .join(" ");
}

/** @type {(text: string) => Key[]} */
function readKeys(text) {
  /** @type {Key[]} */
  const keys = [];
  for (const part of text.split(" ").slice(0, MAX_KEYS)) {
    const match = /^([A-Z]\d?)~(-?[\d.]+)(?:\/(-?[\d.]+))?(m?)$/.exec(part);
    if (!match || keys.some((key) => key.name === match[1])) continue;
    const cosine = parseWithin(match[2], -1, 1),
      second = parseWithin(match[3] ?? "0", -1, 1);
    if (cosine !== null && second !== null) keys.push({ name: match[1], cosine, second, masked: match[4] === "m" });
  }
  return keys;
}

/** @type {(text: string | null, low: number, high: number) => number | null} */
function parseWithin(text, low, high) {
  const value = Number(text);
  return text !== "" && text !== null && Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : null;
}

/** @type {(inputs: WeightInputs, prefix: string, into: URLSearchParams) => void} */
function writeInputs(inputs, prefix, into) {
  into.set(`${prefix}k`, writeKeys(inputs.keys));
  if (inputs.crowd) into.set(`${prefix}n`, String(inputs.crowd));
  if (inputs.level) into.set(`${prefix}level`, shortNumber(inputs.level));
  if (inputs.temperature !== 1) into.set(`${prefix}t`, shortNumber(inputs.temperature));
  if (inputs.width !== 4) into.set(`${prefix}d`, String(inputs.width));
  if (!inputs.scaled) into.set(`${prefix}unscaled`, "1");
  const dials = Object.entries(inputs.dials).map(([name, value]) => `${name}~${shortNumber(value)}`);
  if (dials.length) into.set(`${prefix}dials`, dials.join(" "));
}

/** @type {(from: URLSearchParams, prefix: string) => WeightInputs} */
function readInputs(from, prefix) {
  /** @type {(name: string, low: number, high: number, otherwise: number) => number} */
  const read = (name, low, high, otherwise) => parseWithin(from.get(prefix + name), low, high) ?? otherwise;
  /** @type {Record<string, number>} */
  const dials = {};
  for (const part of (from.get(`${prefix}dials`) ?? "").split(" ")) {
    const [name, text] = part.split("~");
    const [owner, dialName] = name.split(".");
    const of = findMechanism(owner)?.dials.find((known) => known.name === dialName);
    const value = of && text !== undefined ? parseWithin(text, of.low, of.high) : null;
    if (value !== null) dials[name] = value;
  }
  return {
    keys: readKeys(from.get(`${prefix}k`) ?? ""),
    crowd: Math.round(read("n", 0, MAX_DISTRACTORS, 0)),
    level: read("level", -0.8, 0.8, 0),
    temperature: read("t", 0.1, 10, 1),
    width: Math.round(read("d", 1, 1024, 4)),
    scaled: !from.has(`${prefix}unscaled`),
    dials,
  };
}

/** @type {(plane: Plane) => string} */
function writePlane({ query, second, window, rotate, keys }) {
  /** @param {PlaneKey} key */
  const key = ({ angle, distance, value }) => [angle, distance, ...value].map(shortNumber).join("_");
  return [[query, second, window].map(shortNumber).join("_"), rotate ? 1 : 0, ...keys.map(key)].join(" ");
}

/** @type {(text: string) => Plane} */
function readPlane(text) {
  const [angles, rotate, ...rest] = text.split(" ");
  /** @type {(part: string, low: number[], high: number[]) => number[] | null} */
  const numbers = (part, low, high) => {
    const values = part.split("_").map((item, j) => parseWithin(item, low[j], high[j]));
    const valid = values.filter((value) => value !== null);
    return values.length === low.length && valid.length === low.length ? valid : null;
  };
  const head = numbers(angles, [-360, -360, 1], [360, 360, 400]);
  const keys = rest.slice(0, 12).map((part) => numbers(part, [-360, 0, -1, -1], [360, 400, 1, 1]));
  const valid = keys.filter((key) => key !== null);
  if (!head || !keys.length || valid.length < keys.length) return initialPlane();
  const [query, second, window] = head;
  return {
    query,
    second,
    window,
    rotate: rotate !== "0",
    keys: valid.map(([angle, distance, x, y]) => ({ angle, distance: Math.round(distance), value: [x, y] })),
  };
}

/** @type {(state: State) => string} */
function toHash(state) {
  const into = new URLSearchParams();
  into.set("view", state.view);
  into.set("show", state.shown.join(" "));
  into.set("sel", state.selected);
  writeInputs(state, "", into);
  if (state.pinned) into.set("pin", "1");
  if (state.before) writeInputs(state.before, "b.", into);
  if (writePlane(state.plane) !== writePlane(initialPlane())) into.set("plane", writePlane(state.plane));
  return `#${into}`;
}

/** @type {(hash: string) => State | null} */
function fromHash(hash) {
  const from = new URLSearchParams(hash.replace(/^#/, ""));
  const state = initialState();
  if (!from.has("k")) return null;
  Object.assign(state, readInputs(from, ""));
  const names = (from.get("show") ?? "").split(" ").filter((name) => findMechanism(name) && weightFunction(name));
  if (names.length) state.shown = [...new Set(names)];
  state.view = VIEWS.find((view) => view === from.get("view")) ?? state.view;
  const selected = state.keys.find(({ name }) => name === from.get("sel")) ?? state.keys[0];
  state.selected = selected?.name ?? "";
  state.pinned = from.has("pin");
  if (from.has("b.k")) state.before = readInputs(from, "b.");
  const plane = from.get("plane");
  if (plane !== null) state.plane = readPlane(plane);
  return state;
}

/** @type {View[]} */
const VIEWS = ["scores", "geometry", "map", "real"];
