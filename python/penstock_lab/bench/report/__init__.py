"""Result files to one page, pictures and Markdown.

Downward: `files` and `runs` read, `request_rows` unfolds the arrays of single requests, `curves`,
`distributions` and `timelines` make charts (plain data of `charts`), `tables`, `records` and
`headlines` make words, `compose` puts a `Document` together. `drawing` makes pictures of charts;
`page` and `markdown` write documents.
"""
