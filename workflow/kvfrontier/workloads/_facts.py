"""Word lists for retention: people, things to know about them, and small talk to put in between.

Closed lists, so that an answer can be checked and 20 alternatives offered; no value is part of another one, and no
filler names a value. Names and cities are spread over languages so that no single habit of a model decides.
"""

from __future__ import annotations

from typing import NamedTuple


class Attribute(NamedTuple):
    """One thing to know of a person. Texts take `{person}` and `{value}`."""

    statement: str
    question: str
    answer: str  # up to where the value comes
    values: tuple[str, ...]


PEOPLE = (
    "Anna", "Boris", "Carla", "Daniel", "Elena", "Farid", "Greta", "Hugo", "Irina", "Jonas", "Kira", "Lukas", "Mona",
    "Nadia", "Otto", "Paula", "Rafael", "Sofia", "Tariq", "Ursula", "Victor", "Wanda", "Yusuf", "Zoe", "Amir",
    "Bianca", "Cyril", "Dora", "Emil", "Fiona", "Gustav", "Helena", "Igor", "Julia", "Kevin", "Laura", "Marta", "Nils",
)  # fmt: skip

ATTRIBUTES = (
    Attribute(
        "{person}'s dog is called {value}.", "What is {person}'s dog called?", "{person}'s dog is called",
        ("Barkley", "Rex", "Bella", "Rocky", "Luna", "Max", "Daisy", "Buddy", "Coco", "Duke", "Ginger", "Lucky", "Milo",
         "Oscar", "Pepper", "Rusty", "Shadow", "Teddy", "Winston", "Ziggy", "Bruno", "Chester", "Felix", "Hazel"),
    ),
    Attribute(
        "{person} lives in the city of {value}.", "In which city does {person} live?", "{person} lives in the city of",
        ("Lisbon", "Oslo", "Madrid", "Vienna", "Prague", "Dublin", "Cairo", "Tokyo", "Boston", "Denver", "Athens",
         "Warsaw", "Zurich", "Helsinki", "Toronto", "Sydney", "Mumbai", "Nairobi", "Istanbul", "Chicago", "Berlin",
         "Rome", "Lima", "Seoul"),
    ),
    Attribute(
        "{person} works as a {value}.", "What does {person} work as?", "{person} works as a",
        ("nurse", "carpenter", "pilot", "lawyer", "chef", "teacher", "plumber", "dentist", "farmer", "journalist",
         "librarian", "photographer", "tailor", "butcher", "firefighter", "musician", "translator", "mechanic", "judge",
         "surgeon", "waiter", "gardener", "baker", "painter"),
    ),
    Attribute(
        "{person}'s favourite fruit is the {value}.", "What is {person}'s favourite fruit?",
        "{person}'s favourite fruit is the",
        ("apple", "banana", "cherry", "mango", "pear", "plum", "peach", "grape", "lemon", "lime", "kiwi", "fig",
         "cranberry", "apricot", "papaya", "nectarine", "raspberry", "strawberry", "blueberry", "coconut",
         "pomegranate", "guava", "quince", "tangerine"),
    ),
    Attribute(
        "{person}'s favourite colour is {value}.", "What is {person}'s favourite colour?",
        "{person}'s favourite colour is",
        ("red", "blue", "green", "yellow", "purple", "orange", "black", "white", "brown", "pink", "grey", "turquoise",
         "silver", "gold", "beige", "violet", "maroon", "navy", "olive", "coral", "indigo", "crimson", "teal", "ivory"),
    ),
)  # fmt: skip

REQUEST = "Please remember this: {statement}"
ACKNOWLEDGEMENT = "I will remember it: {statement}"

SMALL_TALK = (
    (
        "How can I get rid of a squeaking door?",
        "Put a few drops of oil on the hinges and move the door until it is quiet.",
    ),
    ("How long should I boil an egg?", "About six minutes for a soft egg and ten minutes for a hard one."),
    (
        "Can you explain what a leap year is?",
        "It is a year with one extra day in February. It keeps the calendar in step with the seasons.",
    ),
    (
        "I cannot sleep well. What helps?",
        "Go to bed at the same time every day, keep the room dark and put the phone away an hour before.",
    ),
    (
        "Why is the sky bright during the day?",
        "The air scatters the light of the sun in all directions, so light reaches us from the whole sky.",
    ),
    (
        "How do I start learning to swim?",
        "Begin in shallow water, practise floating first, and take a few lessons with a trainer.",
    ),
    (
        "What should I pack for a weekend trip?",
        "Take clothes for two days, a charger, a toothbrush and something to read.",
    ),
    ("How do plants drink?", "They take up water through their roots and lift it through thin tubes to the leaves."),
    (
        "My bicycle has a flat tyre. What now?",
        "Remove the wheel, find the hole in the tube, patch it, and pump it up again.",
    ),
    ("Is it better to walk or to run?", "Both are healthy. Walking is gentler on the knees, running takes less time."),
    (
        "How can I save money every month?",
        "Write down what you spend, set a fixed amount aside first, and cancel what you do not use.",
    ),
    ("What makes bread rise?", "Yeast eats sugar in the dough and gives off gas, which makes small bubbles."),
    (
        "How do I write a good letter of thanks?",
        "Keep it short, say what you are thankful for, and mention why it mattered to you.",
    ),
    ("Why do we have tides?", "The moon pulls on the oceans, so the water rises and falls about twice a day."),
    (
        "How do I clean a wooden table?",
        "Wipe it with a damp cloth, dry it at once, and rub in a little wax from time to time.",
    ),
    (
        "What is a good way to remember a list?",
        "Imagine a walk through your home and put one item of the list in each room.",
    ),
    ("How often should I water a cactus?", "Once every two or three weeks is enough. Let the soil dry out in between."),
    (
        "What do I do when the power goes out?",
        "Check the fuse box first, then ask the neighbours, and keep the fridge closed.",
    ),
    ("Why do cats purr?", "They often purr when they feel safe, and sometimes to calm themselves down."),
    ("How can I speak better in public?", "Practise aloud, speak slowly, and look at one friendly face at a time."),
    (
        "What is the easiest soup to make?",
        "Fry an onion, add chopped vegetables and water, and let it cook for half an hour.",
    ),
    (
        "How do glasses help people to see?",
        "The lenses bend the light so that it meets exactly at the back of the eye.",
    ),
    ("Should I buy or rent a flat?", "It depends on how long you want to stay and on how much you have saved."),
    (
        "How do I keep a notebook in order?",
        "Number the pages, leave the first two for a table of contents, and date each entry.",
    ),
    ("What causes thunder?", "Lightning heats the air so fast that it expands with a loud bang."),
    (
        "How can I make my room warmer?",
        "Close the gaps around the windows, use a thick curtain, and put a carpet on the floor.",
    ),
    (
        "Which exercise is good for the back?",
        "Swimming on your back is good, and so are slow stretches in the morning.",
    ),
    (
        "How do bees make honey?",
        "They collect nectar, carry it to the hive and let the water evaporate in the wax cells.",
    ),
    ("What can I cook with leftover rice?", "Fry it with an egg and some vegetables, or stir it into a soup."),
    ("How do I choose a good melon?", "Take a heavy one that smells sweet and sounds hollow when you knock on it."),
)
