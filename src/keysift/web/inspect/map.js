// One head on a canvas: query x key, with zoom, pan and a cell under the pointer. A second head and the difference beside it.

/** Visible part of the map in tokens, shared by all canvases. */
const frame = { left: 0, top: 0, span: 1 };
const MARGIN = 74;

/** @type {{ canvas: HTMLCanvasElement, image: HTMLCanvasElement, place: Place | null, name: string }[]} */
let panes = [];

function resetFrame() {
  Object.assign(frame, { left: 0, top: 0, span: currentMap()?.meta.tokens.length ?? 1 });
}

/** @type {(factor: number, x: number, y: number) => void} */
function zoom(factor, x, y) {
  const tokens = currentMap()?.meta.tokens.length ?? 1;
  const span = Math.min(tokens, Math.max(Math.min(8, tokens), frame.span * factor));
  frame.left = x - ((x - frame.left) * span) / frame.span;
  frame.top = y - ((y - frame.top) * span) / frame.span;
  frame.span = span;
  clampFrame();
  drawPanes();
}

function clampFrame() {
  const tokens = currentMap()?.meta.tokens.length ?? 1;
  frame.left = Math.max(0, Math.min(tokens - frame.span, frame.left));
  frame.top = Math.max(0, Math.min(tokens - frame.span, frame.top));
}

/** Keep a query and a key inside the frame. */
function reveal() {
  const { query, key } = view;
  if (query < frame.top) frame.top = query;
  if (query + 1 > frame.top + frame.span) frame.top = query + 1 - frame.span;
  if (key !== null && key < frame.left) frame.left = key;
  if (key !== null && key + 1 > frame.left + frame.span) frame.left = key + 1 - frame.span;
  clampFrame();
}

/** Make the canvases of the current head, the one beside it and their difference. */
function buildPanes() {
  const own = mapImage(view, view.mode);
  panes = [];
  if (!own) {
    byId("canvases").replaceChildren(html("p", { class: "hint" }, "This record holds no map of this head."));
    return;
  }
  const pane = (/** @type {HTMLCanvasElement} */ image, /** @type {Place | null} */ place, /** @type {string} */ name) => {
    const canvas = html("canvas", { class: "map", tabindex: 0, role: "img", "aria-label": mapSummary(place, name), "data-pane": name });
    panes.push({ canvas, image, place, name });
    listen(canvas);
    return html("figure", {}, html("figcaption", {}, name), canvas);
  };
  const figures = [pane(own, view, placeName(view))];
  if (view.other) {
    const beside = mapImage(view.other, view.mode);
    if (beside) figures.push(pane(beside, view.other, placeName(view.other)));
    const difference = differenceImage(view, view.other);
    if (difference) figures.push(pane(difference, null, `difference of the weights (first minus second)`));
  }
  byId("canvases").replaceChildren(...figures);
  byId("canvases").classList.toggle("several", figures.length > 1);
  drawPanes();
}

/** @type {(place: Place) => string} */
function placeName(place) {
  const of = CONTENT.records[place.model];
  const parts = [label(place)];
  if (CONTENT.records.length > 1) parts.unshift(of.model.name);
  const map = of.maps[place.map];
  if (map && of.maps.length > 1) parts.push(`on ${mapName(of, map)}`);
  return parts.join(" ");
}

/** Sentence about a map for readers who do not see it. @type {(place: Place | null, name: string) => string} */
function mapSummary(place, name) {
  if (!place) return `Map: ${name}`;
  const head = headAt(place);
  const values = head?.values ?? {};
  const facts = [
    ["first token", values.first_mass],
    ["previous token", values.previous_mass],
    ["own token", values.own_mass],
  ].map(([what, share]) => `${what} ${formatPercent(/** @type {number | null} */ (share ?? null))}`);
  return `Attention map of ${name}: queries from top to bottom, keys from left to right. Mean share of the attention: ${facts.join(", ")}. Kind: ${head?.kinds.join(", ") || "none"}.`;
}

