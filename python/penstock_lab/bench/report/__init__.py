"""Report from result files: one page, pictures and Markdown.

`files` and `runs` read result files; `request_rows` unpacks their arrays of single requests.
`curves`, `distributions` and `timelines` build charts as plain data (`charts`). `tables`, `records`
and `headlines` build text. `compose` assembles a `Document`. `drawing` renders charts; `page` and
`markdown` write documents.
"""
