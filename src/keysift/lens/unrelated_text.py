"""Text unrelated to whatever is inspected: for calibration, and as filler that dilutes a context.

Plain sentences on many topics, so that no topic runs through them. Written for this purpose.
"""

import random

from keysift.core.errors import DataError
from keysift.lens.model import LensModel

TEXT = """\
Salt keeps longer in a dry jar than in an open dish. The ferry leaves the north pier at six and comes back at nine. A
square has four equal sides. Most clocks in the station were two minutes slow. He painted the fence green because blue
was sold out. Copper turns dull when it is left in the rain. The second chapter describes how to fold a paper boat. Nine
people signed the letter and one of them sent it. Our neighbour grows beans, peas and a little corn. To reset the meter,
hold the left button for five seconds. Winter trains run every two hours except on Sundays. The river bends twice before
it meets the mill. She answered in a low voice and closed the window. Bricks are stacked in rows of twelve. A good knife
needs a flat stone and some patience. The committee moved its meeting from Tuesday to Friday. Glass is made from sand,
soda and lime. Two of the three lamps in the hall were broken. Owls hear better than they see. The price of oats fell
in March and rose again in May. Write your name in the upper corner of the page. Somebody had left a grey coat on the
bench. The bridge carries a road, a cycle path and a water pipe. Add the flour slowly and stir until it is smooth. In
the valley the snow had already melted. His third answer was shorter than the first two. A year on that planet lasts
eleven of our days. The lower drawer holds string, tape and old keys. They walked around the lake and talked about
boats. Every ticket has a number printed on the back. The painter used only four colours. When the bell rings, the gate
is opened. Some stones in the wall came from an older house. The engine starts on the second try. Maps of that coast
were drawn from memory. Tea is poured before the cake is cut. The smaller of the two dogs slept under the table. A
thousand grams make a kilogram. The singer forgot the last verse and hummed it instead. Rain is expected in the hills
towards evening. The warehouse stands between the canal and the tram line. Please return the ladder when you are done.
"""


def unrelated_tokens(model: LensModel, count: int, skip: int = 0) -> list[int]:
    """`count` token ids of the text after its first `skip`, repeated as needed, without a start token."""
    ids = _encode(model)
    rounds = -(-(skip + count) // len(ids))
    return (ids * rounds)[skip : skip + count]


def _encode(model: LensModel) -> list[int]:
    try:
        return model.encode(TEXT)[len(model.encode("")) :]
    except DataError:
        # The tokenizer of a generated task knows a few words and no sentences: draw random words of the task.
        return random.Random(0).choices(range(model.info.vocabulary - 1), k=4096)
