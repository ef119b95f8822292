"""Prompts typed by hand, as people write them, never trained on (data/everyday.py leaves them out).

FIRST are those of the model card; SECOND were written before the text of data/everyday existed and not with its
patterns. An entry is the user's messages of one conversation; only the last answer is looked at."""
from __future__ import annotations

import re

FIRST: tuple[tuple[str, ...], ...] = (
    ("What is an owl?",), ("What is a hammer used for?",), ("Tell me what a lighthouse is.",),
    ("What does a baker do?",), ("What is the capital of France?",), ("Which city is the capital of Japan?",),
    ("What is the opposite of hot?",), ("Give me the opposite of early.",), ("Why is the sky blue?",),
    ("How do I plant a tree?",), ("How do I make a cup of tea?",), ("How can I brush my teeth?",),
    ("What is the difference between a cat and a dog?",), ("Name three animals.",), ("Name two tools.",),
    ("Hello!",), ("Good morning, how are you?",), ("Who are you?",), ("What can you do?",),
    ("Thank you for your help.",), ("My name is Zorvin.",),
    ("It is raining outside. What should I take with me?",), ("It is hot today. What should I wear?",),
    ("Where does a whale live?",), ("What do I need a map for?",), ("Is a violin a musical instrument?",),
    ("What is 12 plus 30?",), ("Tell me a short story about a fox.",),
    ("Can you tell me a story about a lost key?",), ("Goodbye!",))

SECOND: tuple[tuple[str, ...], ...] = (
    ("hi there, who made you?",), ("What's a good way to make coffee in the morning?",),
    ("Where would I see a kangaroo?",), ("Is a whale a fish or an animal?",), ("Which animals can fly?",),
    ("Name five colors of the rainbow please",), ("I need to cut paper. What should I use?",),
    ("My shoes are wet. What can I do?",), ("It's snowing! What should I put on?",),
    ("I lost my key, what now?",), ("Tell me two things you find in a kitchen.",), ("Is a carrot a fruit?",),
    ("Is a potato a vegetable or a fruit?",), ("What do cows give us?",), ("Why do we need bees?",),
    ("Who works in a hospital?",), ("Who bakes bread?",), ("what does a firefighter need for work",),
    ("In which country is Madrid?",), ("What language do they speak in Italy?",),
    ("Which continent is Kenya on?",), ("How many hours are there in a day?",),
    ("What month comes before May?",), ("What is the plural of mouse?",), ("What colour is a lemon?",),
    ("What has four wheels and drives on the road?",), ("How do I get from here to the station?",),
    ("What time is it now?",), ("What will the weather be tomorrow?",),
    ("Who won the football game last night?",), ("Tell me a story about a brave rabbit.",),
    ("Write a short story about an old clock.",), ("Could you invent a story about two friends and a storm?",),
    ("A story about a girl named Lina and her red kite, please.",), ("What is bigger, a horse or a mouse?",),
    ("Which is faster, a car or a bicycle?",), ("I'm bored. Any ideas?",), ("I feel sad today.",),
    ("I am so hungry!",), ("I have a headache.",), ("What can I cook with potatoes?",),
    ("What do I need to paint a picture?",), ("Can a penguin fly?",), ("Can you swim?",),
    ("Do you like music?",), ("Are you able to see pictures?",), ("Please explain what a thermometer does.",),
    ("What is ice?",), ("What happens when water gets very cold?",), ("What's the opposite of loud?",),
    ("Give me another word for happy.",), ("Write a sentence with the word river.",),
    ("Count from one to five.",), ("How is bread made?",), ("What is an otter?", "Where does it live?"),
    ("Name three fruits.", "Which one is yellow?"), ("I have a dog named Balu.", "What is my dog called?"),
    ("What is a hammer?", "And a screwdriver?"), ("If I have 5 apples and eat 2, how many are left?",),
    ("Good night!",))


def normal(text: str) -> str:
    """Small letters and single spaces, without signs: how alike two prompts are for a reader."""
    return " ".join(re.sub(r"[^a-z0-9 ]", "", text.lower()).split())


LAST = frozenset(normal(messages[-1]) for messages in FIRST + SECOND)
