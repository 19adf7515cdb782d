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
  const blockClasses = []; // of the block that is shown

  function drawBlock(block) {
    const first = confusion.starts[block];
    const end = block + 1 < confusion.starts.length ? confusion.starts[block + 1] : confusion.order.length;
    const classes = confusion.order.slice(first, end);
    blockClasses.splice(0, blockClasses.length, ...classes);
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

  // --- samples of a class, or of one cell of the confusion matrix ---
  const samples = readJson("sample-data");
  const ANY = "any class";
  const PLURAL = { error: "errors", "doubted label": "doubted labels", typical: "typical right ones" };

  function element(tag, className, text) {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text; // never markup: names and texts come from anywhere
    return made;
  }

  const percent = (value) => (value === null ? "" : " (" + Math.round(100 * value) + "%)");

  function sampleCard([truth, kind, identity, predicted, probability, trueProbability, second, picture, text]) {
    const card = element("li", "sample");
    if (picture >= 0) {
      const image = element("img");
      image.src = samples.pictures[picture];
      image.alt = "Sample " + identity;
      image.loading = "lazy";
      card.append(image);
    }
    if (text >= 0) card.append(element("blockquote", "", samples.texts[text]));
    const wrong = truth !== predicted;
    const line = element("p", "answer");
    line.append(wrong ? "taken for " : "right: ", element("b", wrong ? "wrong" : "right", samples.names[predicted] + percent(probability)));
    card.append(line);
    if (wrong) card.append(element("p", "", "labelled " + samples.names[truth] + percent(trueProbability)));
    if (second >= 0 && second !== truth) card.append(element("p", "quiet", "second choice " + samples.names[second]));
    card.append(element("p", "quiet", "sample " + identity));
    return card;
  }

  function fill(select, options, value) {
    select.replaceChildren(...options.map(([key, words]) => { const made = element("option", "", words); made.value = key; return made; }));
    select.value = String(value);
  }

  function showSamples(cls, kind, predicted) {
    const ofClass = samples.rows.filter((row) => row[0] === cls);
    const kinds = samples.kinds.map((words, code) => [code, ofClass.filter((row) => row[1] === code).length, words]);
    if (kind === null || !kinds[kind][1]) kind = (kinds.find(([, count]) => count) || [0])[0];
    const total = (code, count) => (samples.totals[code] && samples.totals[code][cls] > count ? count + " of " + samples.totals[code][cls] : count);
    fill(byId("sample-class"), classOptions(), cls);
    fill(byId("sample-kind"), kinds.map(([code, count, words]) => [code, PLURAL[words] + " (" + total(code, count) + ")"]), kind);
    const ofKind = ofClass.filter((row) => row[1] === kind);
    const targets = new Map();
    for (const row of ofKind) targets.set(row[3], (targets.get(row[3]) || 0) + 1);
    if (predicted !== null && !targets.has(predicted)) targets.set(predicted, 0);
    const sorted = [...targets].sort((one, other) => other[1] - one[1]);
    fill(byId("sample-predicted"), [["", ANY]].concat(sorted.map(([code, count]) => [code, samples.names[code] + " (" + count + ")"])), predicted === null ? "" : predicted);
    const shown = predicted === null ? ofKind : ofKind.filter((row) => row[3] === predicted);
    byId("sample-list").replaceChildren(...shown.map(sampleCard));
    byId("sample-status").textContent = shown.length
      ? shown.length + " samples of “" + samples.names[cls] + "”" + (predicted === null ? "" : " taken for “" + samples.names[predicted] + "”")
      : "No such sample is in this page; classmargin audit --samples FILE.csv lists all.";
  }

  let options = null;
  function classOptions() { // by name, made once: there may be thousands
    const order = (a, b) => a[1].localeCompare(b[1], undefined, { numeric: true });
    return (options = options || [...new Set(samples.rows.map((row) => row[0]))].map((cls) => [cls, samples.names[cls]]).sort(order));
  }

  function goToSamples(cls, predicted) {
    if (!samples) return;
    showSamples(cls, predicted === null ? null : 0, predicted);
    byId("samples").scrollIntoView({ block: "start" });
    byId("sample-list").focus({ preventScroll: true });
  }

  function setUpSamples() {
    if (!samples) return;
    const value = (id) => { const words = byId(id).value; return words === "" ? null : Number(words); };
    byId("sample-class").addEventListener("change", () => showSamples(value("sample-class"), null, null));
    byId("sample-kind").addEventListener("change", () => showSamples(value("sample-class"), value("sample-kind"), null));
    byId("sample-predicted").addEventListener("change", () => showSamples(value("sample-class"), value("sample-kind"), value("sample-predicted")));
    document.addEventListener("click", (event) => {
      const button = event.target.closest("button.see");
      if (button) goToSamples(Number(button.dataset.class), button.dataset.predicted === undefined ? null : Number(button.dataset.predicted));
    });
    showSamples(samples.first, null, null);
    for (const id of ["accuracy", "spread"]) {
      if (drawn.has(id)) drawn.get(id).on("plotly_click", (event) => goToSamples(event.points[0].customdata, null));
    }
    const matrix = drawn.get("confusion");
    const classes = matrix && figures.confusion.layout.meta && figures.confusion.layout.meta.classes;
    if (classes) matrix.on("plotly_click", (event) => goToCell(event, classes));
    if (drawn.has("block")) drawn.get("block").on("plotly_click", (event) => goToCell(event, blockClasses));
  }

  function goToCell(event, classes) {
    const [row, column] = event.points[0].pointIndex || event.points[0].pointNumber;
    const elsewhere = column >= classes.length || row === column;
    goToSamples(classes[row], elsewhere ? null : classes[column]);
  }

  // --- tables: sort by the buttons in the head, search by the box above; long ones show their first rows ---
  const grids = new Map();

  function grid(table) {
    if (!grids.has(table)) {
      const more = byId(table.id + "-more");
      grids.set(table, { rows: Array.from(table.tBodies[0].rows), rest: byId(table.id + "-rest"), more, limit: more ? table.tBodies[0].rows.length : Infinity, words: [], texts: null });
    }
    return grids.get(table);
  }

  function allRows(table) {
    const found = grid(table);
    if (found.rest) { // moved out of the inert template at the first need
      found.rows.push(...found.rest.content.querySelectorAll("tr"));
      found.rest = null;
    }
    return found.rows;
  }

  function showRows(table) {
    const found = grid(table);
    found.texts = found.texts || new Map(allRows(table).map((row) => [row, row.textContent.toLowerCase()]));
    const matching = found.words.length ? found.rows.filter((row) => found.words.every((word) => found.texts.get(row).includes(word))) : found.rows;
    const shown = matching.slice(0, found.limit);
    table.tBodies[0].replaceChildren(...shown);
    if (found.more) {
      found.more.hidden = shown.length === matching.length;
      found.more.firstElementChild.textContent = shown.length + " of " + matching.length + " rows are shown.";
    }
    return matching.length;
  }

  function cellValue(row, column) {
    const cell = row.cells[column];
    const raw = cell.dataset.value;
    if (raw === undefined) return cell.textContent.trim().toLowerCase();
    return raw === "" ? null : Number(raw);
  }

  function sortBy(table, header, direction) {
    const column = header.cellIndex;
    const rows = allRows(table).map((row) => [cellValue(row, column), row]);
    const sign = direction === "ascending" ? 1 : -1;
    const compare = new Intl.Collator(undefined, { numeric: true }).compare;
    rows.sort(([a], [b]) => {
      const missingA = a === null || a === "–" || a === "", missingB = b === null || b === "–" || b === "";
      if (missingA || missingB) return Number(missingA) - Number(missingB); // nothing known: last, either way
      return sign * (typeof a === "number" ? a - b : compare(a, b));
    });
    for (const other of header.parentNode.cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", direction);
    grid(table).rows = rows.map(([, row]) => row);
    showRows(table);
  }

  function setUpSorting(table) {
    for (const header of table.tHead.rows[0].cells) {
      const button = header.querySelector("button");
      if (!button) continue;
      button.addEventListener("click", () =>
        sortBy(table, header, header.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending"));
    }
    const more = byId(table.id + "-more");
    if (more) {
      more.firstElementChild.textContent = "The first " + table.tBodies[0].rows.length + " rows are shown.";
      more.querySelector("button").addEventListener("click", () => { grid(table).limit = Infinity; showRows(table); });
    }
  }

  function setUpSearch(input) {
    const table = byId(input.dataset.table);
    const status = byId(input.dataset.status);
    const count = () => grid(table).rows.length + (grid(table).rest ? grid(table).rest.content.querySelectorAll("tr").length : 0);
    input.addEventListener("input", () => {
      grid(table).words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const shown = showRows(table);
      status.textContent = shown + " of " + count() + " classes";
    });
    status.textContent = count() + " of " + count() + " classes";
  }

  function start() {
    document.querySelectorAll("table.sortable").forEach(setUpSorting);
    document.querySelectorAll("input[data-table]").forEach(setUpSearch);
    for (const [id, figure] of Object.entries(figures)) if (id !== "block") draw(id, figure);
    setUpBlocks();
    setUpSamples();
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
