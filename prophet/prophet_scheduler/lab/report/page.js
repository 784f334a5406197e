// Gives the charts the page's ink, in light and in dark, and says in the page when all of them are drawn.
(() => {
  window.addEventListener("error", (event) => {
    document.body.dataset.error = event.message;
  });
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  async function paint() {
    const style = getComputedStyle(document.documentElement);
    const ink = style.getPropertyValue("--ink").trim();
    const line = style.getPropertyValue("--line").trim();
    const paper = style.getPropertyValue("--paper").trim();
    const figures = [...document.querySelectorAll(".plotly-graph-div")];
    for (const figure of figures) {
      const change = { "font.color": ink, "hoverlabel.bgcolor": paper, "hoverlabel.font.color": ink };
      for (const name of Object.keys(figure.layout).filter((key) => /^[xy]axis\d*$/.test(key))) {
        change[`${name}.gridcolor`] = line;
        change[`${name}.linecolor`] = line;
        change[`${name}.tickcolor`] = line;
      }
      await Plotly.relayout(figure, change);
    }
    document.body.dataset.drawn = String(figures.length);
    document.body.dataset.scheme = dark.matches ? "dark" : "light";
  }
  dark.addEventListener("change", paint);
  paint();
})();
