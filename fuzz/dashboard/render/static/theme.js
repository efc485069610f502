// Runs before the page is painted: the theme that was chosen, and that scripts run.
"use strict";
document.documentElement.classList.add("script");
try {
  const chosen = localStorage.getItem("attnfuzz-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch { /* a browser that keeps nothing for files */ }
