// Draw the page and react to the reader: selection of heads, queries and keys, keyboard, address.

/** @type {(place: Place, scroll: boolean, query?: number, key?: number) => void} */
function showHead(place, scroll, query, key) {
  const other = place.map !== view.map || place.model !== view.model;
  Object.assign(view, { model: place.model, map: place.map, layer: place.layer, head: place.head });
  if (other) {
    view.removed = new Set();
    view.query = (currentMap()?.meta.tokens.length ?? 1) - 1;
    view.key = null;
  }
  if (query !== undefined) view.query = query;
  if (key !== undefined) view.key = key;
  drawAll();
  if (scroll) byId("head").scrollIntoView({ block: "start", behavior: "instant" });
}

/** @type {(model: number) => void} */
function showModel(model) {
  const { layer, head } = opening(model);
  showHead({ model, map: 0, layer, head }, false);
}

/** The head that the first finding is about. @type {(model: number) => { layer: number, head: number }} */
function opening(model) {
  const named = storyOf(CONTENT.records[model]).find((f) => f.heads.length)?.heads[0];
  const first = CONTENT.records[model].heads[0];
  return named ? { layer: named[0], head: named[1] } : { layer: first?.layer ?? 0, head: first?.head ?? 0 };
}

/** @type {(query: number, key: number | null) => void} */
function selectCell(query, key) {
  if (query !== view.query) view.removed = new Set([...view.removed].filter((k) => k <= query));
  view.query = query;
  view.key = key !== null && key <= query ? key : null;
  reveal();
  drawQuery();
  drawPanes();
  saveAddress();
}

/** @type {(step: number) => void} */
function stepHead(step) {
  const heads = record().heads;
  const at = heads.findIndex((h) => h.layer === view.layer && h.head === view.head);
  const next = heads[(at + step + heads.length) % heads.length];
  showHead({ model: view.model, map: view.map, layer: next.layer, head: next.head }, false);
}

function saveAddress() {
  if (location.protocol !== "about:") history.replaceState(null, "", writeAddress()); // the frame of a notebook has none
}

