// What pages gain with scripts: live sections, keys, the theme, copying. Without, they work too.

const root = document.documentElement;
const byId = (id) => document.getElementById(id);
const freshness = byId("freshness");

// Theme: the system's, until somebody chooses.
const themes = ["system", "light", "dark"];
function showTheme(theme) {
  if (theme === "system") delete root.dataset.theme;
  else root.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
}
function storedTheme() {
  try { return localStorage.getItem("inorder-theme") || "system"; } catch { return "system"; }
}
showTheme(themes.includes(storedTheme()) ? storedTheme() : "system");
byId("theme").addEventListener("click", () => {
  const next = themes[(themes.indexOf(root.dataset.theme || "system") + 1) % themes.length];
  try { localStorage.setItem("inorder-theme", next); } catch { /* it lasts for this page only */ }
  showTheme(next);
});

// What a screen reader is told, at most one message in five seconds.
let saidAt = 0;
function say(text) {
  const now = Date.now();
  if (now - saidAt < 5000) return;
  saidAt = now;
  byId("said").textContent = text;
}

// Live sections.
let source = null;
function isInUse(section) {
  const active = document.activeElement;
  if (section.contains(active) && active.matches("input, select, textarea")) return true;
  if (section.querySelector("details[open], input[type=checkbox]:checked")) return true;
  const selection = document.getSelection();
  return Boolean(selection && !selection.isCollapsed && section.contains(selection.anchorNode));
}
function replace(change) {
  const section = byId(change.id);
  if (!section || section.innerHTML === change.html || isInUse(section)) return;
  const active = section.contains(document.activeElement) ? document.activeElement : null;
  const href = active && active.getAttribute("href");
  const isRegion = active && active.matches(".scroll");
  const lefts = [...section.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const before = change.id === "state" ? section.textContent : "";
  section.innerHTML = change.html;
  [...section.querySelectorAll(".scroll")].forEach((one, at) => { one.scrollLeft = lefts[at] || 0; });
  if (href) {
    const same = [...section.querySelectorAll("a")].find((one) => one.getAttribute("href") === href);
    if (same) same.focus({ preventScroll: true });
  } else if (isRegion) {
    const region = section.querySelector(".scroll");
    if (region) region.focus({ preventScroll: true });
  }
  if (before && before !== section.textContent) say(section.textContent.slice(0, 200));
}
function mark(text, state) {
  freshness.textContent = text;
  freshness.parentElement.classList.toggle("on", state === "on");
  freshness.parentElement.classList.toggle("old", state === "old");
  root.classList.toggle("stale", state === "old");
}
function begin() {
  if (source || !document.querySelector("[data-live]")) return;
  freshness.parentElement.hidden = false;
  source = new EventSource(`/live?at=${encodeURIComponent(location.pathname + location.search)}`);
  mark("connecting…", "");
  source.addEventListener("section", (event) => replace(JSON.parse(event.data)));
  source.addEventListener("pulse", (event) => {
    const pulse = JSON.parse(event.data);
    if (pulse.error) mark("no answer", "old");
    else if (pulse.age_ms === null || pulse.age_ms <= 10000) mark("live", "on");
    else mark(`data ${Math.round(pulse.age_ms / 1000)} s old`, "old");
  });
  source.addEventListener("error", () => {
    mark("connection lost", "old");
    if (source && source.readyState === EventSource.CLOSED) { end(); setTimeout(begin, 10000); }
  });
}
function end() {
  if (source) source.close();
  source = null;
}
// A browser opens six connections a host: a hidden page lets its own go.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) { end(); mark("paused", ""); } else begin();
});
begin();

// Copying.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  navigator.clipboard.writeText(byId(button.dataset.copy).textContent)
    .then(() => { button.textContent = "Copied"; say("Copied"); })
    .catch(() => { button.textContent = "Not copied"; });
});

// Keys. Nothing is changed by one.
let pending = false;
function move(by) {
  const rows = [...document.querySelectorAll("main tbody tr, main .story > li")];
  if (!rows.length) return;
  const at = rows.findIndex((one) => one.classList.contains("at"));
  const next = rows[Math.min(rows.length - 1, Math.max(0, at + by))];
  if (at >= 0) rows[at].classList.remove("at");
  next.classList.add("at");
  const target = next.querySelector("a");
  if (target) target.focus();
  next.scrollIntoView({ block: "nearest" });
}
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.matches("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (byId("help").open) return;
  if (pending) {
    pending = false;
    const to = document.querySelector(`.pages [data-key="${CSS.escape(event.key)}"]`);
    if (to) { to.click(); event.preventDefault(); }
    return;
  }
  if (event.key === "g") { pending = true; setTimeout(() => { pending = false; }, 1500); }
  else if (event.key === "/") { byId("find").focus(); event.preventDefault(); }
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "r") location.reload();
  else if (event.key === "l") { if (source) { end(); mark("paused", ""); } else begin(); }
  else if (event.key === "?") byId("help").showModal();
});
