// A policy's column: its list, how likely each item is, and what the last click changed.
import { chance, element, percent, step, times } from "./dom.js";

const NAMED_LEFT = 4;

// Where each item of a list stands, counted from 1.
const places = (items) => new Map(items.map(({ item }, at) => [item, at + 1]));

// How an item came to its place: { way: "up" | "down" | "new" | "same", by }, or null where nothing was clicked.
function moved(item, place, before) {
  if (!before) return null;
  const was = before.get(item);
  if (was === undefined) return { way: "new", by: 0 };
  return { way: was > place ? "up" : was < place ? "down" : "same", by: Math.abs(was - place) };
}

const SAID = { up: (by) => `up ${by}`, down: (by) => `down ${by}`, new: () => "new here", same: () => "unmoved" };
const DRAWN = { up: (by) => `▲ ${by}`, down: (by) => `▼ ${by}`, new: () => "new", same: () => "–" };

function row(shown, place, { before, seen, drawn }) {
  const { item, score, probability: share, logging_probability: logged, position_probability: here } = shown;
  const move = moved(item, place, before);
  const known = share !== null;
  const figures = [];
  if (drawn) figures.push(`this place ${percent(here)}`);
  if (known && logged !== undefined && logged !== null)
    figures.push(`log ${percent(logged)}`, logged > 0 ? times(share / logged) : "∞×");
  const label = [
    `${place}: ${item}`,
    known ? `probability ${percent(share)}` : `score ${score.toFixed(3)}`,
    ...figures,
    move && SAID[move.way](move.by),
    seen.has(item) && "clicked before",
    "Click it",
  ];
  const bar = known && element("span", { class: "bar" }, element("span", { class: "fill" }));
  if (bar) bar.style.setProperty("--share", share);
  if (bar && figures.length && logged !== undefined && logged !== null) {
    bar.append(element("span", { class: "tick" }));
    bar.style.setProperty("--logged", logged);
  }
  const tags = [];
  if (move) tags.push(element("span", { class: `move ${move.way}` }, DRAWN[move.way](move.by)));
  if (seen.has(item)) tags.push(element("span", {}, "clicked"));
  return element(
    "li",
    {},
    element(
      "button",
      { type: "button", class: "row", "data-item": item, title: item, "aria-label": label.filter(Boolean).join(", ") },
      element("span", { class: "place" }, String(place)),
      element("span", { class: "id" }, item),
      element("span", { class: "share" }, known ? percent(share) : score.toFixed(3)),
      bar || null,
      tags.length ? element("span", { class: "tags" }, ...tags) : null,
      figures.length ? element("span", { class: "log" }, ...figures.map((text) => element("span", {}, text))) : null,
    ),
  );
}

function leftBehind(now, before, length) {
  const at = places(now), shown = new Set(now.slice(0, length).map(({ item }) => item));
  const gone = before.slice(0, length).filter(({ item }) => !shown.has(item));
  if (!gone.length) return null;
  const named = gone.slice(0, NAMED_LEFT).map(({ item }) =>
    element("li", {}, element("span", { class: "id", title: item }, item), element("span", {}, at.has(item) ? `now ${at.get(item)}` : `beyond ${now.length}`)),
  );
  const more = gone.length - named.length;
  return element(
    "footer",
    {},
    element("h3", {}, "Left the list"),
    element("ul", {}, ...named),
    more > 0 ? element("p", { class: "quiet" }, `and ${more} more`) : null,
  );
}

function notes({ now, drawn, temperature }) {
  const said = [];
  if (drawn) {
    const at = temperature === 1 ? "" : ` at temperature ${temperature}`;
    said.push(element("p", { class: "drawn" }, "Probability of this list, in this order", at, ": ", element("b", {}, chance(now.log_probability))));
  }
  if (now.unknown_items) said.push(element("p", { class: "quiet" }, `${now.unknown_items} ${now.unknown_items === 1 ? "click is" : "clicks are"} unknown to it, and skipped.`));
  return said;
}

function about({ learner, n_items: items, stochastic }) {
  return `${learner} · ${items.toLocaleString("en")} items${stochastic ? "" : " · scores, no probabilities"}`;
}

export function makeColumn(facts, { take, retry }) {
  const body = element("div", { class: "body" });
  const column = element(
    "article",
    { class: "column card", "aria-label": facts.policy, "data-policy": facts.policy },
    element(
      "header",
      {},
      element("h2", { title: facts.policy }, facts.policy),
      element("p", { class: "quiet", title: `run ${facts.run}, fingerprint ${facts.fingerprint}` }, about(facts)),
    ),
    body,
  );
  column.addEventListener("click", (event) => {
    const button = event.target.closest(".row");
    if (button) take(button.dataset.item);
  });
  column.addEventListener("keydown", (event) => moveAmong(event, column));
  return {
    column,
    waiting() {
      column.setAttribute("aria-busy", "true");
      if (!body.childElementCount) body.append(element("p", { class: "quiet loading" }, "Loading …"));
    },
    show(found) {
      column.removeAttribute("aria-busy");
      const { now, before, length, session, drawn } = found;
      const context = { before: before && places(before.items), seen: new Set(session), drawn };
      const focused = column.contains(document.activeElement) ? document.activeElement.dataset.item : null;
      const rows = now.items.slice(0, length).map((shown, at) => row(shown, at + 1, context));
      const left = before && leftBehind(now.items, before.items, length);
      body.replaceChildren(...notes(found), element("ol", { class: "rows" }, ...rows), ...(left ? [left] : []));
      if (focused !== null) refocus(body, focused);
    },
    say(sentence) {
      column.removeAttribute("aria-busy");
      body.replaceChildren(element("p", { class: "quiet" }, sentence));
    },
    fail(sentence) {
      column.removeAttribute("aria-busy");
      const button = element("button", { type: "button" }, "Try again");
      button.addEventListener("click", retry);
      body.replaceChildren(element("p", { class: "failed", role: "alert" }, sentence), button);
    },
  };
}

// After a click in the list the focus stays with the item or, if that has left, at the top.
function refocus(body, item) {
  const all = [...body.querySelectorAll(".row")];
  (all.find((button) => button.dataset.item === item) ?? all[0])?.focus({ preventScroll: true });
}

function moveAmong(event, column) {
  const button = event.target.closest(".row");
  if (!button) return;
  const all = [...column.querySelectorAll(".row")];
  const beside = { ArrowLeft: column.previousElementSibling, ArrowRight: column.nextElementSibling }[event.key];
  if (event.key === "ArrowDown") step(all, button, 1);
  else if (event.key === "ArrowUp") step(all, button, -1);
  else if (beside) {
    const others = [...beside.querySelectorAll(".row")];
    others[Math.min(all.indexOf(button), others.length - 1)]?.focus();
  } else return;
  event.preventDefault();
}
