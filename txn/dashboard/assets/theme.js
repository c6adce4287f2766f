// Runs before the first paint, so that the page does not flash in the other colours.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("txn-theme"); } catch { /* storage may be switched off */ }
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
})();
