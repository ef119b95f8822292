"""Word lists of the generator. The first part is the closed vocabulary of the reference text
(shared by its evaluation prompts); ENGLISH and the knowledge tables widen it."""
from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

NAMES = (
    "Ada Adam Albert Alice Amir Amy Anna Bella Ben Boris Bruno Carla Celia Clara Claude Dan "
    "Derek Diana Dora Edgar Edith Ella Elsa Emma Erik Felix Finn Fiona Flora Fred Gabriel Gina "
    "Grace Greta Hana Harold Helen Henry Hugo Inga Iris Isaac Ivan Ivy Jack Jane Jerome Jonas "
    "Julia Karl Kenji Kevin Kira Laura Lena Leo Liam Lily Linda Lorenzo Lucy Luis Mabel Marco "
    "Martin Mateo Max Maya Mia Mona Nadia Nathan Nils Nina Noah Nora Olga Oliver Omar Opal "
    "Oscar Pablo Paul Peter Petra Philip Quinn Rachel Ravi Renata Rosa Ruby Sam Sara Saul Selma "
    "Simon Stefan Stella Tara Thelma Theo Tina Toby Tom Ulrich Ursula Vera Victor Vivian Walter "
    "Wendy Xenia Yara Yusuf Zack Zoe "
).split()
WORDS = (
    "anchor apple arrow basket bottle breeze bridge cactus candle castle cloud copper coral "
    "dawn desert dragon eagle ember engine falcon feather forest frost garden glacier grove "
    "guitar hammer harbor hazel insect iris island ivory jacket jade jewel jungle kettle "
    "kingdom kitten ladder lantern lemon lily magnet maple marble meadow music nectar needle "
    "nest noble ocean olive opal orchid pearl pepper pirate planet quartz queen quill rabbit "
    "raven ribbon river rocket saddle sage sailor shadow silver stone temple thorn thunder "
    "tiger timber unity velvet village vine violin walnut whale willow window winter yellow "
    "zebra "
).split()
OBJECTS = (
    "ball basket bell book bottle box brush bucket candle chain clock coin compass cup doll "
    "drum feather flute glove hammer hat key kite lamp lantern letter map mirror needle "
    "notebook pencil pillow plate ribbon ring rope saddle scarf shell spoon stamp stone ticket "
    "umbrella vase violin watch whip whistle "
).split()
COLORS = (
    "black blue brown golden gray green orange pink purple red silver white yellow "
).split()
PLACES = (
    "attic", "bakery", "barn", "beach", "bridge", "castle", "cave", "cellar", "farm",
    "forest", "garden", "greenhouse", "harbor", "hill", "kitchen", "lake", "library",
    "lighthouse", "market", "museum", "old mill", "park", "river", "school", "station",
    "tower", "village square", "workshop")
