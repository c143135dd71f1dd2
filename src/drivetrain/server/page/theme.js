// Sets the chosen theme before the first paint. A classic script: modules run too late for that.
(() => {
  try {
    const theme = localStorage.getItem("drivetrain:theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is disabled: keep the system's theme.
  }
})();
