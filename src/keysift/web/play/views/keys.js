// The row of keys: one handle per key, dragged up and down or moved with the keyboard.

const KEYS_HIGH = 230,
  KEYS_LEFT = 34,
  KEYS_TOP = 26,
  KEYS_BOTTOM = 34;
/** @type {Map<string, Handle>} */
const handles = new Map();
/** @type {(cosine: number) => number} */
const keyY = (cosine) => KEYS_TOP + ((1 - cosine) / 2) * (KEYS_HIGH - KEYS_TOP - KEYS_BOTTOM);
/** @type {(y: number) => number} */
const keyCosine = (y) => 1 - (2 * (y - KEYS_TOP)) / (KEYS_HIGH - KEYS_TOP - KEYS_BOTTOM);

/**
 * Horizontal layout: the keys first, then the distractors on the rest of the width.
 * @type {(width: number, keys: number, crowd: number, left?: number) => { each: number, x: (j: number) => number, crowdLeft: number, right: number }}
 */
function keyLayout(width, keys, crowd, left = KEYS_LEFT) {
  const space = width - left - 8;
  const own = crowd ? Math.min(space * 0.6, keys * 64) : Math.min(space, keys * 96);
  const each = keys ? own / keys : 0;
  return {
    each,
    x: (j) => left + (j + 0.5) * each,
    crowdLeft: left + own + (keys && crowd ? 10 : 0),
    right: width - 8,
  };
}

/** @type {(name: string, edit: Partial<Key>, options?: UpdateOptions) => void} */
function editKey(name, edit, options) {
  updateState(
    (state) => ({
      ...state,
      selected: name,
      keys: state.keys.map((key) => (key.name === name ? { ...key, ...edit } : key)),
    }),
    options,
  );
}

/** @type {(name: string, cosine: number, gesture: string) => void} */
function setCosine(name, cosine, gesture) {
  editKey(name, { cosine: Math.min(1, Math.max(-1, Math.round(cosine * 100) / 100)) }, { gesture });
}

/** @type {(cosine?: number) => void} */
function addKey(cosine = 0.3) {
  if (store.state.keys.length >= MAX_KEYS) return announce(`The page shows up to ${MAX_KEYS} keys of your own.`);
  const name = freshName(store.state.keys);
  updateState((state) => ({ ...state, selected: name, keys: [...state.keys, newKey(name, cosine)] }));
}

/** @type {(name: string) => void} */
function duplicateKey(name) {
  const key = store.state.keys.find((other) => other.name === name);
  if (!key) return;
  if (store.state.keys.length >= MAX_KEYS) return announce(`The page shows up to ${MAX_KEYS} keys of your own.`);
  const fresh = freshName(store.state.keys);
  updateState((state) => ({ ...state, selected: fresh, keys: [...state.keys, { ...key, name: fresh }] }));
}

/** @type {(name: string) => void} */
function removeKey(name) {
  const at = store.state.keys.findIndex((key) => key.name === name);
  if (at < 0) return;
  const rest = store.state.keys.filter((key) => key.name !== name);
  const next = rest[Math.min(at, rest.length - 1)]?.name ?? "";
  updateState((state) => ({ ...state, keys: rest, selected: next }));
  requestAnimationFrame(() => requestAnimationFrame(() => (handles.get(next)?.group ?? byId("add")).focus()));
}

/** @type {(name: string) => void} */
function maskKey(name) {
  const key = store.state.keys.find((other) => other.name === name);
  if (key) editKey(name, { masked: !key.masked });
}

/** @type {(event: KeyboardEvent, name: string) => void} */
function onHandleKey(event, name) {
  const key = store.state.keys.find((other) => other.name === name);
  if (!key) return;
  const cosine = sliderValue(event, key.cosine, -1, 1, event.shiftKey ? 0.1 : 0.01);
  if (cosine !== null) return setCosine(name, cosine, `keys ${name}`);
  /** @type {Record<string, (name: string) => void>} */
  const actions = { Delete: removeKey, Backspace: removeKey, m: maskKey, d: duplicateKey };
  const act = actions[event.key];
  if (act && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    act(name);
  }
}