CITIES = (
    "Athens Bangkok Beijing Berlin Boston Budapest Cairo Chicago Delhi Dublin Geneva Hamburg "
    "Hanoi Havana Helsinki Lima Lisbon London Madrid Milan Moscow Nairobi Oslo Ottawa Paris "
    "Porto Prague Rome Seoul Stockholm Sydney Tokyo Vienna Warsaw "
).split()
FRUITS = (
    "apples bananas beans buns cakes carrots cherries cookies eggs grapes lemons nuts onions "
    "oranges pears plums potatoes tomatoes "
).split()
TRAITS = (
    "brave careful cheerful clever curious gentle honest kind patient proud quiet shy "
).split()
JOBS = (
    "nurse pilot tailor carpenter cook baker writer doctor judge farmer driver painter gardener "
    "musician teacher sailor "
).split()
RELATIONS = (
    "brother cousin friend neighbor sister teacher "
).split()
WEATHERS = (
    "cold foggy rainy snowy sunny warm windy "
).split()
ANIMALS = (
    "bear cat dog donkey duck fox frog goat hedgehog hen horse mouse owl parrot rabbit sheep "
    "squirrel turtle "
).split()
DAYS = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday "
).split()
CAPITALS = (
    ("Austria", "Vienna"),
    ("Brazil", "Brasilia"),
    ("Canada", "Ottawa"),
    ("Chile", "Santiago"),
    ("China", "Beijing"),
    ("Cuba", "Havana"),
    ("Denmark", "Copenhagen"),
    ("Egypt", "Cairo"),
    ("England", "London"),
    ("Finland", "Helsinki"),
    ("France", "Paris"),
    ("Germany", "Berlin"),
    ("Greece", "Athens"),
    ("Hungary", "Budapest"),
    ("India", "Delhi"),
    ("Ireland", "Dublin"),
    ("Italy", "Rome"),
    ("Japan", "Tokyo"),
    ("Kenya", "Nairobi"),
    ("Korea", "Seoul"),
    ("Norway", "Oslo"),
    ("Peru", "Lima"),
    ("Poland", "Warsaw"),
    ("Portugal", "Lisbon"),
    ("Russia", "Moscow"),
    ("Spain", "Madrid"),
    ("Sweden", "Stockholm"),
    ("Thailand", "Bangkok"),
    ("Turkey", "Ankara"),
    ("Vietnam", "Hanoi"),
)
OPPOSITES = (
    ("afraid", "brave"),
    ("big", "small"),
    ("brave", "afraid"),
    ("clean", "dirty"),
    ("closed", "open"),
    ("cold", "hot"),
    ("dark", "light"),
    ("day", "night"),
    ("deep", "shallow"),
    ("dirty", "clean"),
    ("down", "up"),
    ("dry", "wet"),
    ("early", "late"),
    ("empty", "full"),
    ("far", "near"),
    ("fast", "slow"),
    ("first", "last"),
    ("full", "empty"),
    ("happy", "sad"),
    ("hard", "soft"),
    ("heavy", "light"),
    ("high", "low"),
    ("hot", "cold"),
    ("last", "first"),
    ("late", "early"),
    ("left", "right"),
    ("light", "dark"),
    ("light", "heavy"),
    ("long", "short"),
    ("loud", "quiet"),
    ("low", "high"),
    ("narrow", "wide"),
    ("near", "far"),
    ("night", "day"),
    ("old", "young"),
    ("open", "closed"),
    ("poor", "rich"),
    ("quiet", "loud"),
    ("rich", "poor"),
    ("right", "left"),
    ("right", "wrong"),
    ("rough", "smooth"),
    ("sad", "happy"),
    ("shallow", "deep"),
    ("short", "long"),
    ("slow", "fast"),
    ("small", "big"),
    ("smooth", "rough"),
    ("soft", "hard"),
    ("sour", "sweet"),
    ("strong", "weak"),
    ("sweet", "sour"),
    ("thick", "thin"),
    ("thin", "thick"),
    ("up", "down"),
    ("weak", "strong"),
    ("wet", "dry"),
    ("wide", "narrow"),
    ("wrong", "right"),
    ("young", "old"),
)
HOW_TO = (
    ("bake bread", (
        "Mix flour, water, salt and yeast.",
        "Knead the dough for ten minutes.",
        "Let it rest until it has grown.",
        "Bake it in a hot oven for half an hour.",
        "Let the bread cool before you cut it.",
    )),
    ("build a kite", (
        "Tie two sticks into a cross.",
        "Cut paper to the shape of the frame.",
        "Glue the paper to the sticks.",
        "Tie a long string to the middle.",
        "Add a tail so that it flies straight.",
    )),
    ("change a light bulb", (
        "Turn the lamp off.",
        "Wait until the old bulb is cool.",
        "Unscrew the old bulb.",
        "Screw in the new one.",
        "Turn the lamp on to test it.",
    )),
    ("clean a window", (
        "Mix water with a little vinegar.",
        "Wipe the glass with a wet cloth.",
        "Dry it with paper or a dry cloth.",
        "Check the corners for streaks.",
    )),
    ("cook rice", (
        "Rinse the rice.",
        "Use two cups of water for one cup of rice.",
        "Bring it to a boil.",
        "Cover it and cook on low heat for fifteen minutes.",
        "Let it rest for five minutes.",
    )),
    ("debug a program", (
        "Read the error message.",
        "Find the smallest input that fails.",
        "Check one change at a time.",
        "Write a test so that it does not come back.",
    )),
    ("feed a cat", (
        "Choose good cat food.",
        "Put it in a clean bowl.",
        "Give fresh water too.",
        "Feed the cat twice a day.",
    )),
    ("find a lost key", (
        "Think of where you used it last.",
        "Check your pockets and your bag.",
        "Look under the furniture.",
        "Ask the people around you.",
    )),
    ("fix a flat tire on a bicycle", (
        "Take the wheel off.",
        "Pull the tire and the tube out.",
        "Find the hole and cover it with a patch.",
        "Put the tube and tire back.",
        "Pump air into it.",
    )),
    ("learn new words", (
        "Choose ten words.",
        "Write each word on a card.",
        "Say each word aloud.",
        "Use it in a sentence.",
        "Test yourself the next day.",
    )),
    ("make a paper boat", (
        "Fold the sheet in half.",
        "Fold the top corners to the middle.",
        "Fold the lower edges up.",
        "Open it from below and press it into a square.",
        "Pull the two tips apart.",
    )),
    ("make a salad", (
        "Wash the leaves.",
        "Cut tomatoes and onions into pieces.",
        "Mix everything in a bowl.",
        "Add oil, lemon and salt.",
    )),
    ("make tea", (
        "Boil fresh water in a kettle.",
        "Put a tea bag in a cup.",
        "Pour the hot water over it.",
        "Wait three minutes.",
        "Take the bag out and add milk or sugar if you like.",
    )),
    ("pack for a trip", (
        "Check the weather.",
        "Make a list of what you need.",
        "Fold the clothes.",
        "Put heavy things at the bottom.",
        "Keep your ticket in a safe place.",
    )),
    ("paint a wall", (
        "Move the furniture away.",
        "Cover the floor.",
        "Clean the wall.",
        "Paint from the top to the bottom.",
        "Let it dry and paint again.",
    )),
    ("plant a seed", (
        "Fill a pot with soil.",
        "Make a small hole with your finger.",
        "Put the seed into the hole and cover it.",
        "Water it a little every day.",
        "Keep the pot in a sunny place.",
    )),
    ("prepare for a test", (
        "Make a plan for the week.",
        "Read your notes.",
        "Practice with old questions.",
        "Sleep well the night before.",
    )),
    ("save money", (
        "Write down what you spend.",
        "Set a goal.",
        "Buy only what you need.",
        "Put a little money aside every week.",
    )),
    ("sleep better", (
        "Go to bed at the same time each day.",
        "Keep the room dark and cool.",
        "Do not use your phone in bed.",
        "Read a book for a few minutes.",
    )),
    ("start a fire in a camp", (
        "Find a safe place away from trees.",
        "Put small dry sticks in a pile.",
        "Light the sticks with a match.",
        "Add larger pieces of wood slowly.",
        "Keep water near to put it out.",
    )),
    ("wash a car", (
        "Rinse the car with water.",
        "Mix soap and water in a bucket.",
        "Wash the roof first and the wheels last.",
        "Rinse the soap off.",
        "Dry it with a soft cloth.",
    )),
    ("write a letter", (
        "Write the date at the top.",
        "Greet the reader by name.",
        "Say why you are writing.",
        "End with kind words and your name.",
        "Put it in an envelope with a stamp.",
    )),
)
NAMES_MORE = (
    "Aaron Abigail Agnes Aisha Alan Alex Alina Alma Amanda Amelia Andrea Andrew Angela Anton "
    "Arthur Arun Astrid Ava Barbara Beatrice Benjamin Bianca Brian Bridget Camila Carlos "
    "Caroline Cecil Charles Charlotte Chen Chloe Christopher Daniel Daphne David Deborah Dennis "
    "Dmitri Donald Dorothy Edward Eleanor Elena Elias Elizabeth Emily Eric Esther Ethan Eva "
    "Fatima Felicia Frank Gavin George Gloria Gordon Gregory Hannah Hassan Hector Ian Ida Ines "
    "Ingrid Irene Isabel Jacob James Jasmine Jason Jennifer Jessica Joan Johan John Joseph "
    "Joshua Juan Judith Karen Kate Katherine Keiko Kelly Kenneth Kim Klaus Kurt Lars Leila "
    "Leonard Lewis Lila Logan Louis Lydia Magnus Malik Margaret Maria Marian Mark Martha Mary "
    "Matthew Mei Michael Miguel Mila Milo Miriam Mohammed Monica Morgan Nancy Naomi Natalie "
    "Nicholas Nicole Nigel Oleg Olivia Otto Pamela Patrick Pedro Pierre Priya Ralph Raymond "
    "Rebecca Richard Rita Robert Robin Roger Roland Ronald Rose Roy Sabine Sally Samuel Sandra "
    "Sarah Sean Sergio Sharon Silvia Sofia Sophie Steven Susan Sven Tamara Teresa Thomas Tim "
    "Timothy Tobias Tomas Tony Tracy Uma Valentina Vanessa Victoria Vincent William Wilma "
    "Xavier Yasmin Yuki Yvonne "
).split()


class Thing(NamedTuple):
    """One row of the knowledge tables: `name` with its article, `kind` with its article,
    `that` = relative clause, `where` and `feature` are noun phrases."""
    name: str
    kind: str
    that: str
    where: str
    feature: str

    @property
    def bare(self) -> str:
        """The name without article."""
        first, _, rest = self.name.partition(" ")
        return rest if first in ("a", "an", "the") else self.name

    @property
    def plural(self) -> bool:
        return self.name in PLURALS


PLURALS = ("scissors", "glasses", "trousers")


def _table(name: str) -> tuple[Thing, ...]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return tuple(Thing(*line.split(" | ")) for line in text.splitlines() if line)


KNOWLEDGE = _table("knowledge.txt")
KNOWLEDGE_MORE = _table("knowledge_more.txt")
ENGLISH = tuple((Path(__file__).parent / "english.txt").read_text(encoding="utf-8").split())
