// The column of a policy: its list, the probability of each item, and what the last click changed.
import { describeItem, element, formatLogProbability, formatPercent, formatRatio, moveFocus, nameOf } from "./dom.js";

const MAX_NAMED_LEAVERS = 4; // items that left the list and are shown by name

// Item → rank, from 1.
const ranksOf = (items) => new Map(items.map(({ item }, index) => [item, index + 1]));

// How an item's rank changed: { direction: "up" | "down" | "new" | "same", by }, or null without a previous list.
function rankChange(item, rank, previousRanks) {
  if (!previousRanks) return null;
  const previous = previousRanks.get(item);
  if (previous === undefined) return { direction: "new", by: 0 };
  return { direction: previous > rank ? "up" : previous < rank ? "down" : "same", by: Math.abs(previous - rank) };
}

const CHANGE_LABELS = { up: (by) => `up ${by}`, down: (by) => `down ${by}`, new: () => "new in the list", same: () => "same rank" };
const CHANGE_SYMBOLS = { up: (by) => `▲ ${by}`, down: (by) => `▼ ${by}`, new: () => "new", same: () => "–" };

function createRow(entry, rank, { previousRanks, clickedItems, isSampled }) {
  const { item, score, probability, logging_probability: logging, position_probability: position } = entry;
  const change = rankChange(item, rank, previousRanks);
  const hasProbability = probability !== null, hasLogging = hasProbability && logging !== undefined && logging !== null;
  const figures = [];
  if (isSampled) figures.push(`position ${formatPercent(position)}`);
  else if (hasLogging) figures.push(`log ${formatPercent(logging)}`); // a row has no space for both
  if (hasLogging) figures.push(logging > 0 ? formatRatio(probability / logging) : "∞×");
  const figure = hasProbability ? formatPercent(probability) : score.toFixed(3);
  const label = [
    `${rank}: ${describeItem(item)}`,
    `${hasProbability ? "probability" : "score"} ${figure}`,
    ...figures,
    change && CHANGE_LABELS[change.direction](change.by),
    clickedItems.has(item) && "clicked before",
    "Click this item",
  ];
  const bar = hasProbability ? element("span", { class: "bar" }, element("span", { class: "fill" })) : null;
  bar?.style.setProperty("--probability", probability);
  if (hasLogging) {
    bar.append(element("span", { class: "tick" }));
    bar.style.setProperty("--logging", logging);
  }
  const tags = [];
  if (change) tags.push(element("span", { class: `change ${change.direction}` }, CHANGE_SYMBOLS[change.direction](change.by)));
  if (clickedItems.has(item)) tags.push(element("span", {}, "clicked"));
  const attributes = { type: "button", class: "row", "data-item": item, title: describeItem(item), "aria-label": label.filter(Boolean).join(", ") };
  return element(
    "li",
    {},
    element(
      "button",
      attributes,
      element("span", { class: "rank" }, String(rank)),
      element("span", { class: "id" }, nameOf(item)),
      element("span", { class: "figure" }, figure),
      bar,
      tags.length ? element("span", { class: "tags" }, ...tags) : null,
      figures.length ? element("span", { class: "details" }, ...figures.map((text) => element("span", {}, text))) : null,
    ),
  );
}

function createLeavers(current, previous, length) {
  const ranks = ranksOf(current), shown = new Set(current.slice(0, length).map(({ item }) => item));
  const leavers = previous.slice(0, length).filter(({ item }) => !shown.has(item));
  if (!leavers.length) return null;
  const named = leavers.slice(0, MAX_NAMED_LEAVERS).map(({ item }) =>
    element(
      "li",
      {},
      element("span", { class: "id", title: describeItem(item) }, nameOf(item)),
      element("span", {}, ranks.has(item) ? `now ${ranks.get(item)}` : `below ${current.length}`),
    ),
  );
  const more = leavers.length - named.length;
  return element(
    "footer",
    {},
    element("h3", {}, "Left the list"),
    element("ul", {}, ...named),
    more > 0 ? element("p", { class: "quiet" }, `and ${more} more`) : null,
  );
}

