"use strict";
// Sort tables by a column, and unfold details for print. The page works without scripts. Rows stay within their section.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => {
    const numeric = [...table.tBodies].some((body) =>
      [...body.rows].some((row) => row.cells[column] && "sort" in row.cells[column].dataset));
    if (!numeric) return;
    const button = document.createElement("button");
    button.textContent = head.textContent;
    button.title = "Sort by " + head.textContent;
    head.replaceChildren(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") !== "descending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const value = (row) => {
        const text = row.cells[column].dataset.sort;
        return text === undefined ? NaN : Number(text);
      };
      for (const body of table.tBodies) {
        const rows = [...body.rows].filter((row) => !row.classList.contains("kind"));
        rows.sort((a, b) => {
          const [x, y] = [value(a), value(b)];
          if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
          return down ? y - x : x - y;
        });
        body.append(...rows);
      }
    });
  });
}
