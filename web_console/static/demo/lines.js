/** Short lists that show their newest lines. */

const LINES_MAX = 50;

/** Appends an empty line to the list, and scrolls it into view. */
export function addLine(id) {
  const list = document.getElementById(id);
  const line = document.createElement("li");
  list.append(line);
  while (list.children.length > LINES_MAX) list.firstChild.remove();
  list.scrollTop = list.scrollHeight;
  return line;
}

export function showLine(id, text) {
  addLine(id).textContent = text;
  const list = document.getElementById(id);
  list.scrollTop = list.scrollHeight;
}
