// Elements and charts. Text only becomes text nodes, so nothing that is read from a file or a link can run.

/**
 * Set attributes and event listeners ("onclick"), and append children.
 * @template {Element} E
 * @param {E} element
 * @param {Attributes | undefined} attributes
 * @param {(Child | Child[])[]} children
 * @returns {E}
 */
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

/**
 * Create an HTML element.
 * @template {keyof HTMLElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[T]}
 */
function html(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/**
 * Create an SVG element.
 * @template {keyof SVGElementTagNameMap} T
 * @param {T} tag
 * @param {Attributes} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {SVGElementTagNameMap[T]}
 */
function svg(tag, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** @type {(id: string) => HTMLElement} */
function byId(id) {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`The page has no element #${id}.`);
  return element;
}

/** @type {(id: string) => HTMLInputElement} */
function inputById(id) {
  const element = byId(id);
  if (!(element instanceof HTMLInputElement)) throw new Error(`#${id} is not an input.`);
  return element;
}

/** @type {(id: string) => SVGSVGElement} */
function svgById(id) {
  const element = document.getElementById(id);
  if (!(element instanceof SVGSVGElement)) throw new Error(`#${id} is not an svg element.`);
  return element;
}

/**
 * Set only the attributes that change: a page that is redrawn sixty times a second should touch little.
 * @template {Element} E
 * @param {E} element
 * @param {Attributes} attributes
 * @returns {E}
 */
function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
  }
  return element;
}

/** @type {(element: Element, text: string) => void} */
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Text of a token with visible white space: a newline is ⏎, a tab ⇥, a space ·, any other control character �.
 * @type {(token: string) => string}
 */
function visibleText(token) {
  return token
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(/ /g, "·")
    .replace(/[\p{Cc}\p{Cf}]/gu, "�");
}

/**
 * Make a chart as wide as its box, in real pixels, so that its text keeps its size on a phone; returns the width.
 * @type {(chart: SVGSVGElement, height: number) => number}
 */
function fitWidth(chart, height) {
  const width = Math.max(220, Math.round(chart.parentElement?.clientWidth ?? 0) || 220);
  setAttributes(chart, { viewBox: `0 0 ${width} ${height}`, width, height });
  return width;
}

/**
 * About `most` round numbers within [low, high].
 * @type {(low: number, high: number, most?: number) => number[]}
 */
function ticks(low, high, most = 5) {
  const rough = (high - low) / most || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5].map((m) => m * size).find((s) => s >= rough * 0.999) ?? 10 * size;
  const values = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
    values.push(Number((k * step).toPrecision(12)));
  return values;
}

/** @type {(value: number) => string} */
function formatTick(value) {
  return (Math.abs(value) < 1e4 ? String(value) : value.toLocaleString("en-US", { notation: "compact" })).replace(
    "-",
    "−",
  );
}

/**
 * Horizontal grid lines with their values.
 * @type {(values: number[], y: (value: number) => number, left: number, right: number) => SVGElement[]}
 */
function axis(values, y, left, right) {
  return values.flatMap((value) => [
    svg("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: value === 0 ? "zero" : "grid" }),
    svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", class: "tick" }, formatTick(value)),
  ]);
}

/**
 * New value of a slider after a key press (arrows, Page Up and Down, Home, End), or null for any other key.
 * @type {(event: KeyboardEvent, value: number, low: number, high: number, step: number) => number | null}
 */
function sliderValue(event, value, low, high, step) {
  /** @type {Record<string, number>} */
  const values = {
    ArrowUp: value + step,
    ArrowRight: value + step,
    ArrowDown: value - step,
    ArrowLeft: value - step,
    PageUp: value + 10 * step,
    PageDown: value - 10 * step,
    Home: low,
    End: high,
  };
  const next = values[event.key];
  if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return null;
  event.preventDefault();
  return Math.min(high, Math.max(low, Number(next.toFixed(6))));
}
