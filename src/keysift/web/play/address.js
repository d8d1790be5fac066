// The state in the address, so that a link shows what its sender saw. Anything unreadable in a link is left out.

const short = (value) => String(Number(value.toFixed(4)));

function writeKeys(keys) {
  return keys
    .map(
      ({ name, cosine, second, masked }) =>
        `${name}~${short(cosine)}${second ? `/${short(second)}` : ""}${masked ? "m" : ""}`,
    )
    .join(" ");
}

function readKeys(text) {
  const keys = [];
  for (const part of text.split(" ").slice(0, MOST_KEYS)) {
    const found = /^([A-Z]\d?)~(-?[\d.]+)(?:\/(-?[\d.]+))?(m?)$/.exec(part);
    if (!found || keys.some((key) => key.name === found[1])) continue;
    const cosine = within(found[2], -1, 1),
      second = within(found[3] ?? "0", -1, 1);
    if (cosine !== null && second !== null) keys.push({ name: found[1], cosine, second, masked: found[4] === "m" });
  }
  return keys;
}

function within(text, low, high) {
  const value = Number(text);
  return text !== "" && text !== null && Number.isFinite(value) ? Math.min(high, Math.max(low, value)) : null;
}

function writePart(part, prefix, into) {
  into.set(`${prefix}k`, writeKeys(part.keys));
  if (part.crowd) into.set(`${prefix}n`, part.crowd);
  if (part.level) into.set(`${prefix}level`, short(part.level));
  if (part.temperature !== 1) into.set(`${prefix}t`, short(part.temperature));
  if (part.width !== 4) into.set(`${prefix}d`, part.width);
  if (!part.scaled) into.set(`${prefix}unscaled`, 1);
  const dials = Object.entries(part.dials).map(([name, value]) => `${name}~${short(value)}`);
  if (dials.length) into.set(`${prefix}dials`, dials.join(" "));
}

function readPart(from, prefix) {
  const number = (name, low, high, otherwise) => within(from.get(prefix + name), low, high) ?? otherwise;
  const dials = {};
  for (const part of (from.get(`${prefix}dials`) ?? "").split(" ")) {
    const [name, text] = part.split("~");
    const of = name && mechanism(name.split(".")[0])?.dials.find((known) => known.name === name.split(".")[1]);
    if (of && text !== undefined && within(text, of.low, of.high) !== null) dials[name] = within(text, of.low, of.high);
  }
  return {
    keys: readKeys(from.get(`${prefix}k`) ?? ""),
    crowd: Math.round(number("n", 0, MOST_DISTRACTORS, 0)),
    level: number("level", -0.8, 0.8, 0),
    temperature: number("t", 0.1, 10, 1),
    width: Math.round(number("d", 1, 1024, 4)),
    scaled: !from.has(`${prefix}unscaled`),
    dials,
  };
}

function writePlane({ query, second, window, turning, keys }) {
  const key = ({ angle, distance, value }) => [angle, distance, ...value].map(short).join("_");
  return [[query, second, window].map(short).join("_"), turning ? 1 : 0, ...keys.map(key)].join(" ");
}

function readPlane(text) {
  const [angles, turning, ...rest] = text.split(" ");
  const numbers = (part, count, low, high) => {
    const values = part.split("_").map((one, j) => within(one, low[j], high[j]));
    return values.length === count && !values.includes(null) ? values : null;
  };
  const head = numbers(angles, 3, [-360, -360, 1], [360, 360, 400]);
  const keys = rest.slice(0, 12).map((part) => numbers(part, 4, [-360, 0, -1, -1], [360, 400, 1, 1]));
  if (!head || !keys.length || keys.includes(null)) return startPlane();
  const [query, second, window] = head;
  return {
    query,
    second,
    window,
    turning: turning !== "0",
    keys: keys.map(([angle, distance, x, y]) => ({ angle, distance: Math.round(distance), value: [x, y] })),
  };
}

function toAddress(state) {
  const into = new URLSearchParams();
  into.set("view", state.view);
  into.set("show", state.shown.join(" "));
  into.set("sel", state.selected);
  writePart(state, "", into);
  if (state.pinned) into.set("pin", 1);
  if (state.before) writePart(state.before, "b.", into);
  if (writePlane(state.plane) !== writePlane(startPlane())) into.set("plane", writePlane(state.plane));
  return `#${into}`;
}

function fromAddress(hash) {
  const from = new URLSearchParams(hash.replace(/^#/, ""));
  const state = startState();
  if (!from.has("k")) return null;
  Object.assign(state, readPart(from, ""));
  const shown = (from.get("show") ?? "").split(" ").filter((name) => mechanism(name) && weigher(name));
  if (shown.length) state.shown = [...new Set(shown)];
  if (VIEWS.includes(from.get("view"))) state.view = from.get("view");
  state.selected = state.keys.some(({ name }) => name === from.get("sel"))
    ? from.get("sel")
    : (state.keys[0]?.name ?? "");
  state.pinned = from.has("pin");
  if (from.has("b.k")) state.before = readPart(from, "b.");
  if (from.has("plane")) state.plane = readPlane(from.get("plane"));
  return state;
}

const VIEWS = ["scores", "geometry", "map", "real"];
