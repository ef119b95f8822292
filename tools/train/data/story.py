"""Stories with a state: hero, giver of an object, two places, an animal or seller, one of seven
plots with its lesson. The state answers the questions (families `story` and `storyqa`)."""
from __future__ import annotations

from . import lexicon as lex
from .base import UNKNOWN, Source, answer, article, conversation, user

PLOTS = ("lost", "broken", "hungry", "storm", "trade", "race", "map")
LESSONS = {
    "lost": "it is good to ask for help", "broken": "two people can fix more than one",
    "hungry": "a kind act is never forgotten",
    "storm": "a good friend is like a roof in the rain",
    "trade": "gifts are worth more than their price",
    "race": "helping others matters more than winning",
    "map": "sharing makes a treasure larger"}
_CAUSES = ("a loose pocket", "a hole in the bag", "a big hurry", "the strong wind")
_HIDING = ("in the grass", "behind a tree", "under some leaves", "next to a wall", "under a bench")
_REPAIRS = ("glue", "a piece of rope", "a hammer", "a needle and thread", "some tape")
_TIMES = ("for the whole day", "for a long time", "for an hour")
# The partner that a hero has when the prompt does not say: a fixed table, so that the likeliest
# name is not the hero's own (tiny-model.md §9.2).
_PARTNER = dict(zip(lex.NAMES, lex.NAMES[41:] + lex.NAMES[:41]))
_THIRD = dict(zip(lex.NAMES, lex.NAMES[83:] + lex.NAMES[:83]))