function createNotes({ current, isSampled, temperature }) {
  const notes = [];
  if (isSampled) {
    const suffix = temperature === 1 ? "" : ` at temperature ${temperature}`;
    const probability = element("b", {}, formatLogProbability(current.log_probability));
    notes.push(element("p", { class: "list-probability" }, `Probability of this ordered list${suffix}: `, probability));
  }
  const unknown = current.unknown_items;
  if (unknown) {
    const text = unknown === 1 ? "1 clicked item is not in this catalogue and is ignored." : `${unknown} clicked items are not in this catalogue and are ignored.`;
    notes.push(element("p", { class: "quiet" }, text));
  }
  return notes;
}

const describe = ({ learner, n_items, stochastic }) =>
  `${learner} · ${n_items.toLocaleString("en")} items${stochastic ? "" : " · scores only"}`;

export function createColumn(policy, { clickItem, retry }) {
  const body = element("div", { class: "body" });
  const column = element(
    "article",
    { class: "column card", "aria-label": policy.policy, "data-policy": policy.policy },
    element(
      "header",
      {},
      element("h2", { title: policy.policy }, policy.policy),
      element("p", { class: "quiet", title: `run ${policy.run}, fingerprint ${policy.fingerprint}` }, describe(policy)),
    ),
    body,
  );
  column.addEventListener("click", (event) => {
    const button = event.target.closest(".row");
    if (button) clickItem(button.dataset.item);
  });
  column.addEventListener("keydown", (event) => onKey(event, column));
  return {
    column,
    showLoading() {
      column.setAttribute("aria-busy", "true");
      if (!body.childElementCount) body.append(element("p", { class: "quiet loading" }, "Loading …"));
    },
    showList(view) {
      column.removeAttribute("aria-busy");
      const { current, previous, length, session, isSampled } = view;
      const context = { previousRanks: previous && ranksOf(previous.items), clickedItems: new Set(session), isSampled };
      const focusedItem = column.contains(document.activeElement) ? document.activeElement.dataset.item : null;
      const rows = current.items.slice(0, length).map((entry, index) => createRow(entry, index + 1, context));
      const leavers = previous && createLeavers(current.items, previous.items, length);
      body.replaceChildren(...createNotes(view), element("ol", { class: "rows" }, ...rows), ...(leavers ? [leavers] : []));
      if (focusedItem !== null) restoreFocus(body, focusedItem);
    },
    showText(sentence) {
      column.removeAttribute("aria-busy");
      body.replaceChildren(element("p", { class: "quiet" }, sentence));
    },
    showError(sentence) {
      column.removeAttribute("aria-busy");
      const button = element("button", { type: "button" }, "Try again");
      button.addEventListener("click", retry);
      body.replaceChildren(element("p", { class: "error", role: "alert" }, sentence), button);
    },
  };
}

// After a click, the focus stays on the item; if the item left the list, it moves to the first row.
function restoreFocus(body, item) {
  const rows = [...body.querySelectorAll(".row")];
  (rows.find((row) => row.dataset.item === item) ?? rows[0])?.focus({ preventScroll: true });
}

function onKey(event, column) {
  const row = event.target.closest(".row");
  if (!row) return;
  const rows = [...column.querySelectorAll(".row")];
  const neighbour = { ArrowLeft: column.previousElementSibling, ArrowRight: column.nextElementSibling }[event.key];
  if (event.key === "ArrowDown") moveFocus(rows, row, 1);
  else if (event.key === "ArrowUp") moveFocus(rows, row, -1);
  else if (neighbour) {
    const others = [...neighbour.querySelectorAll(".row")];
    others[Math.min(rows.indexOf(row), others.length - 1)]?.focus();
  } else return;
  event.preventDefault();
}
