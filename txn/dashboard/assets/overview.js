// All topologies.

import { spark } from "./charts.js";
import { button, command, copyable, empty, h, show, skeleton } from "./dom.js";
import { live } from "./data.js";
import { link } from "./address.js";
import { people, state, stats, troubleWords } from "./parts.js";
import { short } from "./format.js";

function card(one) {
  const most = Math.max(...one.spark);
  return h("article", { class: "card", "aria-label": one.name },
    h("header", { class: "card-head" }, h("h2", {}, h("a", { href: link(one.name, "topology"), "data-key": one.name }, one.name)), state(one),
      h("a", { class: "card-trouble", href: link(one.name, "trouble"), "data-key": `trouble ${one.name}` }, troubleWords(one))),
    stats(one),
    h("div", { class: "card-spark" }, one.spark.every((v) => v === null) ? null : spark(one.spark, `Rows staged a second in the last 30 minutes, at most ${short(most)}`), h("span", { class: "spark-words" }, most ? `Rows staged a second in the last 30 minutes, at most ${short(most)}` : `${one.spark.every((v) => v === null) ? "Nothing ran" : "No rows were staged"} in the last 30 minutes`)),
    one.worst ? h("p", { class: `worst ${one.troubles.error ? "err" : "warn"}`, title: one.worst }, h("span", {}, one.worst)) : null,
    people(one));
}

export function overview(root) {
  const list = h("div", { class: "cards" });
  root.append(h("h1", { class: "sr" }, "Overview"), list, h("p", { class: "hint" }, button("What the words mean", () => { document.getElementById("keys").showModal(); document.getElementById("words").scrollIntoView(); }, { class: "button link" })));
  const draw = () => {
    const told = live.overview;
    list.classList.toggle("single", told.topologies.length === 1);
    show(list, [told.topologies, told.error], () => {
      if (told.topologies.length) return told.topologies.map(card);
      const made = () => copyable(`txn new sales && cd sales && txn run sales.py:topology${told.option} --dashboard 127.0.0.1:8322`, "the commands");
      if (told.error && told.zookeeper.startsWith("embedded")) return empty("ZooKeeper does not answer.", told.error, "Start this page in the folder in which your topology runs. Or make a topology, and run it with a page of its own:", made());
      if (told.error) return empty("ZooKeeper does not answer.", told.error, "The page goes on asking, and shows the topologies as soon as ZooKeeper answers. If the address is wrong, end this page and start it again:", ...command("txn dashboard --zookeeper HOST:PORT", "HOST:PORT is the address of your ZooKeeper."));
      if (!told.looked_ms) return skeleton(`Asking ZooKeeper (${told.zookeeper}) which topologies there are…`);
      return empty("No topology has run here yet.", `ZooKeeper (${told.zookeeper}) has none. A topology appears here as soon as it runs. To make one, and run it with a page of its own:`, made());
    });
  };
  draw();
  return { changed: draw };
}
