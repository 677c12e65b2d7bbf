#include "train/tasks_words.h"

#include <array>

namespace tidepool {
namespace {

// Short, common and concrete, in alphabetical order.
constexpr std::array<std::string_view, 125> kWords = {
    "amber",  "arrow",   "baker",  "basin", "beacon", "bench",  "blade",   "board",   "book",     "bowl",   "bread",
    "brook",  "butter",  "cable",  "canal", "canyon", "carpet", "cave",    "chair",   "cherry",   "circle", "cliff",
    "cloud",  "coal",    "coin",   "corn",  "crane",  "crown",  "curtain", "delta",   "dish",     "dragon", "dune",
    "earth",  "ember",   "falcon", "fence", "field",  "fish",   "flint",   "fog",     "fountain", "frost",  "garlic",
    "ginger", "glove",   "goose",  "grass", "hall",   "harp",   "hazel",   "heron",   "honey",    "horse",  "iron",
    "jacket", "jewel",   "kettle", "kite",  "knot",   "lamp",   "lawn",    "lemon",   "lime",     "lizard", "lumber",
    "marble", "mask",    "melon",  "mint",  "monk",   "motor",  "mud",     "nail",    "night",    "nut",    "ocean",
    "opal",   "orchard", "owl",    "palm",  "parrot", "pencil", "pigeon",  "pine",    "plate",    "pond",   "port",
    "prince", "quilt",   "raft",   "raven", "ribbon", "river",  "rocket",  "rope",    "rudder",   "salad",  "sand",
    "sea",    "shell",   "shirt",  "silk",  "slate",  "snow",   "spark",   "spider",  "square",   "steam",  "storm",
    "stream", "sun",     "tailor", "thorn", "timber", "tower",  "train",   "trumpet", "turtle",   "velvet", "violin",
    "walnut", "wheat",   "wind",   "wolf",
};

}  // namespace

std::span<const std::string_view> task_words() {
  return kWords;
}

}  // namespace tidepool
