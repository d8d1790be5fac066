// The charts of the view on screen as one picture: SVG, or PNG at twice the size.

function chartsOnScreen() {
  return [...document.querySelectorAll(`#view-${store.state.view} svg.chart`)].filter(
    (chart) => chart.getClientRects().length,
  );
}

/** A copy that needs no style sheet: what the page computed is written onto each element. */
function frozen(chart) {
  const copy = chart.cloneNode(true);
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

function titleOf(chart) {
  return (
    chart.closest("[data-title]")?.dataset.title ?? chart.closest("article")?.querySelector("h3")?.textContent ?? ""
  );
}

/** The map on screen, if there is one, as an image of the size it is shown in. */
function heatImage() {
  const canvas = byId("heat");
  if (!canvas.getClientRects().length) return [];
  const size = Math.round(canvas.getBoundingClientRect().width);
  const image = svg("image", { href: canvas.toDataURL(), style: "image-rendering: pixelated" });
  return [{ title: byId("map-head-out").textContent, width: size, height: size, copy: image }];
}

function picture() {
  const ink = getComputedStyle(document.body);
  const column = 20,
    parts = [];
  let y = 16,
    widest = 0;
  const charts = chartsOnScreen().map((chart) => {
    const { width, height } = chart.viewBox.baseVal;
    return { title: titleOf(chart), width, height, copy: frozen(chart) };
  });
  for (const { title, width, height, copy } of [...charts, ...heatImage()]) {
    parts.push(
      svg("text", { x: column, y: y + 14, fill: ink.color, "font-size": 15, "font-weight": 600 }, title),
      set(copy, { x: column, y: y + 22, width, height }),
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

function download(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

/** Whether there is anything to save; the map view is empty until it has a record. */
function somethingToSave() {
  const found = chartsOnScreen().length + heatImage().length > 0;
  if (!found) announce("There is no figure in this view yet.");
  return found;
}

function exportSvg() {
  if (!somethingToSave()) return;
  download("keysift.svg", new Blob([new XMLSerializer().serializeToString(picture())], { type: "image/svg+xml" }));
}

function exportPng() {
  if (!somethingToSave()) return;
  const drawn = picture();
  const [width, height] = [drawn.width.baseVal.value * 2, drawn.height.baseVal.value * 2];
  const image = new Image();
  image.onload = () => {
    const canvas = html("canvas", { width, height });
    canvas.getContext("2d").drawImage(image, 0, 0, width, height);
    canvas.toBlob((blob) =>
      blob ? download("keysift.png", blob) : announce("The picture is too large for a PNG; export SVG instead."),
    );
  };
  image.src = `data:image/svg+xml,${encodeURIComponent(new XMLSerializer().serializeToString(drawn))}`;
}
