#include <array>

#include "text/json_schema.h"

namespace tidepool {

namespace {

struct Format {
  std::string_view name;
  std::string_view pattern;
};

// Each is at most what the format allows. RFC 3339 dates have the 29th of February in leap years only; it is left out,
// and so are years outside 1000 to 2999. URIs have a host; IPv6 addresses are written in full.
#define TIDEPOOL_DATE                                                                                            \
  "[12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|" \
  "2[0-8]))"
#define TIDEPOOL_TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define TIDEPOOL_OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define TIDEPOOL_LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"

#define TIDEPOOL_URI                                                                                           \
  "^[A-Za-z][A-Za-z0-9+.-]*://[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]{1,4})?"                           \
  "(/([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})*)*(\\?([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?" \
  "(#([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})*)?$"

constexpr std::array<Format, 14> kFormats = {{
    {"date", "^" TIDEPOOL_DATE "$"},
    {"time", "^" TIDEPOOL_TIME "$"},
    {"date-time", "^" TIDEPOOL_DATE "T" TIDEPOOL_TIME "$"},
    {"duration",
     "^P([0-9]{1,9}W|([0-9]{1,9}D|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?)"
     "(T([0-9]{1,9}S|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?))?|"
     "T([0-9]{1,9}S|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?))$"},
    {"uuid", "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$"},
    {"ipv4", "^(" TIDEPOOL_OCTET "\\.){3}" TIDEPOOL_OCTET "$"},
    {"ipv6", "^([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}$"},
    {"hostname", "^" TIDEPOOL_LABEL "(\\." TIDEPOOL_LABEL "){0,3}$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(\\.[A-Za-z0-9_+-]{1,16}){0,1}@" TIDEPOOL_LABEL "(\\." TIDEPOOL_LABEL "){1,2}$"},
    {"uri", TIDEPOOL_URI},
    {"url", TIDEPOOL_URI},
    {"iri", TIDEPOOL_URI},
    {"uri-reference", TIDEPOOL_URI},
    {"json-pointer", "^(/([^~/]|~[01])*)*$"},
}};

#undef TIDEPOOL_DATE
#undef TIDEPOOL_TIME
#undef TIDEPOOL_OCTET
#undef TIDEPOOL_LABEL
#undef TIDEPOOL_URI

}  // namespace

std::optional<std::string_view> string_format_pattern(std::string_view format) {
  for (const Format& known : kFormats) {
    if (known.name == format) return known.pattern;
  }
  return std::nullopt;
}

}  // namespace tidepool