class Story:
    """State, sentences and questions of one story."""

    def __init__(self, s: Source, hero: str | None = None, avoid: tuple[str, ...] = (),
                 fixed_partners: bool = False, fixed: dict[str, str] | None = None) -> None:
        """`fixed` sets parts of the state (job, trait, object, color, animal, goal, plot ...)."""
        r = s.r
        self.hero = hero or s.name()
        while hero is None and self.hero in avoid:
            self.hero = s.name()
        self.giver, self.third = s.name(), s.name()
        if fixed_partners and self.hero in _PARTNER:
            self.giver, self.third = _PARTNER[self.hero], _THIRD[self.hero]
        while self.giver == self.hero:
            self.giver = s.name()
        while self.third in (self.hero, self.giver):
            self.third = s.name()
        self.trait = r.choice(lex.TRAITS)
        self.job = "child" if r.random() < 0.2 else s.job()
        self.relation = r.choice(lex.RELATIONS)
        self.color, self.object = s.color(), s.object()
        self.home, self.goal = s.distinct(s.place, 2)
        self.weather = r.choice(lex.WEATHERS)
        self.animal = s.animal()
        self.fruit = s.fruit()
        self.count = r.randint(3, 11)
        self.plot = r.choice(PLOTS)
        for key, value in (fixed or {}).items():
            setattr(self, key, value)
        while self.goal == self.home:
            self.home = s.place()
        self.lesson = LESSONS[self.plot]
        self.sentences: list[str] = []
        self.questions: list[tuple[str, str]] = []   # they name the hero
        self.vague: list[tuple[str, str]] = []       # only safe when the text has one story
        self._begin(r)
        getattr(self, "_" + self.plot)(s)
        self._end(r)

    @property
    def text(self) -> str:
        return " ".join(self.sentences)

    def _begin(self, r) -> None:
        h, ob = self.hero, self.object
        say = self.sentences.append
        say(r.choice((f"Once there was a {self.trait} {self.job} named {h}.",
                      f"In a small town lived a {self.trait} {self.job} called {h}.",
                      f"{h} was a {self.trait} {self.job} who lived near the {self.home}.")))
        say(r.choice((f"{h} loved to spend time at the {self.home}.",
                      f"Every morning {h} walked to the {self.home}.",
                      f"{h} knew every corner of the {self.home}.")))
        thing = article(f"{self.color} {ob}")
        say(r.choice((f"{h} owned {thing} that was a gift from {self.giver}, "
                      f"{article(self.relation)}.",
                      f"The thing {h} liked most was {thing}, a gift from {article(self.relation)} "
                      f"named {self.giver}.")))
        say(r.choice((f"One {self.weather} day {h} went to the {self.goal}.",
                      f"One {self.weather} afternoon {h} decided to visit the {self.goal}.")))
        self.questions += [(f"Where did {h} go that day?", f"{h} went to the {self.goal}."),
                           (f"Where did {h} like to be?", f"{h} liked to be at the {self.home}."),
                           (f"Who gave {h} the {ob}?", f"{self.giver} gave {h} the {ob}."),
                           (f"What did {h} learn?", f"{h} learned that {self.lesson}."),
                           (f"What kind of person was {h}?", f"{h} was {self.trait}.")]
        self.vague += [(f"What color was the {ob}?", f"The {ob} was {self.color}."),
                       (f"What was the name of the {self.job}?",
                        f"The {self.job} was named {h}."),
                       ("How was the weather that day?", f"It was {self.weather}.")]

    def _lost(self, s: Source) -> None:
        r, h, ob, n = s.r, self.hero, self.object, self.third
        cause = r.choice(_CAUSES)
        self.sentences += [
            r.choice((f"On the way the {ob} was lost because of {cause}.",
                      f"Because of {cause}, the {ob} fell down and nobody saw it.")),
            f"{h} was very sad and looked for it {r.choice(_TIMES)}.",
            f"Then {article(self.animal)} named {n} came along and offered to help.",
            f"{n} found the {ob} {r.choice(_HIDING)}.",
            f"{h} thanked {n} and shared some {self.fruit} with the {self.animal}."]
        self.questions += [(f"Why was {h} sad?", f"{h} was sad because the {ob} was lost."),
                           (f"What did {h} share?", f"{h} shared some {self.fruit}.")]
        self.vague += [(f"Why was the {ob} lost?", f"It was lost because of {cause}."),
                       (f"Who found the {ob}?", f"{n} the {self.animal} found the {ob}.")]

    def _broken(self, s: Source) -> None:
        h, g, ob = self.hero, self.giver, self.object
        tool = s.r.choice(_REPAIRS)
        self.sentences += [
            f"There the {ob} slipped and broke.",
            f'{h} wanted to cry, but {g} came and said, "We can fix it."',
            f"They used {tool} and worked together until evening.",
            f"In the end the {ob} was as good as new, and {h} smiled."]
        self.questions += [(f"Who helped {h}?", f"{g} helped {h}.")]
        self.vague += [(f"What happened to the {ob}?", f"The {ob} broke."),
                       (f"What did they use to fix the {ob}?", f"They used {tool}.")]

    def _hungry(self, s: Source) -> None:
        h, n, an = self.hero, self.third, self.animal
        self.sentences += [
            f"There {h} saw {article(an)} that was hungry and tired.",
            f"The {an} was called {n} and had not eaten for two days.",
            f"{h} gave {n} some {self.fruit} and waited until the {an} felt better.",
            f"From that day on {n} followed {h} everywhere and guarded the {self.object}."]
        self.questions += [(f"What animal did {h} meet?", f"{h} met {article(an)} named {n}."),
                           (f"What did {h} give to {n}?", f"{h} gave {n} some {self.fruit}.")]
        self.vague += [(f"Why was {n} tired?", f"{n} had not eaten for two days.")]

    def _storm(self, s: Source) -> None:
        h, g = self.hero, self.giver
        self.sentences += [
            "Suddenly a storm began, and the path back was closed.",
            f"{h} was afraid, but remembered that {g} lived close by.",
            f"{g} opened the door, lit a candle and made some {s.r.choice(('tea', 'soup'))}.",
            f"They talked about the {self.object} until the rain stopped, and then {h} walked home "
            "safely."]
        self.questions += [
            (f"Where did {h} find shelter?", f"{h} found shelter at the home of {g}."),
            (f"How did {h} get home?", f"{h} walked home safely after the rain stopped."),
            (f"Why could {h} not go back?", "A storm had closed the path.")]

    def _trade(self, s: Source) -> None:
        h, n, ob, fruit = self.hero, self.third, self.object, self.fruit
        self.sentences += [
            f"{h} wanted to trade the {ob} for {self.count} {fruit}.",
            f"The seller, {n}, looked at the {ob} and shook the head.",
            f'"This was a gift," said {n}.',
            f'"Keep it, and help me carry these {fruit} instead."',
            f"{h} carried them to the {self.home}, and as a reward {n} gave {h} {self.count} "
            f"{fruit}."]
        self.questions += [(f"How many {fruit} did {h} get?", f"{h} got {self.count} {fruit}.")]
        self.vague += [("Who was the seller?", f"The seller was {n}."),
                       (f"Why did {n} not take the {ob}?",
                        f"{n} did not take it because it was a gift.")]

    def _race(self, s: Source) -> None:
        h, n, an = self.hero, self.third, self.animal
        self.sentences += [
            f"There was a race, and {h} wanted to win it.",
            f"Half way {h} saw that {n}, {article(an)}, was stuck in the mud.",
            f"{h} stopped and pulled {n} out, so others were faster.",
            f"{h} came last, but everyone cheered, and {self.giver} said that {h} was the real "
            "winner."]
        self.questions += [
            (f"Why did {h} stop in the race?", f"{h} stopped because {n} was stuck in the mud."),
            (f"What place did {h} take?", f"{h} came last.")]
        self.vague += [(f"What animal was {n}?", f"{n} was {article(an)}.")]

    def _map(self, s: Source) -> None:
        h, g = self.hero, self.giver
        found = s.object()
        while found == self.object:
            found = s.object()
        thing = article(f"{s.color()} {found}")
        self.sentences += [
            f"Behind the {self.goal} {h} found an old map.",
            f"The map showed a place near the {self.home} with a small mark.",
            f"{h} and {g} dug there for a while and found a chest.",
            f'Inside was {thing} and a note that said, "Share what you find."',
            f"So {h} gave the {found} to {g}."]
        self.questions += [(f"What did {h} find behind the {self.goal}?",
                            f"{h} found an old map.")]
        self.vague += [("What was in the chest?",
                        f"There was {thing} and a note in the chest."),
                       ("What did the note say?", 'The note said, "Share what you find."')]

    def _end(self, r) -> None:
        self.sentences.append(self.hero.join(r.choice((
            ("", f" learned that {self.lesson}."), ("And so ", f" learned that {self.lesson}."),
            ("That evening ", f" understood that {self.lesson}.")))))

    def ask(self, s: Source, alone: bool) -> list[tuple[str, str]]:
        """Every question that the text of one (`alone`) or several stories decides."""
        return self.questions + self.vague if alone else list(self.questions)

    def cast(self, s: Source) -> str:
        """A cast list that fixes who is who (tiny-model.md §9.2)."""
        r = s.r
        parts = [r.choice((f"the hero is {self.hero}", f"{self.hero} is the hero"))]
        parts.append(r.choice((f"{self.giver} is the {self.relation}",
                               f"the {self.relation} is {self.giver}")))
        if self.plot in ("lost", "hungry", "race"):
            parts.append(r.choice((f"{self.third} is the {self.animal}",
                                   f"the {self.animal} is {self.third}")))
        elif self.plot == "trade":
            parts.append(r.choice((f"{self.third} is the seller", f"the seller is {self.third}")))
        optional = [f"the object is the {self.color} {self.object}",
                    f"the places are the {self.home} and the {self.goal}",
                    f"the hero is a {self.trait} {self.job}", f"the day is {self.weather}"]
        r.shuffle(optional)
        return ", ".join(parts + optional[:r.randint(0, 4)])


