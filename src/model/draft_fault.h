#pragma once

#include <cstdint>

namespace tidepool {

/// Mistakes about the draft head that tests make on purpose, to see that a test notices.
enum class DraftFault : uint8_t {
  kNone,
  kEarlyTaps,             ///< reads the streams entering the layers before those configured
  kBackboneExperts,       ///< routes to as many experts as the backbone does
  kPaddingAsNoise,        ///< pads the block with the padding token
  kCausalBlock,           ///< a row of the block sees only those before it
  kSlidingRows,           ///< the window slides from row to row of the block
  kGlobalRope,            ///< rotates like a layer with global attention
  kBlockStartsOneEarly,   ///< the anchor takes the position of the last token read
  kUnnormalisedInput,     ///< the window's input lacks its norm
  kNormalisedTwice,       ///< the window's input passes a stage's attention norm, as the stage's own rows do
  kBackboneNorm,          ///< the logits take the backbone's final norm
  kMarkovOfAnchor,        ///< every position's bias comes from the anchor
  kConfidenceBehindNorm,  ///< confidence reads the hidden row behind the final norm
};

}  // namespace tidepool
