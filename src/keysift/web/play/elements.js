// Making elements. Text only ever becomes a text node, so nothing that is read from a file or a link can run.

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const html = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes, ...children) =>
  fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const byId = (id) => document.getElementById(id);

/** Set an attribute only where it changes: drawing sixty times a second should touch little. */
function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
  }
  return element;
}

function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A chart as wide as its box, in real pixels, so that text keeps its size on a phone. */
function sized(chart, height) {
  const width = Math.max(220, Math.round(chart.parentElement.clientWidth) || 220);
  set(chart, { viewBox: `0 0 ${width} ${height}`, width, height });
  return width;
}

/** Round numbers that cover [low, high], about `most` of them. */
function ticks(low, high, most = 5) {
  const rough = (high - low) / most || 1;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * size).find((s) => s >= rough * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++)
    found.push(Number((k * step).toPrecision(12)));
  return found;
}

function tick(value) {
  return (Math.abs(value) < 1e4 ? String(value) : value.toLocaleString("en-US", { notation: "compact" })).replace(
    "-",
    "−",
  );
}

/** Horizontal lines with their numbers. */
function axis(values, y, left, right) {
  return values.flatMap((value) => [
    svg("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: value === 0 ? "zero" : "grid" }),
    svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end", class: "tick" }, tick(value)),
  ]);
}

/** Dragging by pointer: `move` gets the pointer in chart coordinates; one drag is one undo step. */
function draggable(element, chart, gesture, move) {
  element.addEventListener("pointerdown", (event) => {
    if (event.button > 0) return;
    event.preventDefault();
    element.setPointerCapture(event.pointerId);
    element.focus({ preventScroll: true });
    endGesture();
    const follow = (at) => {
      const box = chart.getBoundingClientRect();
      const scale = chart.viewBox.baseVal.width / box.width;
      store.since = performance.now(); // however slow the hand, it is one drag
      move((at.clientX - box.left) * scale, (at.clientY - box.top) * scale, gesture);
    };
    const done = () => {
      element.removeEventListener("pointermove", follow);
      endGesture();
    };
    element.addEventListener("pointermove", follow);
    element.addEventListener("pointerup", done, { once: true });
    element.addEventListener("pointercancel", done, { once: true });
  });
}

/** Arrow keys, Page Up and Down, Home and End of a slider; returns the new value or null. */
function keyed(event, value, low, high, step) {
  const to = {
    ArrowUp: value + step,
    ArrowRight: value + step,
    ArrowDown: value - step,
    ArrowLeft: value - step,
    PageUp: value + 10 * step,
    PageDown: value - 10 * step,
    Home: low,
    End: high,
  }[event.key];
  if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return null;
  event.preventDefault();
  return Math.min(high, Math.max(low, Number(to.toFixed(6))));
}
