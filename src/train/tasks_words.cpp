#include "train/tasks_words.h"

#include <array>

namespace tidepool {
namespace {

// Short, common and concrete, in alphabetical order.
constexpr std::array<std::string_view, 377> kWords = {
    "amber",   "anchor",  "apple",   "arrow",    "autumn",   "badge",   "baker",   "banner",  "barn",    "basin",
    "basket",  "beach",   "beacon",  "bear",     "bell",     "bench",   "berry",   "bird",    "blade",   "blanket",
    "block",   "board",   "boat",    "bone",     "book",     "border",  "bottle",  "bowl",    "box",     "branch",
    "bread",   "brick",   "bridge",  "brook",    "brush",    "bucket",  "butter",  "button",  "cabin",   "cable",
    "camel",   "camp",    "canal",   "candle",   "canoe",    "canyon",  "cape",    "card",    "carpet",  "cart",
    "castle",  "cave",    "cedar",   "chain",    "chair",    "chalk",   "charm",   "cherry",  "chest",   "chief",
    "circle",  "city",    "clay",    "cliff",    "clock",    "cloth",   "cloud",   "clover",  "coach",   "coal",
    "coast",   "coat",    "coin",    "copper",   "coral",    "corn",    "cotton",  "cradle",  "crane",   "creek",
    "crow",    "crown",   "crystal", "cup",      "curtain",  "dawn",    "deer",    "delta",   "desert",  "diamond",
    "dish",    "dock",    "door",    "dragon",   "drum",     "duck",    "dune",    "dust",    "eagle",   "earth",
    "echo",    "elbow",   "ember",   "engine",   "fabric",   "falcon",  "farm",    "feather", "fence",   "fern",
    "ferry",   "field",   "finger",  "fire",     "fish",     "flag",    "flame",   "flint",   "flower",  "flute",
    "fog",     "forest",  "fork",    "fountain", "fox",      "frame",   "frost",   "fruit",   "garden",  "garlic",
    "gate",    "giant",   "ginger",  "glass",    "globe",    "glove",   "goat",    "gold",    "goose",   "grain",
    "grape",   "grass",   "gravel",  "guitar",   "hall",     "hammer",  "harbor",  "harp",    "hat",     "hawk",
    "hazel",   "helmet",  "herb",    "heron",    "hill",     "hinge",   "honey",   "hook",    "horn",    "horse",
    "hotel",   "house",   "iron",    "island",   "ivory",    "jacket",  "jade",    "jar",     "jewel",   "juice",
    "jungle",  "kettle",  "key",     "king",     "kite",     "kitten",  "knife",   "knot",    "ladder",  "lake",
    "lamp",    "lantern", "lark",    "lawn",     "leaf",     "leather", "lemon",   "letter",  "lily",    "lime",
    "linen",   "lion",    "lizard",  "lock",     "lotus",    "lumber",  "magnet",  "maple",   "marble",  "market",
    "marsh",   "mask",    "mast",    "meadow",   "melon",    "metal",   "mill",    "mint",    "mirror",  "mist",
    "monk",    "moon",    "moss",    "motor",    "mountain", "mouse",   "mud",     "museum",  "music",   "nail",
    "needle",  "nest",    "night",   "north",    "novel",    "nut",     "oak",     "oasis",   "ocean",   "olive",
    "onion",   "opal",    "orange",  "orbit",    "orchard",  "otter",   "oven",    "owl",     "paint",   "palace",
    "palm",    "panda",   "paper",   "parrot",   "pearl",    "pebble",  "pencil",  "pepper",  "piano",   "pigeon",
    "pillow",  "pilot",   "pine",    "pipe",     "planet",   "plate",   "plum",    "pocket",  "pond",    "pony",
    "poplar",  "port",    "potato",  "prairie",  "prince",   "pump",    "quartz",  "quilt",   "rabbit",  "radio",
    "raft",    "rail",    "rain",    "raven",    "reed",     "reef",    "ribbon",  "rice",    "ring",    "river",
    "road",    "robin",   "rocket",  "roof",     "root",     "rope",    "rose",    "ruby",    "rudder",  "saddle",
    "sail",    "salad",   "salmon",  "salt",     "sand",     "scarf",   "school",  "sea",     "seed",    "shadow",
    "shell",   "shield",  "ship",    "shirt",    "shoe",     "shore",   "silk",    "silver",  "sky",     "slate",
    "sled",    "smoke",   "snow",    "soap",     "soil",     "spark",   "sparrow", "spice",   "spider",  "spoon",
    "spring",  "square",  "stable",  "star",     "steam",    "steel",   "stone",   "storm",   "stove",   "straw",
    "stream",  "sugar",   "summer",  "sun",      "swan",     "table",   "tailor",  "temple",  "tent",    "thorn",
    "thunder", "tiger",   "timber",  "toast",    "torch",    "tower",   "town",    "track",   "train",   "tree",
    "trout",   "trumpet", "tulip",   "tunnel",   "turtle",   "valley",  "vase",    "velvet",  "village", "vine",
    "violin",  "wagon",   "wall",    "walnut",   "water",    "wave",    "wheat",   "wheel",   "willow",  "wind",
    "window",  "winter",  "wolf",    "wood",     "wool",     "yard",    "zebra",
};

}  // namespace

std::span<const std::string_view> task_words() {
  return kWords;
}

}  // namespace tidepool
