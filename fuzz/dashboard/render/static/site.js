// Theme switch, copy buttons, sortable and filterable tables, charts. Every page is complete without it.
"use strict";
(() => {
  const page = document.documentElement;
  const themes = ["auto", "light", "dark"];
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (page.dataset.theme ? page.dataset.theme === "dark" : system.matches);

  // Theme
  const button = document.querySelector("[data-theme-switch]");
  const label = () => { button.textContent = `Theme: ${page.dataset.theme || "auto"}`; };
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(page.dataset.theme || "auto") + 1) % themes.length];
    if (next === "auto") delete page.dataset.theme; else page.dataset.theme = next;
    try { localStorage.setItem("attnfuzz-theme", next); } catch { /* nothing is kept */ }
    label();
    draw();
  });
  system.addEventListener("change", () => draw());
  label();

  // Copy: the clipboard where the page may use it, else a selection
  for (const one of document.querySelectorAll("[data-copy]")) {
    one.addEventListener("click", async () => {
      const code = one.parentElement.querySelector("code");
      const before = one.textContent;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch {
        getSelection().selectAllChildren(code);
        document.execCommand("copy");
      }
      one.textContent = "Copied";
      setTimeout(() => { one.textContent = before; }, 1500);
    });
  }

  // Sort: a button in each heading; the state is aria-sort
  const value = (row, at) => row.cells[at].dataset.value ?? row.cells[at].textContent.trim();
  const number = (text) => (/^[-+]?[\d.,]+(e[-+]?\d+)?\s*%?$/i.test(text) ? parseFloat(text.replaceAll(",", "")) : NaN);
  const compare = (a, b) => {
    const [x, y] = [number(a), number(b)];
    return Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const heading of table.querySelectorAll("thead th[data-sort]")) {
      heading.querySelector("button").addEventListener("click", () => {
        const down = heading.getAttribute("aria-sort") === "ascending";
        for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", down ? "descending" : "ascending");
        const at = heading.cellIndex, body = table.tBodies[0];
        const rows = [...body.rows].sort((a, b) => compare(value(a, at), value(b, at)) * (down ? -1 : 1));
        body.append(...rows);
      });
    }
  }

  // Filters
  for (const form of document.querySelectorAll("[data-filters]")) {
    const rows = [...document.getElementById(form.dataset.filters).tBodies[0].rows];
    const apply = () => {
      const words = form.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
      const { state, target } = form.elements;
      let shown = 0;
      for (const row of rows) {
        const fits = (!state.value || row.dataset.state === state.value)
          && (!target.value || row.dataset.target === target.value)
          && words.every((word) => row.dataset.words.includes(word));
        row.hidden = !fits;
        shown += fits;
      }
      form.querySelector("output").textContent = `${shown} of ${rows.length} shown`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("reset", () => setTimeout(apply));
    form.addEventListener("submit", (event) => event.preventDefault());
    apply();
  }
  document.addEventListener("keydown", (event) => {
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    const field = document.querySelector("[data-filters] input");
    if (event.key === "/" && field && !typing && !event.ctrlKey && !event.metaKey) {
      event.preventDefault();
      field.focus();
    }
  });

  // Charts: Bokeh's JSON, with texts and grids in the theme's colours; drawn when they come into view
  const colours = () => (dark()
    ? { text: "#c9d1d9", grid: "#3a424b" }
    : { text: "#3b434b", grid: "#d9dee3" });
  const paint = (node, { text, grid }) => {
    if (Array.isArray(node)) { node.forEach((one) => paint(one, { text, grid })); return; }
    if (!node || typeof node !== "object") return;
    if (node.type === "object" && node.attributes) {
      const own = node.attributes;
      if (/Axis$/.test(node.name)) { own.major_label_text_color = text; own.axis_label_text_color = text; }
      if (node.name === "Legend") own.label_text_color = text;
      if (node.name === "Grid" && own.grid_line_color !== null) own.grid_line_color = grid;
    }
    Object.values(node).forEach((one) => paint(one, { text, grid }));
  };
  const drawn = new Set();
  const show = (element) => {
    const item = (window.ATTNFUZZ_CHARTS || {})[element.id];
    if (!item || !window.Bokeh) return;
    const mine = structuredClone(item);
    paint(mine.doc, colours());
    element.replaceChildren();
    window.Bokeh.embed.embed_item(mine, element.id);
  };
  const watch = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting || drawn.has(target)) continue;
      drawn.add(target);
      show(target);
    }
  }, { rootMargin: "200px" });
  for (const element of document.querySelectorAll(".chart")) watch.observe(element);
  function draw() { drawn.forEach(show); }
})();
