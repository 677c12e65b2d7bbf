#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/json_schema.h"

namespace tidepool {

/// The keywords of some schemas that must all hold, put together. Sub-schemas are borrowed from the document.
struct FlatSchema {
  struct ArrayPart {
    std::vector<const Json*> prefix;
    const Json* items = nullptr;  ///< null: not said
  };
  struct ObjectPart {
    std::vector<std::pair<std::string_view, const Json*>> properties;
    const Json* additional = nullptr;  ///< null: not said
    bool has_list = false;             ///< `properties` is there, if only an empty one
  };
  /// A list of which one schema must hold too.
  struct Choice {
    const Json* schemas = nullptr;
    std::string path;
    /// Schemas being read when the choice was met: an alternative that leads back to one of them never ends.
    std::vector<const Json*> owners;
  };

  bool is_impossible = false;
  bool has_type = false;
  uint8_t types = kAllTypes;
  uint8_t spoken_types = 0;  ///< of which other keywords say something
  std::optional<std::vector<Json>> literals;
  NumberSpec number;
  uint32_t chars_min = 0;
  uint32_t chars_max = CharDfa::kUnlimited;
  std::shared_ptr<const CharDfa> pattern;
  std::shared_ptr<const CharDfa> asserted_pattern;
  uint32_t items_min = 0;
  uint32_t items_max = kUnlimitedCount;
  std::vector<ArrayPart> arrays;
  uint32_t members_min = 0;
  uint32_t members_max = kUnlimitedCount;
  bool is_closed_unless_said = false;  ///< unevaluatedProperties: false
  std::vector<ObjectPart> objects;
  std::vector<std::string> required;
  std::vector<Choice> choices;
  std::vector<const Json*> read;  ///< what is in here already
};

/// `oneOf` lists met on the way, for the check of disjointness.
struct OneOf {
  const Json* schemas = nullptr;
  std::string path;
};

/// Reads schemas of one document into FlatSchemas.
class SchemaReader {
 public:
  /// `document` must outlive the reader.
  SchemaReader(const Json& document, std::string_view path);

  /// All ways to satisfy these schemas at once, without choices. Throws Error(kInvalidArgument).
  [[nodiscard]] std::vector<FlatSchema> expand(const std::vector<const Json*>& schemas);
  /// Path and pointer of a schema that was met.
  [[nodiscard]] const std::string& path_of(const Json* schema) const { return paths_.at(schema); }
  [[nodiscard]] const std::vector<OneOf>& one_ofs() const { return one_ofs_; }
  [[noreturn]] static void refuse(const std::string& path, std::string_view keyword, std::string_view what);

 private:
  friend struct SchemaKeywords;
  void read(const Json* schema, FlatSchema& flat);
  void read_keyword(const Json& schema, const JsonMember& member, const std::string& path, FlatSchema& flat);
  [[nodiscard]] const Json* resolve(std::string_view reference, const std::string& path);
  void note_path(const Json& schema, const std::string& path) { paths_.try_emplace(&schema, path); }

  const Json& document_;
  std::string root_path_;
  std::map<const Json*, std::string> paths_;
  std::map<const Json*, bool> is_one_of_noted_;
  std::vector<OneOf> one_ofs_;
  std::vector<const Json*> active_;  ///< being read, outermost first
  size_t reads_ = 0;
};

/// The bit of a value's type; a number without fraction is an integer.
[[nodiscard]] uint8_t json_type_bit(const Json& value);

}  // namespace tidepool
