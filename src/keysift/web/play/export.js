// Save the charts of the current view as one picture: SVG, or PNG at twice the size.

/** @type {() => SVGSVGElement[]} */
function chartsOnScreen() {
  /** @type {NodeListOf<SVGSVGElement>} */
  const charts = document.querySelectorAll(`#view-${store.state.view} svg.chart`);
  return [...charts].filter((chart) => chart.getClientRects().length);
}

/**
 * A copy that needs no style sheet: the computed styles become attributes.
 * @type {(chart: SVGSVGElement) => SVGSVGElement}
 */
function withInlineStyles(chart) {
  const copy = /** @type {SVGSVGElement} */ (chart.cloneNode(true));
  const from = [chart, ...chart.querySelectorAll("*")],
    to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, j) => {
    const style = getComputedStyle(element);
    for (const name of [
      "fill",
      "fill-opacity",
      "stroke",
      "stroke-width",
      "stroke-dasharray",
      "opacity",
      "paint-order",
      "font-size",
      "font-weight",
    ]) {
      to[j].setAttribute(name, style.getPropertyValue(name));
    }
    for (const name of ["class", "tabindex", "style", "id"]) to[j].removeAttribute(name);
  });
  return copy;
}

/** @type {(chart: SVGSVGElement) => string} */
function titleOf(chart) {
  const title = chart.closest("[data-title]")?.getAttribute("data-title");
  return title ?? chart.closest("article")?.querySelector("h3")?.textContent ?? "";
}

/**
 * The map on screen, if there is one, as an image of its size.
 * @type {() => { title: string, width: number, height: number, copy: SVGElement }[]}
 */
function heatImage() {
  const canvas = heatCanvas();
  if (!canvas.getClientRects().length) return [];
  const size = Math.round(canvas.getBoundingClientRect().width);
  const image = svg("image", { href: canvas.toDataURL(), style: "image-rendering: pixelated" });
  return [{ title: byId("map-title").textContent ?? "", width: size, height: size, copy: image }];
}

/** @type {() => SVGSVGElement} */
function combinedSvg() {
  const ink = getComputedStyle(document.body);
  const column = 20,
    parts = [];
  let y = 16,
    widest = 0;
  const charts = chartsOnScreen().map((chart) => {
    const { width, height } = chart.viewBox.baseVal;
    return { title: titleOf(chart), width, height, copy: withInlineStyles(chart) };
  });
  for (const { title, width, height, copy } of [...charts, ...heatImage()]) {
    parts.push(
      svg("text", { x: column, y: y + 14, fill: ink.color, "font-size": 15, "font-weight": 600 }, title),
      setAttributes(copy, { x: column, y: y + 22, width, height }),
    );
    y += height + 34;
    widest = Math.max(widest, width);
  }
  const sizes = { width: widest + 2 * column, height: y + 8 };
  return svg(
    "svg",
    {
      xmlns: "http://www.w3.org/2000/svg",
      viewBox: `0 0 ${sizes.width} ${sizes.height}`,
      ...sizes,
      "font-family": "system-ui, sans-serif",
    },
    svg("rect", { ...sizes, fill: ink.backgroundColor }),
    ...parts,
  );
}

/** @type {(name: string, blob: Blob) => void} */
function download(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

function exportSvg() {
  download("keysift.svg", new Blob([new XMLSerializer().serializeToString(combinedSvg())], { type: "image/svg+xml" }));
}

function exportPng() {
  const drawing = combinedSvg();
  const [width, height] = [drawing.width.baseVal.value * 2, drawing.height.baseVal.value * 2];
  const image = new Image();
  image.onload = () => {
    const canvas = html("canvas", { width, height });
    canvas.getContext("2d")?.drawImage(image, 0, 0, width, height);
    canvas.toBlob((blob) =>
      blob ? download("keysift.png", blob) : announce("The picture is too large for a PNG; export SVG instead."),
    );
  };
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(drawing))}`;
}
