#pragma once

#include <span>
#include <string_view>

namespace tidepool {

/// A file of the web page, compiled in from web/dist.
struct WebAsset {
  std::string_view path;  ///< as requested, such as "/app.js"; "/index.html" is also the answer to "/"
  std::string_view content_type;
  std::string_view bytes;
};

[[nodiscard]] std::span<const WebAsset> web_assets();

}  // namespace tidepool