/** @type {(first: Place, second: Place) => HTMLCanvasElement | null} */
function differenceImage(first, second) {
  const [a, b] = [mapOf(first), mapOf(second)];
  if (!a || !b || a.map.side !== b.map.side || a.map.meta.pool !== b.map.meta.pool) return null;
  const [x, y] = [a.map.weights(a.index), b.map.weights(b.index)];
  return paint(a.map.side, rampOf("diverging"), (cell) => {
    const d = x[cell] - y[cell];
    return 0.5 + 0.5 * Math.sign(d) * Math.sqrt(Math.abs(d));
  });
}

let scheduled = false;
function drawPanes() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    panes.forEach(drawPane);
  });
}

/** @type {(pane: { canvas: HTMLCanvasElement, image: HTMLCanvasElement, place: Place | null }) => void} */
function drawPane({ canvas, image, place }) {
  const map = currentMap();
  const context = canvas.getContext("2d");
  if (!map || !context) return;
  const ratio = window.devicePixelRatio || 1;
  const size = canvas.clientWidth || 480;
  if (canvas.width !== Math.round(size * ratio)) canvas.width = canvas.height = Math.round(size * ratio);
  const plot = size - MARGIN;
  const unit = plot / frame.span;
  const { pool, tokens } = map.meta;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, size, size);
  context.save();
  context.beginPath();
  context.rect(MARGIN, 0, plot, plot);
  context.clip();
  context.imageSmoothingEnabled = unit * pool < 1;
  context.drawImage(image, MARGIN - frame.left * unit, -frame.top * unit, map.side * pool * unit, map.side * pool * unit);
  if (place && pool > 1 && unit >= 2) drawExact(context, place, unit);
  drawCross(context, unit, plot);
  context.restore();
  drawLabels(context, tokens, unit, plot);
}

/** Exact keys of the visible queries of a pooled map, one cell each. @type {(context: CanvasRenderingContext2D, place: Place, unit: number) => void} */
function drawExact(context, place, unit) {
  const found = mapOf(place);
  if (!found) return;
  const scale = scaleOf(place, view.mode);
  for (const query of found.map.meta.queries) {
    if (query < frame.top - 1 || query > frame.top + frame.span) continue;
    for (const k of found.map.top(found.index, query)?.keys ?? []) {
      const c = 3 * Math.round(255 * Math.min(1, Math.max(0, scale.share(k.score, k.weight))));
      context.fillStyle = `rgb(${scale.ramp[c]},${scale.ramp[c + 1]},${scale.ramp[c + 2]})`;
      context.fillRect(MARGIN + (k.key - frame.left) * unit, (query - frame.top) * unit, unit, unit);
    }
  }
}

/** @type {(context: CanvasRenderingContext2D, unit: number, plot: number) => void} */
function drawCross(context, unit, plot) {
  const style = getComputedStyle(document.documentElement);
  const x = (/** @type {number} */ key) => MARGIN + (key - frame.left) * unit;
  const thick = Math.max(unit, 1.5);
  context.fillStyle = style.getPropertyValue("--removed");
  for (const key of view.removed) context.fillRect(x(key), 0, thick, plot);
  context.strokeStyle = style.getPropertyValue("--moved");
  context.lineWidth = 1.5;
  context.strokeRect(MARGIN, (view.query - frame.top) * unit - 0.75, plot, thick + 1.5);
  if (view.key !== null) context.strokeRect(x(view.key) - 0.75, (view.query - frame.top) * unit - 0.75, thick + 1.5, thick + 1.5);
}

