"""Report from result files: one page, pictures and Markdown.

Top down: `files` and `runs` read, `request_rows` unpacks the arrays of single requests. `curves`,
`distributions` and `timelines` build charts (plain data, `charts`). `tables`, `records` and
`headlines` build text. `compose` assembles a `Document`. `drawing` renders charts; `page` and
`markdown` write documents.
"""
