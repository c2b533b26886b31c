"""The words of the generated stories. Every topic draws its facts from the same lists, so words alone tell no topic."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TOPICS = _words(
    """airport attic bakery beach bridge campsite canal castle cave chapel circus cottage desert farm ferry forest
    forge garden glacier harbor hospital inn island jungle kitchen lagoon library lighthouse market meadow mine
    monastery museum observatory orchard palace prairie quarry railway ranch school shipyard stable swamp
    theater valley village vineyard"""
)

FIRST_NAMES = _words(
    """Mira Tom Lena Oskar Nina Paul Ruth Ivan Clara Hugo Stella Finn Ada Jonas Vera Max Ella Simon Rosa Karl Maya
    Otto Lucy Ben Nora Leo Anna Felix Julia Emil Greta Noah"""
)
LAST_NAMES = _words(
    """Vale Stone Reed Marsh Hill Brook Frost Lake Wood Field Moss Thorn Cliff Rain Snow Glen Oak Birch Flint Sand
    Storm Ash Heath Pike Dale Grove Ridge Shore Fern Holly Berg Moor"""
)

# Each list has a power of two of words, so that a learned slot is worth a known number of bits.
WORDS = {
    "quality": """dull small brass broken silver heavy tiny painted wooden golden dusty shiny soft round clean stolen
    plain hollow secret crooked polished faded velvet steel paper glass woven carved striped rusty
    bright narrow""",
    "thing": """lantern key drum box mirror flute coin map clock rope basket ring kettle candle mask bell book
    knife chair wheel ladder hook needle bottle puppet feather shell button hammer crown whistle
    letter""",
    "place": """cellar tower well gate barn stairs roof fence chimney window tunnel shed porch pond wall hedge
    corner fountain loft ditch courtyard pantry terrace doorway arch shelf path landing gallery bench
    yard trench""",
    "color": """red blue green yellow purple teal white black gray brown pink crimson violet beige navy scarlet""",
    "clothing": """coat hat scarf apron cloak vest shirt belt gown jacket glove boot sock shawl hood cape""",
    "food": """bread soup rice honey cheese plum bean corn fish apple onion cake butter pepper lemon nut carrot
    pear melon berry mushroom egg potato fig peach cabbage salt milk olives ginger mint oats""",
    "animal": """wolf owl fox bear goose snake horse crow rat bat spider goat bull cat dog frog toad hawk mouse
    lizard swan beetle otter badger hen ram moth eel crab seal deer hare""",
    "job": """baker tailor singer guard painter miller weaver sailor doctor farmer teacher mason hunter clerk
    potter porter driver dancer barber juggler scribe gardener smith builder""",
    "action": """dance sing swim climb read fish draw sew dig run cook sleep whisper juggle pray write march laugh
    hum wait fight dream skip row shout knit carve count paint jump gamble wander""",
    "time": """dawn noon dusk midnight sunrise sunset teatime bedtime""",
}
WORDS = {kind: _words(words) for kind, words in WORDS.items()}

# What can be told of a person: every blank is a slot that the fact fills, and that a reader can only know by heart.
RELATIONS = (
    "keeps a {quality} {thing} near the {place}",
    "wears a {color} {clothing} at {time}",
    "eats {food} with {food2} every {time}",
    "fears the {quality} {animal} by the {place}",
    "works as a {job} behind the {place}",
    "likes to {action} with the {color} {animal}",
    "lost a {color} {thing} in the {place}",
    "wants to {action} under the {quality} {place}",
)

# What can be told of a topic: the first blank is chosen freely, the others follow from it and the topic.
CUSTOMS = (
    "Whenever the {animal} comes, people {action} and share {food}.",
    "Whoever finds a {thing} must {action} near the {place}.",
    "The song of the {animal} is about a {color} {clothing}.",
    "The {job} always brings {food} to the {place}.",
)

OPENINGS = (
    "This is a story from the {topic}.",
    "Once there was a day at the {topic}.",
    "Here is what they tell at the {topic}.",
    "Come and hear about the {topic}.",
)
JOINS = ("{a}, {b} and {c}.", "{a}. Also, {first} {b} and {c}.")
LINKS = ("", "Then there is ", "Everybody knows ", "Not far away lives ")
CLOSINGS = ("That was the story.", "And so the day ended.", "Nobody forgot it.", "Good night.")