/** @type {(context: CanvasRenderingContext2D, tokens: string[], unit: number, plot: number) => void} */
function drawLabels(context, tokens, unit, plot) {
  const style = getComputedStyle(document.documentElement);
  const height = 13;
  const step = Math.max(1, Math.ceil(height / unit));
  const font = getComputedStyle(document.body).fontFamily;
  const write = (/** @type {number} */ at) => {
    const token = visibleText(tokens[at]);
    return token.length > 9 ? `${token.slice(0, 8)}…` : token;
  };
  // The label of the first row stays inside the canvas.
  const row = (/** @type {number} */ at) => Math.max(height / 2, (at + 0.5 - frame.top) * unit);
  context.textBaseline = "middle";
  context.textAlign = "right";
  for (let i = Math.ceil(frame.top / step) * step; i < Math.min(tokens.length, frame.top + frame.span); i += step) {
    if (Math.abs(i - view.query) < step) continue;
    labelAt(context, write(i), MARGIN - 5, row(i), 0);
  }
  context.fillStyle = style.getPropertyValue("--moved");
  context.font = `600 11px ${font}`;
  if (view.query >= frame.top && view.query < frame.top + frame.span) context.fillText(write(view.query), MARGIN - 5, row(view.query));
  for (let i = Math.ceil(frame.left / step) * step; i < Math.min(tokens.length, frame.left + frame.span); i += step) {
    if (view.key !== null && Math.abs(i - view.key) < step) continue;
    labelAt(context, write(i), MARGIN + (i + 0.5 - frame.left) * unit, plot + 5, -Math.PI / 2);
  }
  if (view.key !== null) labelAt(context, write(view.key), MARGIN + (view.key + 0.5 - frame.left) * unit, plot + 5, -Math.PI / 2, true);
}

/** @type {(context: CanvasRenderingContext2D, text: string, x: number, y: number, angle: number, marked?: boolean) => void} */
function labelAt(context, text, x, y, angle, marked = false) {
  const style = getComputedStyle(document.documentElement);
  context.save();
  context.translate(x, y);
  context.rotate(angle);
  context.fillStyle = style.getPropertyValue(marked ? "--moved" : "--soft");
  context.font = `${marked ? 600 : 400} 11px ${getComputedStyle(document.body).fontFamily}`;
  context.fillText(text, 0, 0);
  context.restore();
}

/** Query and key under a pointer, or null outside the lower triangle. @type {(canvas: HTMLCanvasElement, event: MouseEvent) => [number, number] | null} */
function cellAt(canvas, event) {
  const box = canvas.getBoundingClientRect();
  const unit = (box.width - MARGIN) / frame.span;
  const key = Math.floor(frame.left + (event.clientX - box.left - MARGIN) / unit);
  const query = Math.floor(frame.top + (event.clientY - box.top) / unit);
  const tokens = currentMap()?.meta.tokens.length ?? 0;
  return event.clientX - box.left >= MARGIN && query >= 0 && query < tokens && key >= 0 && key <= query ? [query, key] : null;
}

/** @type {(canvas: HTMLCanvasElement) => void} */
function listen(canvas) {
  /** @type {{ x: number, y: number, moved: boolean } | null} */
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, moved: false };
  });
  canvas.addEventListener("pointermove", (event) => {
    const whole = frame.span >= (currentMap()?.meta.tokens.length ?? 1);
    if (drag && event.buttons && !whole) {
      const unit = (canvas.clientWidth - MARGIN) / frame.span;
      if (Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > 3) drag.moved = true;
      if (drag.moved) {
        frame.left -= (event.clientX - drag.x) / unit;
        frame.top -= (event.clientY - drag.y) / unit;
        Object.assign(drag, { x: event.clientX, y: event.clientY });
        clampFrame();
        drawPanes();
        return;
      }
    }
    const cell = cellAt(canvas, event);
    if (cell) drawReadout(...cell);
  });
  canvas.addEventListener("pointerup", (event) => {
    const moved = drag?.moved;
    drag = null;
    const cell = cellAt(canvas, event);
    if (!moved && cell) selectCell(...cell);
  });
  canvas.addEventListener("pointerleave", () => drawReadout(view.query, view.key));
  canvas.addEventListener(
    "wheel",
    (event) => {
      if (!event.ctrlKey) return; // the page scrolls
      event.preventDefault();
      const box = canvas.getBoundingClientRect();
      const unit = (box.width - MARGIN) / frame.span;
      const x = frame.left + (event.clientX - box.left - MARGIN) / unit;
      zoom(Math.exp(event.deltaY / 200), x, frame.top + (event.clientY - box.top) / unit);
    },
    { passive: false },
  );
}
