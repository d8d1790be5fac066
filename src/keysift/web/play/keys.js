// The row of keys: one handle for each, dragged up and down or moved by the keyboard, and the editor of the chosen one.

const KEYS_HIGH = 230,
  KEYS_LEFT = 34,
  KEYS_TOP = 26,
  KEYS_BOTTOM = 34;
const handles = new Map();
const keyY = (cosine) => KEYS_TOP + ((1 - cosine) / 2) * (KEYS_HIGH - KEYS_TOP - KEYS_BOTTOM);
const keyCosine = (y) => 1 - (2 * (y - KEYS_TOP)) / (KEYS_HIGH - KEYS_TOP - KEYS_BOTTOM);

/** Where keys stand: own keys first, then the crowd on what is left of the width. */
function slots(width, keys, crowd, left = KEYS_LEFT) {
  const room = width - left - 8;
  const own = crowd ? Math.min(room * 0.6, keys * 64) : Math.min(room, keys * 96);
  const each = keys ? own / keys : 0;
  return {
    each,
    x: (j) => left + (j + 0.5) * each,
    crowdLeft: left + own + (keys && crowd ? 10 : 0),
    right: width - 8,
  };
}

function editKey(name, edit, options) {
  change(
    (state) => ({
      ...state,
      selected: name,
      keys: state.keys.map((key) => (key.name === name ? { ...key, ...edit } : key)),
    }),
    options,
  );
}

function setCosine(name, cosine, gesture) {
  editKey(name, { cosine: Math.min(1, Math.max(-1, Math.round(cosine * 100) / 100)) }, { gesture });
}

function addKey(cosine = 0.3) {
  if (store.state.keys.length >= MOST_KEYS) return announce(`The page shows up to ${MOST_KEYS} keys of your own.`);
  const name = freshName(store.state.keys);
  change((state) => ({ ...state, selected: name, keys: [...state.keys, keyOf(name, cosine)] }));
}

function duplicateKey(name) {
  const key = store.state.keys.find((other) => other.name === name);
  if (!key) return;
  if (store.state.keys.length >= MOST_KEYS) return announce(`The page shows up to ${MOST_KEYS} keys of your own.`);
  const fresh = freshName(store.state.keys);
  change((state) => ({ ...state, selected: fresh, keys: [...state.keys, { ...key, name: fresh }] }));
}

function removeKey(name) {
  const at = store.state.keys.findIndex((key) => key.name === name);
  if (at < 0) return;
  const rest = store.state.keys.filter((key) => key.name !== name);
  const next = rest[Math.min(at, rest.length - 1)]?.name ?? "";
  change((state) => ({ ...state, keys: rest, selected: next }));
  requestAnimationFrame(() => requestAnimationFrame(() => (handles.get(next)?.group ?? byId("add")).focus()));
}

function maskKey(name) {
  const key = store.state.keys.find((other) => other.name === name);
  if (key) editKey(name, { masked: !key.masked });
}

function handleKey(event, name) {
  const key = store.state.keys.find((other) => other.name === name);
  const to = keyed(event, key.cosine, -1, 1, event.shiftKey ? 0.1 : 0.01);
  if (to !== null) return setCosine(name, to, `keys ${name}`);
  const act = { Delete: removeKey, Backspace: removeKey, m: maskKey, d: duplicateKey }[event.key];
  if (act && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    act(name);
  }
}

function handle(chart, name) {
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
      onkeydown: (event) => handleKey(event, name),
      onfocus: () => select(name),
    },
    ...Object.values(parts),
  );
  draggable(group, chart, `drag ${name}`, (x, y, gesture) => setCosine(name, keyCosine(y), gesture));
  return { group, ...parts };
}

function select(name) {
  if (store.state.selected === name) return;
  store.state = { ...store.state, selected: name };
  redraw();
}

function drawKeys(state) {
  const chart = byId("keys-chart");
  const width = sized(chart, KEYS_HIGH);
  const { each, x, crowdLeft, right } = slots(width, state.keys.length, state.crowd);
  byId("keys-back").replaceChildren(
    ...axis([-1, -0.5, 0, 0.5, 1], keyY, KEYS_LEFT, right),
    ...threshold(state, right),
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
    if (!handles.has(key.name)) {
      handles.set(key.name, handle(chart, key.name));
      front.append(handles.get(key.name).group);
    }
    drawHandle(handles.get(key.name), key, x(j), Math.max(each, 24), state);
  });
}

function drawHandle({ group, hit, stem, knob, label, value }, key, x, each, state) {
  const y = keyY(key.cosine),
    logit = key.cosine * sharpness(state);
  set(group, {
    "aria-label": `key ${key.name}: cosine with the query${key.masked ? ", masked" : ""}`,
    "aria-valuenow": key.cosine,
    "aria-valuetext": `cosine ${number(key.cosine)}, logit ${number(logit)}`,
    class: `handle${key.masked ? " masked" : ""}${state.selected === key.name ? " selected" : ""}`,
  });
  set(hit, { x: x - each / 2, width: each, y: 0, height: KEYS_HIGH });
  set(stem, { x1: x, x2: x, y1: keyY(0), y2: y });
  set(knob, { cx: x, cy: y });
  set(label, { x, y: KEYS_HIGH - 18 });
  set(value, { x, y: KEYS_HIGH - 4 });
  say(label, key.name);
  say(value, each >= 34 ? (key.masked ? "masked" : number(key.cosine)) : "");
}

/** Where screening stops accepting. */
function threshold(state, right) {
  const shown = state.shown.find((name) => mechanism(name).cosine);
  if (!shown) return [];
  const r = dial(state, shown, mechanism(shown).dials[0]);
  return [
    svg("line", { x1: KEYS_LEFT, x2: right, y1: keyY(1 - r), y2: keyY(1 - r), class: "threshold" }),
    svg("line", { x1: KEYS_LEFT, x2: KEYS_LEFT + 24, y1: 9, y2: 9, class: "threshold" }),
    svg("text", { x: KEYS_LEFT + 30, y: 13, class: "note" }, `screening accepts above ${number(1 - r)}`),
  ];
}

function crowdMarks(state, left, right) {
  if (!state.crowd) return [];
  const shownOnes = Math.min(state.crowd, 240);
  let path = "";
  for (let j = 0; j < shownOnes; j++) {
    const y = keyY(Math.max(-1, Math.min(1, distractor(j, state.level))));
    path += `M${(left + ((j + 0.5) / shownOnes) * (right - left)).toFixed(1)} ${y.toFixed(1)}h1.5`;
  }
  return [
    svg("path", { d: path, class: "crowd" }),
    svg(
      "text",
      { x: (left + right) / 2, y: KEYS_HIGH - 18, "text-anchor": "middle", class: "note" },
      `${count(state.crowd)} distractors`,
    ),
  ];
}
