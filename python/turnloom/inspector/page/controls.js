// Keys

const keys = [
  ["j", "k", "next turn, previous turn", () => goOn(1, isTurn), () => goOn(-1, isTurn)],
  ["d", "D", "next drift, previous drift", () => goOn(1, isDrift), () => goOn(-1, isDrift)],
  ["ArrowRight", "ArrowLeft", "next token, previous token", () => moveCursor(1), () => moveCursor(-1)],
  ["g", "G", "beginning, end", () => streamList.show(0), () => streamList.show(stream.length - 1)],
  ["/", null, "search", () => element("query").select()],
  ["n", "N", "next match, previous match", () => goToHit(1), () => goToHit(-1)],
  ["m", null, "messages or tokens alone, or both", () => nextPane()],
  ["t", null, "dark or light", () => switchTheme()],
  ["?", null, "this list", () => element("keys").showModal()],
];
const actions = new Map();
for (const [key, other, meaning, act, actOther] of keys) {
  actions.set(key, act);
  if (other) actions.set(other, actOther);
  const name = make("dt");
  name.append(make("kbd", "", key.replace("ArrowRight", "→")));
  if (other) name.append(" ", make("kbd", "", other.replace("ArrowLeft", "←")));
  document.querySelector("#keys dl").append(name, make("dd", "", meaning));
}

document.addEventListener("keydown", (event) => {
  if (event.target === element("query")) {
    if (event.key === "Escape") element("stream").focus();
    return;
  }
  if (event.ctrlKey || event.metaKey || event.altKey || element("keys").open) return;
  const act = actions.get(event.key);
  if (act) {
    event.preventDefault();
    act();
  }
});

element("search").addEventListener("submit", (event) => event.preventDefault());
element("query").addEventListener("keydown", (event) => {
  if (event.key === "Enter") goToHit(event.shiftKey ? -1 : 1);
});
let typed;
element("query").addEventListener("input", () => {
  clearTimeout(typed);
  typed = setTimeout(() => searchFor(element("query").value), 150);
});
element("earlier").addEventListener("click", () => goToHit(-1));
element("later").addEventListener("click", () => goToHit(1));
element("help").addEventListener("click", () => element("keys").showModal());
element("theme").addEventListener("click", switchTheme);
element("panes").addEventListener("click", nextPane);

function switchTheme() {
  const dark = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  document.documentElement.dataset.theme = dark === "dark" ? "light" : "dark";
  overview.draw(streamList);
}

// Panes: both where there is room, else one of them

const isNarrow = () => matchMedia("(max-width: 900px)").matches;

function nextPane() {
  const panes = isNarrow() ? ["stream", "conversation"] : ["both", "stream", "conversation"];
  const now = document.body.dataset.pane ?? panes[0];
  setPane(panes[(panes.indexOf(now) + 1) % panes.length]);
}

function setPane(pane) {
  document.body.dataset.pane = pane;
  streamList.resized();
  messageList.resized();
}

function showPane(pane) {
  if (!element(pane).clientHeight) setPane(pane);
}
