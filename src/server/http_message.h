#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace tidepool {

/// "NAME: VALUE\r\n". Values come from clients too (x-request-id): nothing in them may begin another header.
void append_header(std::string& out, std::string_view name, std::string_view value);

/// Status line and headers of an answer, without the empty line that ends them. An empty `content_type` is left out.
[[nodiscard]] std::string make_head(int status, std::string_view content_type, const std::vector<HttpHeader>& headers,
                                    bool closes);

/// The body of a refusal that no dialect shapes. `message` is ours and needs no escapes.
[[nodiscard]] std::string refusal_body(std::string_view message);

/// 500, without details.
[[nodiscard]] HttpAnswer internal_error();

}  // namespace tidepool
