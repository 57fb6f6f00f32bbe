"""A set of function calls of the kind of the Berkeley leaderboard, written here.

Categories are named as there: `simple` has one function and one call, `multiple` several functions
and one call, `parallel` one function and several calls, `parallel_multiple` several of both, and
`irrelevance` a question that none of its functions answers.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

WORD: Schema = {"type": "string", "maxLength": 24}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 1000}
NUMBER: Schema = {"type": "number", "minimum": -1000, "maximum": 1000}
FLAG: Schema = {"type": "boolean"}
DATE: Schema = {"type": "string", "format": "date"}
WORDS: Schema = {"type": "array", "items": WORD, "minItems": 1, "maxItems": 3}
COUNTS: Schema = {"type": "array", "items": COUNT, "minItems": 1, "maxItems": 4}


def one_of(*values: str | int) -> Schema:
    return {"enum": list(values)}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def record(required: str, **properties: Schema) -> Schema:
    """An object; `required` names members, separated by spaces."""
    return {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }


def tool(name: str, description: str, required: str, **properties: Schema) -> Schema:
    """A function in OpenAI's form; strings are short, so that an answer ends."""
    parameters = record(required, **properties)
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


POINT = record("x y", x=NUMBER, y=NUMBER)
UNIT = one_of("celsius", "fahrenheit")
NULL: Schema = {"type": "null"}

FUNCTIONS = {
    function["function"]["name"]: function
    for function in (
        tool("get_weather", "The weather of a city.", "city", city=WORD, unit=UNIT),
        tool("get_time", "The time in a zone.", "zone", zone=WORD),
        tool("math.add", "The sum of two numbers.", "a b", a=COUNT, b=COUNT),
        tool("math.factorial", "The factorial of n.", "n", n=COUNT),
        tool("math.hypot", "The hypotenuse.", "x y", x=COUNT, y=COUNT, z=either(COUNT, NULL)),
        tool("triangle.area", "The area.", "base height", base=COUNT, height=COUNT, unit=WORD),
        tool("statistics.mean", "The mean of numbers.", "numbers", numbers=COUNTS),
        tool("geometry.distance", "Between two points.", "a b", a=POINT, b=POINT),
        tool("convert_currency", "Converts money.", "amount to", amount=NUMBER, to=WORD),
        tool("translate", "Translates a text.", "text to", text=WORD, to=one_of("de", "fr", "ja")),
        tool("book_flight", "Books a flight.", "to day", to=WORD, day=DATE, window=FLAG),
        tool("book_table", "Books a table.", "guests hour", guests=COUNT, hour=COUNT, note=WORD),
        tool("send_mail", "Sends a letter.", "to subject", to=WORDS, subject=WORD, urgent=FLAG),
        tool("set_alarm", "Sets an alarm.", "hour minute", hour=COUNT, minute=COUNT, label=WORD),
        tool("play_song", "Plays a song.", "title", title=WORD, artist=WORD, loud=FLAG),
        tool("find_recipe", "Finds a recipe.", "has", has=WORDS, diet=one_of("vegan", "any")),
        tool("stock.price", "The price of a share.", "symbol", symbol=WORD, days=COUNT),
        tool("lights", "Switches the light.", "room on", room=WORD, on=FLAG, level=one_of(1, 2, 3)),
        tool("database.query", "Rows of a table.", "table", table=WORD, where=record("", id=COUNT)),
        tool("git-commit", "Commits files.", "message files", message=WORD, files=WORDS),
        tool("draw.shape", "Draws.", "shape", shape=either(record("r", r=COUNT), POINT)),
        tool("stop_music", "Stops the music.", ""),
    )
}

_SIMPLE = {
    "get_weather": "What is the weather in Paris in celsius?",
    "get_time": "What time is it in Tokyo?",
    "math.add": "What is 17 and 25 together?",
    "math.factorial": "What is the factorial of 5?",
    "math.hypot": "Sides of 4 and 5: how long is the hypotenuse?",
    "triangle.area": "The area of a triangle with a base of 10 and a height of 5?",
    "statistics.mean": "What is the mean of 3, 16 and 60?",
    "geometry.distance": "How far is it from (1, 2) to (4, 6.5)?",
    "convert_currency": "How many euros are 120 dollars?",
    "translate": "How do you say good morning in French?",
    "book_flight": "A window seat to Rome on the third of May 2027.",
    "book_table": "A table for four at seven in the evening, please.",
    "send_mail": "Write to Anna and Ben that lunch is ready, it is urgent.",
    "set_alarm": "Wake me at half past six.",
    "play_song": "Play Yesterday by the Beatles.",
    "find_recipe": "What vegan dish can I make of rice and beans?",
    "stock.price": "How did ACME do in the last 30 days?",
    "lights": "Make the kitchen as bright as it gets.",
    "database.query": "Show user 7.",
    "git-commit": "Commit a.py and b.py as a fix of the parser.",
    "draw.shape": "Draw a circle of radius 3.",
    "stop_music": "Please turn the music off.",
}
_BESIDE = ("get_weather", "math.add", "send_mail", "lights")
_PARALLEL = {
    "get_weather": "What is the weather in Rome, in Oslo and in Cairo?",
    "math.add": "Add 1 and 2, then add 3 and 4.",
    "math.factorial": "The factorials of 3, 5 and 7, please.",
    "translate": "Say hello in German, in French and in Japanese.",
    "stock.price": "What do ACME and Initech cost?",
    "set_alarm": "Wake me at six, and once more at seven.",
    "lights": "Light in the hall, none in the kitchen.",
    "triangle.area": "Areas of triangles of 3 by 4 and of 6 by 8.",
}
_PARALLEL_MULTIPLE = {
    ("get_weather", "get_time"): "What is the weather in Rome, and what time is it in Oslo?",
    ("math.add", "math.factorial"): "Add 2 and 3, and tell me the factorial of 4.",
    ("book_flight", "book_table"): "Fly me to Rome on 2027-05-03 and book a table for two at 20.",
    ("play_song", "lights"): "Dim the bedroom and play Yesterday.",
    ("convert_currency", "stock.price"): "What is ACME, and what are 10 dollars in yen?",
    ("send_mail", "set_alarm"): "Tell Anna that I come late, and set an alarm for eight.",
    ("statistics.mean", "math.hypot", "math.add"): "Mean of 1, 2, 3; hypotenuse of 3 and 4; 5 + 6.",
    ("database.query", "git-commit"): "Show order 12, then commit report.md as done.",
}
_IRRELEVANCE = {
    "get_weather": "Who wrote Hamlet?",
    "math.factorial": "What should I cook tonight?",
    "book_table": "Explain how a rainbow comes about.",
    "translate": "What is the square root of 81?",
    "stock.price": "Tell me a joke.",
    "git-commit": "How tall is the Eiffel Tower?",
}

Case = tuple[list[Schema], str]


def _of(*names: str) -> list[Schema]:
    return [FUNCTIONS[name] for name in dict.fromkeys(names)]


CATEGORIES: dict[str, list[Case]] = {
    "simple": [(_of(name), question) for name, question in _SIMPLE.items()],
    "multiple": [(_of(*_BESIDE, name), question) for name, question in _SIMPLE.items()],
    "parallel": [(_of(name), question) for name, question in _PARALLEL.items()],
    "parallel_multiple": [(_of(*names), text) for names, text in _PARALLEL_MULTIPLE.items()],
    "irrelevance": [(_of(name), question) for name, question in _IRRELEVANCE.items()],
}
