"use strict";
(function () {
  const byId = (id) => document.getElementById(id);
  const readJson = (id) => { const node = byId(id); return node ? JSON.parse(node.textContent) : null; };
  const figures = readJson("figure-data") || {};
  const confusion = readJson("confusion-data");
  const drawn = new Map(); // id of the figure -> its element

  // Figures carry no colours of text and grid: those follow the page, light, dark or printed.
  function theme() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = (name) => ({
      [name + ".gridcolor"]: colour("--grid"), [name + ".linecolor"]: colour("--line"),
      [name + ".zerolinecolor"]: colour("--quiet"), [name + ".tickcolor"]: colour("--line"),
    });
    return Object.assign(
      { "font.color": colour("--text"), "font.family": getComputedStyle(document.body).fontFamily,
        "hoverlabel.bgcolor": colour("--panel"), "hoverlabel.bordercolor": colour("--line"), "hoverlabel.font.color": colour("--text"),
        "modebar.color": colour("--quiet"), "modebar.activecolor": colour("--link"), "modebar.bgcolor": "rgba(0,0,0,0)" },
      axis("xaxis"), axis("yaxis"));
  }

  function withTheme(layout) {
    const copy = JSON.parse(JSON.stringify(layout));
    for (const [path, value] of Object.entries(theme())) {
      const keys = path.split(".");
      const last = keys.pop();
      let node = copy;
      for (const key of keys) { node[key] = node[key] || {}; node = node[key]; }
      node[last] = value;
    }
    // A finger that scrolls the page must not zoom the figure.
    if (matchMedia("(pointer: coarse)").matches) copy.dragmode = false;
    if (narrow()) {
      copy.margin = Object.assign({}, copy.margin, { l: 8, r: 6 });
      copy.font.size = 11;
    }
    return copy;
  }

  const narrow = () => innerWidth < 600;

  // On a phone the names across and the colour bar would leave a heat map no room; the tables below tell the rest.
  function fitHeat(figure) {
    if (!narrow() || figure.data[0].type !== "heatmap") return figure;
    figure.data[0].showscale = false;
    figure.layout.height = Math.min(figure.layout.height, 420);
    figure.layout.xaxis.showticklabels = false;
    figure.layout.yaxis.tickfont = { size: 8 };
    return figure;
  }

  function draw(id, figure) {
    const element = byId("figure-" + id);
    if (!element) return;
    drawn.set(id, element);
    fitHeat(figure);
    return Plotly.react(element, figure.data, withTheme(figure.layout), {
      // A class called "$x$" is a name, not an equation. What is in a report is the reader's: no button may send it away.
      responsive: true, displaylogo: false, typesetMath: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
      showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "",
    });
  }

  function retheme(extra) {
    for (const element of drawn.values()) Plotly.relayout(element, Object.assign(theme(), extra));
  }

  // --- confusion of one block of classes (many classes only) ---
  function drawBlock(block) {
    const first = confusion.starts[block];
    const end = block + 1 < confusion.starts.length ? confusion.starts[block + 1] : confusion.order.length;
    const classes = confusion.order.slice(first, end);
    const place = new Map(classes.map((cls, position) => [cls, position]));
    const counts = classes.map(() => new Array(classes.length + 1).fill(0));
    for (const [truth, predicted, count] of confusion.cells) {
      if (!place.has(truth)) continue;
      const column = place.has(predicted) ? place.get(predicted) : classes.length;
      counts[place.get(truth)][column] += count;
    }
    const names = classes.map((cls) => confusion.labels[cls]);
    const targets = names.concat(["elsewhere"]);
    const hover = counts.map((row, i) => row.map((count, j) =>
      "true <b>" + names[i] + "</b><br>taken for <b>" + targets[j] + "</b><br>" + count + " of " + confusion.n[classes[i]] + " samples"));
    const z = counts.map((row, i) => row.map((count, j) => (i === j ? null : count / Math.max(1, confusion.n[classes[i]]))));
    const figure = JSON.parse(JSON.stringify(figures.block));
    Object.assign(figure.data[0], { z: z, x: targets, y: names, text: hover });
    figure.layout.height = Math.min(760, Math.max(360, 170 + 20 * classes.length));
    return draw("block", figure);
  }

  function setUpBlocks() {
    const select = byId("block-choice");
    if (!confusion || !select) return;
    select.addEventListener("change", () => drawBlock(Number(select.value)));
    drawBlock(Number(select.value));
    const overview = byId("figure-confusion");
    overview.on("plotly_click", (event) => {
      const block = event.points[0].pointIndex ? event.points[0].pointIndex[0] : event.points[0].pointNumber[0];
      select.value = String(block);
      drawBlock(block);
      byId("figure-block").scrollIntoView({ block: "center" });
    });
  }

  // --- tables: sort by the buttons in the head, search by the box above ---
  function cellValue(row, column) {
    const cell = row.cells[column];
    const raw = cell.dataset.value;
    if (raw === undefined) return cell.textContent.trim().toLowerCase();
    return raw === "" ? null : Number(raw);
  }

  function sortBy(table, header, direction) {
    const column = header.cellIndex;
    const body = table.tBodies[0];
    const rows = Array.from(body.rows).map((row) => [cellValue(row, column), row]);
    const sign = direction === "ascending" ? 1 : -1;
    rows.sort(([a], [b]) => {
      const missingA = a === null || a === "–" || a === "", missingB = b === null || b === "–" || b === "";
      if (missingA || missingB) return Number(missingA) - Number(missingB); // nothing known: last, either way
      return sign * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
    });
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    body.append(...rows.map(([, row]) => row));
  }

  function setUpSorting(table) {
    for (const header of table.tHead.rows[0].cells) {
      const button = header.querySelector("button");
      if (!button) continue;
      button.addEventListener("click", () =>
        sortBy(table, header, header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending"));
    }
  }

  function setUpSearch(input) {
    const table = byId(input.dataset.table);
    const status = byId(input.dataset.status);
    const rows = Array.from(table.tBodies[0].rows);
    const texts = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const filter = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const matches = words.every((word) => texts.get(row).includes(word));
        row.hidden = !matches;
        shown += Number(matches);
      }
      status.textContent = shown + " of " + rows.length + " classes";
    };
    input.addEventListener("input", filter);
    filter();
  }

  function start() {
    document.querySelectorAll("table.sortable").forEach(setUpSorting);
    document.querySelectorAll("input[data-table]").forEach(setUpSearch);
    for (const [id, figure] of Object.entries(figures)) if (id !== "block") draw(id, figure);
    setUpBlocks();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => retheme({}));
    addEventListener("beforeprint", () => {
      document.documentElement.classList.add("printing");
      retheme({ width: 680 });
    });
    addEventListener("afterprint", () => {
      document.documentElement.classList.remove("printing");
      retheme({ width: null, autosize: true });
    });
    document.documentElement.dataset.ready = "true";
  }

  start();
})();
