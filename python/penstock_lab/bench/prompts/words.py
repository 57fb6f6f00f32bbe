"""Selects words that are single tokens, and lists candidates for an unknown vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Encode = Callable[[str], list[int]]

LIMIT = 8192
"""Maximum number of words. More would not change the load on a server."""


def usable(candidates: Iterable[str], encode: Encode, limit: int = LIMIT) -> dict[int, str]:
    """The candidates that are one token both at the start of a text and after a space, keyed by the
    id after a space.

    Words joined by spaces then give one token each, because tokenizers split before a space.
    """
    found: dict[int, str] = {}
    for word in candidates:
        ids = encode(f"{word} {word}")
        if len(ids) == 2:
            found.setdefault(ids[1], word)
            if len(found) == limit:
                break
    return found


_COMMON = """
the and for that with this from have not are was all can will one about more when other new some
time who what up out like them first than its way into year work just only over back also use after
good where need see make know right help people well may such here find day most very world before
information name each made must take should down between long same much home last place life many
while under think being data point never own still service company number business state using
system set next support great part end power high does old even left line show person without write
word because open small large start school result question public change different free during given
against always another available better book both call case city class clear code come common
control country course current date development early example experience family few field food form
full future general give going government group half hand having head health history house human
idea important including increase interest issue keep kind land later law least less let level light
likely list little live local look low main market matter mean media member might model money month
morning move music national near news night nothing often order page paper past pay period plan play
political possible post present president price problem process product program project provide
quality quick rate read real reason record report research rest return road room run say search
second section sense series several share short side simple since site social something space
special specific sport staff story street strong student study subject success sure table team term
test text thing though thought three through today together too top total town training turn two
type understand university until upon used value various view visit want war water week white whole
why within woman women young able access account across action activity address age air album allow
almost along already although among amount analysis answer appear application apply approach area
army article ask attack attention author average award away bad bank base based battle beautiful
become bed behind believe benefit best big black blood blue board body born box break bring british
brother build building buy car card care career central century certain chance chapter character
child children choice choose church close club collection college color community complete computer
condition consider contact contain continue cost could council count couple court cover create
culture cup cut daily dark daughter dead deal death decision deep defense degree design despite
detail direct director distance doctor dog door double draw dream drive due easy east economic
education effect effort eight either election else energy enough enter entire environment especially
event every everyone everything evidence exactly except expect face fact fall far fast father
feature feel film final fine fire five floor follow force foreign forward found four friend front
function game garden gas girl glass goal gold green ground growth gun hair happen happy hard hear
heart heat heavy herself himself hold holiday hope hospital hot hotel hour however hundred husband
image
"""

COMMON = tuple(_COMMON.split())
"""Short English words that are probably single tokens in any language model's tokenizer."""
