"""Random expressions over the filters, tests, methods and operators of templates."""

from __future__ import annotations

import random
from collections.abc import Sequence

LITERALS = """
0;1;-2;3.5;'a b';'x';'';true;none;[];[1,2];(1,'a');{'k':1};'A,b,C';"it's";['b','a'];range(4)
'%s-%s';' pad ';[[1,2],[3]];'1e3';missing
""".replace("\n", ";").strip(";")
FILTERS = """
abs;capitalize;center(12);count;default('d');default('d',true);escape;first;float;forceescape
indent(1,true);int;int(9);items|list;join;join(',');last;length;list;lower;map('upper')|list
map('string')|list;map('length')|list;max;min;reject|list;select|list;replace('a','b')
replace(1,2);reverse|list;round;round(1);safe;sort;sort(reverse=true);string;striptags;sum;title
tojson;tojson(indent=1);tojson(ensure_ascii=true);trim;trim('a');truncate(3);truncate(8,true)
unique|list;upper;urlencode;wordcount;batch(2)|list;slice(2)|list;dictsort;selectattr('n')|list
map(attribute='n')|list;groupby('g');map('int')|list;select('string')|list;map('default','q')|list
map('tojson')|join(' ');attr('a');filesizeformat;select('in','abc')|list;reject('none')|list
map('first')|list;sort(attribute='0');map('round',1)|list;format(1);format(1,2)
""".replace("\n", ";").strip(";")
METHODS = """
upper();lower();strip();split();split('a');split(',',1);rsplit(None,1);title();replace('a','z')
startswith('a');endswith('b');find('a');count('a');index('a');join(['x','y']);zfill(6);rjust(8)
ljust(8,'.');center(9);partition(' ');rpartition('a');splitlines();isdigit();isalpha();islower()
isupper();istitle();isalnum();isspace();capitalize();swapcase();removeprefix('a')
removesuffix('b');lstrip('a');rstrip();format(1,k=2);keys()|list;values()|list;items()|list
get('a');get('zz','q');count(1);index(1);a;b;x;n;expandtabs();isidentifier();isprintable()
""".replace("\n", ";").strip(";")
SUBSCRIPTS = "[0];[-1];['a'];[1:];[::-1];[:2];[-3:-1];[::2];[5];[none];[true];[:];[3:0:-2]"
TESTS = """
defined;undefined;none;string;number;integer;float;boolean;mapping;sequence;iterable;callable;true
false;odd;even;divisibleby(2);eq(1);ne 1;gt 1;lt(2);ge 1;le('a');in([1,2,'x']);in 'abc';lower
upper;escaped;sameas(none);not none;not defined
""".replace("\n", ";").strip(";")
OPERATORS = "+;-;*;/;//;%;~;==;!=;<;<=;>;>=;and;or;in;not in"


class Expressions:
    """A source of expressions over the names of variables."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.names = names
        self.random = random.Random(seed)

    def pick(self, choices: str) -> str:
        return self.random.choice(choices.split(";"))

    def make(self, depth: int) -> str:
        kind = self.random.random()
        if depth <= 0 or kind < 0.18:
            named = self.random.random() < 0.6
            return self.random.choice(self.names) if named else self.pick(LITERALS)
        one, other = self.make(depth - 1), self.make(depth - 2)
        forms = (
            (0.40, f"({one})|{self.pick(FILTERS)}"),
            (0.52, f"({one}).{self.pick(METHODS)}"),
            (0.60, f"({one}){self.pick(SUBSCRIPTS)}"),
            (0.68, f"({one} is {self.pick(TESTS)})"),
            (0.88, f"({one} {self.pick(OPERATORS)} {other})"),
            (0.91, f"({one} if {other} else {self.make(depth - 1)})"),
            (0.93, f"(not {one})"),
            (0.95, f"[{one}, {other}]"),
            (0.96, f"({one}, {other})"),
            (0.97, f"{{'k': {one}, 'z': {other}}}"),
            (0.98, f"({one} < {other} <= {self.make(depth - 1)})"),
            (0.99, f"(-({one}))"),
            (1.00, f"('%s|%r|%5s' % ({one}, {other}, {self.make(0)}))"),
        )
        return next(form for bound, form in forms if kind < bound)
