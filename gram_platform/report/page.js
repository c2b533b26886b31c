"use strict";
(function () {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 480px)");

  function theme() {
    const ink = dark.matches ? "#c9ced6" : "#4a4e54";
    return {
      "font.color": ink,
      "hoverlabel.bgcolor": dark.matches ? "#2a2e34" : "#ffffff",
      "hoverlabel.bordercolor": ink,
      "hoverlabel.font.color": ink,
    };
  }

  function follow(event) { // a figure's meta.url is the place of a page's address in its customdata
    const point = event.points[0];
    const url = point.data.meta && point.customdata ? String(point.customdata[point.data.meta.url]) : "";
    if (/^https?:\/\//.test(url)) window.open(url, "_blank", "noopener");
  }

  function draw(place) {
    const figure = JSON.parse(document.getElementById(place.dataset.source).textContent);
    const layout = Object.assign({}, figure.layout);
    layout.dragmode = narrow.matches ? false : "zoom"; // on a phone a finger scrolls the page
    const config = { responsive: true, displaylogo: false, displayModeBar: false };
    window.Plotly.newPlot(place, figure.data, layout, config)
      .then(() => place.on("plotly_click", follow))
      .then(() => window.Plotly.relayout(place, theme()))
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

  dark.addEventListener("change", () => {
    for (const place of places) {
      if (place.dataset.drawn) window.Plotly.relayout(place, theme());
    }
  });
})();
