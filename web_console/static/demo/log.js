/** The last frames of all clients, newest first, redrawn a few times per second however many arrive. */

const FRAMES_MAX = 200;
const TEXT_MAX = 400;
const DRAW_MS = 250;
const MARKS = {in: "←", out: "→", "!": "!"};

export class FrameLog {
  #place; #of; #frames = []; #isPaused = false; #isStale = false;

  constructor(place, of, pause) {
    this.#place = place;
    this.#of = of;
    pause.addEventListener("click", () => {
      this.#isPaused = !this.#isPaused;
      pause.setAttribute("aria-pressed", this.#isPaused);
    });
    of.addEventListener("change", () => this.#draw());
    setInterval(() => this.#isStale && !this.#isPaused && this.#draw(), DRAW_MS);
  }

  add(name, direction, text) {
    if (this.#isPaused) return;
    if (![...this.#of.options].some((option) => option.value === name)) this.#of.add(new Option(name, name));
    const short = text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}…` : text;
    this.#frames.push({name, line: `${new Date().toISOString().slice(11, 23)} ${name} ${MARKS[direction]} ${short}`});
    if (this.#frames.length > FRAMES_MAX) this.#frames.shift();
    this.#isStale = true;
  }

  #draw() {
    this.#isStale = false;
    const wanted = this.#frames.filter(({name}) => !this.#of.value || name === this.#of.value);
    this.#place.textContent = wanted.map(({line}) => line).reverse().join("\n");
  }
}
