"use strict";
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 480px)");
  const FILTERED_FROM = 15; // rows; shorter tables have no filter and no sorting

  const ON_PAPER = 440; // pixels of a figure's width: two stand side by side on a landscape page of A4 or Letter

  function theme(isDark = dark.matches) {
    const ink = isDark ? "#c9ced6" : "#4a4e54";
    return {
      "font.color": ink,
      "hoverlabel.bgcolor": isDark ? "#2a2e34" : "#ffffff",
      "hoverlabel.bordercolor": ink,
      "hoverlabel.font.color": ink,
    };
  }

  function themed(layout, isDark) { // a layout with the theme
    const copy = structuredClone(layout);
    for (const [path, value] of Object.entries(theme(isDark))) {
      const keys = path.split(".");
      const last = keys.pop();
      keys.reduce((place, key) => (place[key] ??= {}), copy)[last] = value;
    }
    return copy;
  }

  // a page beside MLflow's database leads to its pages; from a report that was moved into history/DATE it is further up
  const TO_DATABASE = /^(\.\.\/)+mlflow\.html#/;
  const isMoved = /\/studies\/[^/]+\/history\/[^/]+\/[^/]+$/.test(window.location.pathname);
  const located = (address) => (isMoved && TO_DATABASE.test(address) ? `../../${address}` : address);
  for (const link of document.querySelectorAll("td a")) link.setAttribute("href", located(link.getAttribute("href")));

  // meta.url and meta.runs are indices in a point's customdata: of a page's address, and of run ids, whose pages in
  // MLflow the page's tables know
  function follow(event) {
    const point = event.points[0];
    const meta = point.data.meta;
    if (!meta || !point.customdata) return;
    const run = meta.runs === undefined ? null : /[0-9a-f]{12}/.exec(String(point.customdata[meta.runs]));
    const link = run && Array.from(document.querySelectorAll("td a")).find((place) => place.textContent === run[0]);
    const url = link ? link.getAttribute("href") : located(String(point.customdata[meta.url]));
    if (/^https?:\/\//.test(url) || TO_DATABASE.test(url)) window.open(url, "_blank", "noopener");
  }

  function show(place) { // draws a figure, or an altered one again as it was at first
    const figure = JSON.parse(document.getElementById(place.dataset.source).textContent);
    const layout = themed(figure.layout);
    layout.dragmode = narrow.matches ? false : "zoom"; // on a phone a finger scrolls the page
    const config = { responsive: true, displaylogo: false, displayModeBar: false };
    return window.Plotly.react(place, figure.data, layout, config);
  }

  function link(place, kind, address) { // saves a file when it is followed
    const anchor = document.createElement("a");
    anchor.href = address;
    anchor.download = `${place.dataset.name}.${kind}`;
    return anchor;
  }

  function saveSvg(place) { // as it is zoomed now, on any page in the colours for white paper
    const figure = { data: place.data, layout: themed(place.layout, false) };
    window.Plotly.toImage(figure, { format: "svg", width: place.clientWidth, height: place.clientHeight })
      .then((address) => link(place, "svg", address).click());
  }

  function addControls(place) {
    const bar = place.nextElementSibling; // with a link to the command and commit, if they are known
    const csv = place.layout.meta?.csv && link(place, "csv", `data:text/csv;charset=utf-8,${place.layout.meta.csv}`);
    const controls = [["SVG", document.createElement("button")], ["CSV", csv], ["Reset", document.createElement("button")]];
    for (const [text, control] of controls.filter(([, control]) => control)) {
      control.textContent = text;
      control.setAttribute("aria-label", `${text}: ${place.getAttribute("aria-label")}`);
      bar.insertBefore(control, bar.querySelector("a[href^='#']"));
    }
    controls[0][1].addEventListener("click", () => saveSvg(place));
    controls[2][1].addEventListener("click", () => show(place));
  }

  function draw(place) {
    show(place)
      .then(() => place.on("plotly_click", follow))
      .then(() => addControls(place))
      .then(() => place.setAttribute("data-drawn", "yes"));
  }

  const places = Array.from(document.querySelectorAll(".plot"));
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        watcher.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "600px" });
  places.forEach((place) => watcher.observe(place));

  // paper has no scroll and no folds, and is white
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details:not([open])")) {
      fold.open = true;
      fold.dataset.printed = "yes";
    }
    for (const place of places) {
      if (!place.dataset.drawn) {
        watcher.unobserve(place);
        draw(place);
      }
      window.Plotly.relayout(place, { ...theme(false), width: ON_PAPER });
    }
  });

  window.addEventListener("afterprint", () => {
    for (const fold of document.querySelectorAll("details[data-printed]")) {
      fold.open = false;
      delete fold.dataset.printed;
    }
    for (const place of places) window.Plotly.relayout(place, { ...theme(), width: null, autosize: true });
  });

  dark.addEventListener("change", () => {
    for (const place of places) {
      if (place.dataset.drawn) window.Plotly.relayout(place, theme());
    }
  });

  function valueOf(row, column) { // h:mm:ss as seconds, numbers, 50M and 2B as numbers, else text
    const text = row.cells[column].textContent.trim();
    if (/^\d+(:\d\d){1,2}$/.test(text)) return text.split(":").reduce((sum, part) => 60 * sum + Number(part), 0);
    const number = parseFloat(text.replaceAll(",", "").replace("$", ""));
    const unit = { K: 1e3, M: 1e6, B: 1e9 }[/^[\d.]+([KMB])$/.exec(text)?.[1]] ?? 1;
    return /^[$\d.,+-]/.test(text) && !Number.isNaN(number) ? number * unit : text;
  }

  function compare(a, b) {
    if (a === "" || b === "") return (a === "") - (b === ""); // empty cells come last
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  function sortBy(table, column) {
    const heads = Array.from(table.tHead.rows[0].cells);
    const falling = heads[column].getAttribute("aria-sort") === "ascending";
    heads.forEach((head) => head.removeAttribute("aria-sort"));
    heads[column].setAttribute("aria-sort", falling ? "descending" : "ascending");
    const rows = Array.from(table.tBodies[0].rows).map((row) => [valueOf(row, column), row]);
    rows.sort(([a], [b]) => (falling && a !== "" && b !== "" ? compare(b, a) : compare(a, b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function equip(table) { // adds buttons that sort and a field that filters
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      button.addEventListener("click", () => sortBy(table, column));
      head.append(button);
    });
    const label = document.createElement("label");
    const input = document.createElement("input");
    const count = document.createElement("span");
    label.className = "filter soft";
    count.setAttribute("aria-live", "polite");
    input.type = "search";
    input.placeholder = "words that a row must have";
    label.append("Filter ", input, " ", count);
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      count.textContent = words.length ? `${shown} of ${table.tBodies[0].rows.length} rows` : "";
    });
    table.parentElement.before(label);
  }

  for (const table of document.querySelectorAll(".scroll > table")) {
    if (table.tBodies[0].rows.length >= FILTERED_FROM) equip(table);
  }
})();
