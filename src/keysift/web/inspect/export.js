// Save what is on screen: the map as PNG or SVG, the keys of the query as CSV, the numbers of the head as JSON, a link.

/** @type {(name: string, content: Blob) => void} */
function download(name, content) {
  const link = html("a", { href: URL.createObjectURL(content), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** @type {(ending: string) => string} */
const fileName = (ending) => `${record().model.name}-${label(view)}-query-${view.query}.${ending}`.replace(/[^\w.-]+/g, "_");

function mapSvg() {
  const canvas = panes[0].canvas;
  const size = canvas.clientWidth;
  const title = `${placeName(view)}: ${scaleOf(view, view.mode).title}`;
  return svg(
    "svg",
    { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${size} ${size + 24}`, width: size, height: size + 24 },
    svg("text", { x: 4, y: 16, "font-size": 13, "font-family": "sans-serif" }, title),
    svg("image", { href: canvas.toDataURL(), x: 0, y: 24, width: size, height: size }),
  );
}

/** Keys of the query in every head as CSV. */
function keysCsv() {
  const map = currentMap();
  const lines = ["layer,head,query,key,token,weight,without,score,percentile,exact"];
  map?.meta.heads.forEach((head, index) => {
    const after = weightsWithout(map, index, view.query, view.removed);
    for (const k of map.row(index, view.query)) {
      const token = `"${map.meta.tokens[k.key].replace(/"/g, '""')}"`;
      const rank = percentile({ ...view, layer: head.layer, head: head.head }, k.score, "best");
      lines.push([head.layer, head.head, view.query, k.key, token, k.weight, after?.get(k.key) ?? "", k.score, rank ?? "", k.exact].join(","));
    }
  });
  return lines.join("\n") + "\n";
}

function drawSave() {
  /** @type {[string, () => void][]} */
  const ways = [
    ["PNG", () => panes[0].canvas.toBlob((blob) => blob && download(fileName("png"), blob))],
    ["SVG", () => download(fileName("svg"), new Blob([new XMLSerializer().serializeToString(mapSvg())], { type: "image/svg+xml" }))],
    ["CSV", () => download(fileName("csv"), new Blob([keysCsv()], { type: "text/csv" }))],
    ["JSON", () => download(`${record().model.name}.json`.replace(/[^\w.-]+/g, "_"), new Blob([JSON.stringify(record())], { type: "application/json" }))],
  ];
  const link = html("button", { type: "button", id: "link", title: "copy a link to this view" }, "copy link");
  link.onclick = () => {
    saveAddress();
    navigator.clipboard?.writeText(location.href).then(
      () => setText(link, "copied"),
      () => setText(link, "in the address bar"),
    );
  };
  byId("save").replaceChildren("save ", ...ways.map(([name, onclick]) => html("button", { type: "button", onclick }, name)), link);
}
