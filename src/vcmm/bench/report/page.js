"use strict";
// Draws the figures and runs the controls. Text from records is only ever read from the page, as
// text, and never made into markup.
(() => {
  const root = document.documentElement;
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const plots = [...document.querySelectorAll(".chart")];
  const config = {
    responsive: true,
    displaylogo: false,
    displayModeBar: "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "sendDataToCloud"],
    scrollZoom: false,
  };

  // Colours are names of the theme.
  function coloured(value, names) {
    if (Array.isArray(value)) return value.map((one) => coloured(one, names));
    if (value === null || typeof value !== "object") return value;
    const found = {};
    for (const [key, one] of Object.entries(value)) {
      const name = key.endsWith("color") && typeof one === "string" && /^var\((--[\w-]+)\)$/.exec(one);
      found[key] = name ? names.getPropertyValue(name[1]).trim() : coloured(one, names);
    }
    return found;
  }

  function hiddenArms(plot) {
    // What is over all data sets stands in no setting, and has no chips.
    const chips = plot.closest(".setting")?.querySelectorAll('.chip[aria-pressed="false"]');
    return new Set([...(chips ?? [])].map((chip) => chip.dataset.arm));
  }

  function draw(plot) {
    const names = getComputedStyle(root);
    const hidden = hiddenArms(plot);
    const { data, layout } = coloured(charts[plot.dataset.chart], names);
    for (const trace of data) trace.visible = !hidden.has(trace.meta.arm);
    return Plotly.react(plot, data, layout, config);
  }

  // What is not shown has no size yet; it is drawn when it is.
  let round = 0;
  async function drawAll() {
    const mine = ++round;
    delete root.dataset.ready;
    for (const plot of plots) {
      if (plot.offsetParent === null) continue;
      await new Promise((resolve) => setTimeout(resolve));
      if (mine !== round) return;
      await draw(plot);
    }
    root.dataset.ready = "true";
  }

  function remembered(key, fallback) {
    try {
      return localStorage.getItem(key) || fallback;
    } catch {
      return fallback;
    }
  }

  function remember(key, value) {
    try {
      localStorage.setItem(key, value);
    } catch {
      // A browser may forbid it; then the next visit starts as the first.
    }
  }

  // Theme: as the system has it, light, dark.
  const themes = ["auto", "light", "dark"];
  const words = { auto: "as the system has it", light: "light", dark: "dark" };
  const button = document.getElementById("theme");
  function setTheme(theme) {
    root.dataset.theme = theme;
    button.querySelector("span").textContent = theme;
    button.setAttribute("aria-label", `Theme: ${words[theme]}`);
  }
  const kept = remembered("vcmm-theme", "auto");
  setTheme(themes.includes(kept) ? kept : "auto");
  button.addEventListener("click", () => {
    const next = themes[(themes.indexOf(root.dataset.theme) + 1) % themes.length];
    setTheme(next);
    remember("vcmm-theme", next);
    drawAll();
  });
  // Paper is white.
  addEventListener("beforeprint", () => {
    root.dataset.kept = root.dataset.theme;
    root.dataset.theme = "light";
    for (const plot of plots) if (plot.offsetParent !== null) draw(plot);
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = root.dataset.kept;
    drawAll();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

  // Which epoch counts.
  for (const input of document.querySelectorAll('input[name="selection"]')) {
    input.checked = input.value === root.dataset.selection;
    input.addEventListener("change", () => {
      root.dataset.selection = input.value;
      drawAll();
    });
  }

  // Sorting: all tables of a setting alike, so that another rule keeps the order of the eye.
  function compare(a, b) {
    const [x, y] = [Number(a), Number(b)];
    const numbers = a !== "" && b !== "" && !Number.isNaN(x) && !Number.isNaN(y);
    return numbers ? x - y : a.localeCompare(b);
  }
  function sort(table, index, direction) {
    const body = table.tBodies[0];
    const key = (row) => row.cells[index].dataset.sort;
    const rows = [...body.rows];
    rows.sort((a, b) => {
      // What has no value stands last, in either direction.
      if (key(a) === "" || key(b) === "") return (key(a) === "") - (key(b) === "");
      return (direction === "ascending" ? 1 : -1) * compare(key(a), key(b));
    });
    body.append(...rows);
    for (const head of table.tHead.rows[0].cells) {
      if (head.hasAttribute("aria-sort")) head.setAttribute("aria-sort", "none");
    }
    table.tHead.rows[0].cells[index].setAttribute("aria-sort", direction);
  }

  for (const setting of document.querySelectorAll(".setting")) {
    const tables = [...setting.querySelectorAll("table.results")];

    setting.addEventListener("click", (event) => {
      const pressed = event.target.closest("button");
      if (pressed === null) return;
      const head = pressed.closest("th[aria-sort]");
      if (head !== null) {
        const first = head.classList.contains("number") ? "descending" : "ascending";
        const other = first === "descending" ? "ascending" : "descending";
        const direction = head.getAttribute("aria-sort") === first ? other : first;
        for (const table of tables) sort(table, head.cellIndex, direction);
      } else if (pressed.matches(".hide")) {
        hide(pressed.closest("tr").dataset.arm);
      } else if (pressed.matches(".unhide")) {
        hide(null);
      } else if (pressed.matches(".chip")) {
        press([pressed], pressed.getAttribute("aria-pressed") !== "true");
      } else if (pressed.matches(".all, .none")) {
        press(setting.querySelectorAll(".chip"), pressed.matches(".all"));
      }
    });

    setting.addEventListener("change", (event) => {
      const key = event.target.dataset.column;
      if (key === undefined) return;
      for (const one of setting.querySelectorAll("[data-column]")) {
        if (one.dataset.column !== key) continue;
        if (one.matches("input")) one.checked = event.target.checked;
        else one.hidden = !event.target.checked;
      }
    });

    function hide(arm) {
      for (const table of tables) {
        const rows = [...table.tBodies[0].rows];
        for (const row of rows) {
          if (arm === null) row.hidden = false;
          else if (row.dataset.arm === arm) row.hidden = true;
        }
        const count = rows.filter((row) => row.hidden).length;
        const all = table.closest(".card").querySelector(".unhide");
        all.hidden = count === 0;
        all.textContent = `Show all rows (${count} hidden)`;
      }
    }

    function press(chips, on) {
      for (const chip of chips) chip.setAttribute("aria-pressed", String(on));
      drawAll();
    }
  }

  drawAll();
})();