_ASKS = ("Write a short story about {}.", "Tell me a story about {}.",
         "Please tell a little story about {}.", "Can you write a story about {}?")
_MORE_ASKS = ("Tell a story about {}.", "Write a story about {}.", "I want a story about {}.",
              "Could you tell me a story about {}?", "Make up a short story about {}.",
              "Please write a tale about {}.", "Give me a story with {} in it.")
_CASTS = ("{ask} The cast: {cast}.", "{ask} Use this cast: {cast}.", "{ask}\nCast: {cast}.",
          "{ask} In it, {cast}.")


_THEMES = {"lost": ("help", "a search", "asking for help"), "broken": ("working together", "a repair"),
           "hungry": ("kindness", "a hungry animal"), "storm": ("friendship", "a storm", "the rain"),
           "trade": ("a gift", "a trade", "a market"), "race": ("a race", "winning", "helping others"),
           "map": ("a treasure", "an old map", "sharing", "a treasure map")}
_ANIMAL_TRAITS = {"lost": ("helpful", "clever", "friendly"), "hungry": ("hungry", "tired", "poor"),
                  "race": ("lost", "unlucky", "little")}


def _wide_subject(s: Source, story: Story) -> str:
    """Subjects of the kind that people ask for: a theme, a place, two things at once."""
    r = s.r
    kinds = [r.choice(_THEMES[story.plot]), f"{article(story.object)}", f"the {story.goal}",
             f"{article(story.trait)} {story.job} and {article(story.object)}",
             f"{story.hero} and {story.giver}", f"{article(story.job)} named {story.hero}",
             f"{article(story.weather)} day", f"{story.hero} the {story.job}"]
    if story.plot in _ANIMAL_TRAITS:
        kinds += [article(story.animal), f"{article(r.choice(_ANIMAL_TRAITS[story.plot]))} "
                  f"{story.animal}", f"{story.hero} and {article(story.animal)}",
                  f"{article(story.animal)} named {story.third}"]
    return r.choice(kinds)