/** @type {(chart: SVGSVGElement, name: string) => Handle} */
function createHandle(chart, name) {
  const parts = {
    hit: svg("rect", { class: "hit" }),
    stem: svg("line", { class: "stem" }),
    knob: svg("circle", { r: 9, class: "knob" }),
    label: svg("text", { "text-anchor": "middle", class: "name" }),
    value: svg("text", { "text-anchor": "middle" }),
  };
  const group = svg(
    "g",
    {
      role: "slider",
      tabindex: 0,
      class: "handle",
      "aria-valuemin": -1,
      "aria-valuemax": 1,
      "aria-orientation": "vertical",
      onkeydown: (event) => onHandleKey(event, name),
      onfocus: () => selectKey(name),
    },
    ...Object.values(parts),
  );
  draggable(group, chart, `drag ${name}`, (_x, y, gesture) => setCosine(name, keyCosine(y), gesture));
  return { group, ...parts };
}

/** @type {(name: string) => void} */
function selectKey(name) {
  if (store.state.selected === name) return;
  store.state = { ...store.state, selected: name };
  redraw();
}

/** @type {(state: State) => void} */
function drawKeys(state) {
  const chart = svgById("keys-chart");
  const width = fitWidth(chart, KEYS_HIGH);
  const { each, x, crowdLeft, right } = keyLayout(width, state.keys.length, state.crowd);
  byId("keys-back").replaceChildren(
    ...axis([-1, -0.5, 0, 0.5, 1], keyY, KEYS_LEFT, right),
    ...thresholdLine(state, right),
    ...crowdMarks(state, crowdLeft, right),
  );
  for (const [name, { group }] of handles) {
    if (!state.keys.some((key) => key.name === name)) {
      group.remove();
      handles.delete(name);
    }
  }
  const front = byId("keys-front");
  state.keys.forEach((key, j) => {
    let handle = handles.get(key.name);
    if (!handle) {
      handle = createHandle(chart, key.name);
      handles.set(key.name, handle);
      front.append(handle.group);
    }
    drawHandle(handle, key, x(j), Math.max(each, 24), state);
  });
}

/** @type {(handle: Handle, key: Key, x: number, each: number, state: State) => void} */
function drawHandle({ group, hit, stem, knob, label, value }, key, x, each, state) {
  const y = keyY(key.cosine),
    logit = key.cosine * sharpness(state);
  setAttributes(group, {
    "aria-label": `key ${key.name}: cosine with the query${key.masked ? ", masked" : ""}`,
    "aria-valuenow": key.cosine,
    "aria-valuetext": `cosine ${formatNumber(key.cosine)}, logit ${formatNumber(logit)}`,
    class: `handle${key.masked ? " masked" : ""}${state.selected === key.name ? " selected" : ""}`,
  });
  setAttributes(hit, { x: x - each / 2, width: each, y: 0, height: KEYS_HIGH });
  setAttributes(stem, { x1: x, x2: x, y1: keyY(0), y2: y });
  setAttributes(knob, { cx: x, cy: y });
  setAttributes(label, { x, y: KEYS_HIGH - 18 });
  setAttributes(value, { x, y: KEYS_HIGH - 4 });
  setText(label, key.name);
  setText(value, each >= 34 ? (key.masked ? "masked" : formatNumber(key.cosine)) : "");
}

/**
 * Line at the smallest cosine that screening accepts.
 * @type {(state: State, right: number) => SVGElement[]}
 */
function thresholdLine(state, right) {
  const name = state.shown.find((name) => mechanism(name).cosine);
  if (!name) return [];
  const r = dialValue(state, name, mechanism(name).dials[0]);
  return [
    svg("line", { x1: KEYS_LEFT, x2: right, y1: keyY(1 - r), y2: keyY(1 - r), class: "threshold" }),
    svg("line", { x1: KEYS_LEFT, x2: KEYS_LEFT + 24, y1: 9, y2: 9, class: "threshold" }),
    svg("text", { x: KEYS_LEFT + 30, y: 13, class: "note" }, `screening accepts above ${formatNumber(1 - r)}`),
  ];
}

/** @type {(state: State, left: number, right: number) => SVGElement[]} */
function crowdMarks(state, left, right) {
  if (!state.crowd) return [];
  const drawn = Math.min(state.crowd, 240);
  let path = "";
  for (let j = 0; j < drawn; j++) {
    const y = keyY(Math.max(-1, Math.min(1, distractor(j, state.level))));
    path += `M${(left + ((j + 0.5) / drawn) * (right - left)).toFixed(1)} ${y.toFixed(1)}h1.5`;
  }
  return [
    svg("path", { d: path, class: "crowd" }),
    svg(
      "text",
      { x: (left + right) / 2, y: KEYS_HIGH - 18, "text-anchor": "middle", class: "note" },
      `${formatCount(state.crowd)} distractors`,
    ),
  ];
}
