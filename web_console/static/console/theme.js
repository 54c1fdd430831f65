// Before the first paint: the theme that the reader chose. "auto" follows the system.
var pushqTheme = localStorage.getItem("pushq-theme");
if (pushqTheme === "light" || pushqTheme === "dark") document.documentElement.dataset.theme = pushqTheme;