function drawHeader() {
  const { model, texts } = record();
  const all = CONTENT.records.map((r) => r.model.name);
  const names = CONTENT.film ? [`${all[0].replace(/, step [0-9,]+$/, "")} during training`] : all;
  const title = `Attention in ${names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names[names.length - 1]}` : names[0]}`;
  setText(byId("title"), title);
  document.title = title;
  const read = texts.map((t) => `${t.name}: ${formatCount(t.tokens)} tokens, loss ${formatValue(t.loss)}${t.bits_per_byte === null ? "" : ` (${formatValue(t.bits_per_byte)} bits per byte)`}, “${t.beginning}…”`);
  const mechanisms = [...new Set(model.mechanisms)].join(", ");
  const name = all.length > 1 ? `${model.name}: ` : "";
  setText(byId("about"), `${name}${model.family}, ${formatCount(model.parameters)} parameters, ${model.heads.length} layers, ${record().heads.length} heads, ${mechanisms}. ${read.join(" · ")}`);
}

function drawHeadTitle() {
  const head = headAt(view);
  setText(byId("head-title"), `Layer ${view.layer}, head ${view.head}`);
  const kinds = (head?.kinds ?? []).map((name) => {
    const kind = CONTENT.kinds.find((k) => k.name === name);
    const score = kind ? head?.values[kind.score] : null;
    return `${name} (score ${formatValue(score)}${kind?.limit === null || !kind ? "" : `, limit ${kind.limit}`}): ${kind?.meaning}.`;
  });
  setText(byId("kinds"), kinds.join(" ") || "No single kind: it does not exceed the limit of any kind above.");
}

function drawBeside() {
  const select = /** @type {HTMLSelectElement} */ (byId("beside"));
  const chosen = view.other ? writePlace(view.other) : "";
  /** @type {HTMLElement[]} */
  const options = [html("option", { value: "" }, "nothing")];
  CONTENT.records.forEach((r, model) =>
    r.maps.forEach((m, map) => {
      const same = model === view.model && map === view.map;
      const places = m.heads.map(({ layer, head }) => ({ model, map, layer, head }));
      const shown = same ? places : [...places.filter((p) => p.layer === view.layer && p.head === view.head), ...places.filter((p) => p.layer !== view.layer || p.head !== view.head)];
      const group = html("optgroup", { label: same ? "this map" : `${r.model.name}, ${mapName(r, m)}` });
      group.append(...shown.map((p) => html("option", { value: writePlace(p), selected: writePlace(p) === chosen }, label(p))));
      options.push(group);
    }),
  );
  select.replaceChildren(...options);
  select.onchange = () => {
    view.other = select.value ? readPlace(select.value) : null;
    buildPanes();
    saveAddress();
  };
}

/** @type {string} */
let drawnThumbnails = "";
function drawAll() {
  const tokens = currentMap()?.meta.tokens.length ?? 1;
  view.query = Math.min(view.query, tokens - 1);
  if (view.key !== null && view.key > view.query) view.key = null;
  if (frame.span > tokens || frame.span === 1) resetFrame();
  const key = `${view.model} ${view.map} ${view.mode} ${view.width}`;
  if (key !== drawnThumbnails) {
    if (!drawnThumbnails.startsWith(`${view.model} ${view.map} `)) {
      if (!CONTENT.film || drawnThumbnails === "") resetFrame();
      drawTokens();
      drawHeader();
      drawStory();
      drawPlaces();
    }
    drawnThumbnails = key;
    drawThumbnails();
    drawKinds();
  }
  markThumbnail();
  drawModes();
  drawHeadTitle();
  drawBeside();
  reveal();
  buildPanes();
  drawQuery();
  drawAcceptance();
  drawForming();
  drawTopics();
  drawSave();
  saveAddress();
}

/** @type {(event: KeyboardEvent) => void} */
function onKey(event) {
  const target = event.target instanceof HTMLElement ? event.target : document.body;
  if (event.ctrlKey || event.metaKey || event.altKey || target.closest("select, input[type=range], input[type=text]")) return;
  const middle = frame.span / 2;
  const onMap = target.classList.contains("map");
  /** @type {Record<string, () => void>} */
  const anywhere = {
    "[": () => stepHead(-1),
    "]": () => stepHead(1),
    Escape: () => ((view.removed = new Set()), drawQuery(), drawPanes(), saveAddress()),
  };
  /** @type {Record<string, () => void>} */
  const map = {
    ArrowUp: () => selectCell(Math.max(0, view.query - 1), view.key),
    ArrowDown: () => selectCell(Math.min((currentMap()?.meta.tokens.length ?? 1) - 1, view.query + 1), view.key),
    ArrowLeft: () => selectCell(view.query, Math.max(0, (view.key ?? view.query + 1) - 1)),
    ArrowRight: () => selectCell(view.query, Math.min(view.query, (view.key ?? -1) + 1)),
    "+": () => zoom(0.7, frame.left + middle, frame.top + middle),
    "-": () => zoom(1 / 0.7, frame.left + middle, frame.top + middle),
    0: () => (resetFrame(), drawPanes()),
    x: () => view.key !== null && toggleKey(view.key),
  };
  const action = anywhere[event.key] ?? (onMap ? map[event.key] : undefined);
  if (!action) return;
  event.preventDefault();
  action();
}

async function start() {
  await loadContent();
  if (CONTENT.film) view.model = CONTENT.records.length - 1;
  Object.assign(view, opening(view.model));
  drawHeader();
  drawStory();
  drawCompare();
  await loadMaps();
  const pair = storyOf(record()).find((f) => f.pairs.length)?.pairs[0];
  view.query = (currentMap()?.meta.tokens.length ?? 1) - 1;
  // The example of the story is open, so that the page starts with an answer.
  if (!readAddress(location.hash) && pair && record().maps[0]?.text === pair.text)
    Object.assign(view, { layer: pair.layer, head: pair.head, query: pair.query, key: pair.key });
  byId("previous-head").onclick = () => stepHead(-1);
  byId("next-head").onclick = () => stepHead(1);
  document.addEventListener("keydown", onKey);
  window.addEventListener("hashchange", () => readAddress(location.hash) && drawAll());
  window.addEventListener("resize", () => (drawPanes(), drawQuery()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => (ramps.clear(), (drawnThumbnails = ""), drawAll()));
  drawAll();
  document.documentElement.dataset.ready = "true";
}

start();