def _subject(s: Source, story: Story) -> str:
    kinds = [story.hero, article(f"{story.color} {story.object}")]
    if story.plot in ("lost", "hungry", "race") and s.chance(0.4):
        kinds.append(article(story.animal))
    kinds.append(s.r.choice((article(story.job), article(f"{story.trait} {story.job}"))))
    return s.r.choice(kinds)


def _unknown(s: Source, stories: list[Story]) -> tuple[str, str]:
    """A question whose answer is not in the text."""
    r = s.r
    story = r.choice(stories)
    h = story.hero
    other = s.name()
    while any(other in t.text for t in stories):
        other = s.name()
    return r.choice((f"How old was {h}?", f"What did {h} eat for breakfast?",
                     f"Where did {other} go that day?", f"Who gave {other} the {story.object}?",
                     f"What was the last name of {h}?", f"What kind of person was {other}?",
                     f"What did {other} learn?")), UNKNOWN


def write(s: Source) -> dict:
    """Family `story`: the model writes a story, then answers 0 to 4 questions on it."""
    r = s.r
    cast = s.extra(0.45)
    if s.extra(0.2):
        s.novel = max(s.novel, 0.4)
    story = Story(s, fixed_partners=not cast and s.extra(0.5))
    asks = _MORE_ASKS if s.extra(0.25) else _ASKS
    subject = _wide_subject(s, story) if s.extra(0.35) else _subject(s, story)
    prompt = r.choice(asks).format(subject)
    if cast:
        prompt = r.choice(_CASTS).format(ask=prompt, cast=story.cast(s))
    messages = [user(prompt), answer(story.text, exact=False)]
    for question, reply in pick(s, [story], r.randint(0, 4)):
        messages += [user(question), answer(reply)]
    return conversation("story", s.system(messages))


def pick(s: Source, stories: list[Story], n: int) -> list[tuple[str, str]]:
    pool = [qa for story in stories for qa in story.ask(s, len(stories) == 1)]
    picked = s.r.sample(pool, min(n, len(pool)))
    if picked and s.extra(0.1):
        picked[s.r.randrange(len(picked))] = _unknown(s, stories)
    return picked


_HEADS = ("Here is a text:\n\n", "Text:\n", "Read this story and answer my questions.\n\n")
_MORE_HEADS = ("", "Story:\n", "Please read this.\n\n", "Use the text below.\n\n")


def questions(s: Source) -> dict:
    """Family `storyqa`: 1 to 3 stories with different heroes in the prompt, 2 to 7 questions."""
    r = s.r
    stories: list[Story] = []
    for _ in range(r.choice((1, 1, 2, 2, 3))):
        used = tuple(n for t in stories for n in (t.hero, t.giver, t.third))
        story = Story(s, avoid=used)
        stories.append(story)
    head = r.choice(_MORE_HEADS if s.extra(0.15) else _HEADS)
    picked = pick(s, stories, r.randint(2, 7))
    text = head + "\n\n".join(t.text for t in stories)
    messages = [user(text + "\n\n" + picked[0][0]), answer(picked[0][1])]
    for question, reply in picked[1:]:
        messages += [user(question), answer(reply)]
    return conversation("storyqa", s.system(messages))


def fragment(s: Source, longest: int = 9) -> str:
    """The first few sentences of a story, as filler of other families."""
    story = Story(s)
    return " ".join(story.sentences[:s.r.randint(3, longest)])
