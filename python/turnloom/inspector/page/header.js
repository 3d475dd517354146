// What stands above

element("name").textContent = printable(inspection.name || "rollout");
element("headline").append(
  make("b", `outcome ${inspection.outcome}`, inspection.outcome),
  [
    inspection.reward === null ? "no reward" : `reward ${inspection.reward}`,
    count(inspection.turns.length, "turn"),
    count(inspection.rows.filter(({ row }) => row !== null).length, "row"),
    ...(inspection.truncated ? ["truncated"] : []),
  ].join(" · "),
);
const warnings = [inspection.reason, inspection.unknown_ids ? `The tokenizer's vocabulary lacks ${count(inspection.unknown_ids, "token")}: is it the one of this model?` : null];
element("reason").textContent = warnings.filter(Boolean).join(" ");
element("reason").hidden = !warnings.some(Boolean);

const segments = inspection.rows.flatMap(({ segments }) => segments);
for (const [kind, meaning] of Object.entries(kinds)) {
  const tokens = segments.filter((segment) => segment.kind === kind).reduce((sum, { ids }) => sum + ids.length, 0);
  const label = make("span", "key");
  label.title = meaning;
  label.append(make("span", `token ${kind} s0`, kind), ` ${tokens.toLocaleString("en")}`);
  element("legend").append(label);
}
const scale = make("span", "key scale");
scale.title = "The probability of a trained token when it was sampled";
scale.append("likely ", ...[0, 1, 2, 3, 4, 5].map((level) => make("span", `token trained s${level}`, "\u2002")), " unlikely");
const { clean, realign, fork, drift_tokens } = inspection.drift;
const drift = [["clean", clean], ["realign", realign], ["fork", fork]].map(([kind, number]) => make("b", `kind ${kind}`, `${number} ${kind}`));
const joined = make("span", "key drift");
joined.append(...drift, ` ${count(drift_tokens, "token")} not repeated`);
element("legend").append(scale, joined);
