/** The tests of all files that are named, in this one process: `node all.mjs FILE …`. It ends with 1 where one fails. */

for (const file of process.argv.slice(2)) await import(new URL(file, import.meta.url));
