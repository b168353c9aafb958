// JSON that people hand over as a file: read within a limit, and checked so that an error names the
// file, the place in it and what was expected. A reader of one format derives from JsonReader; its
// functions return false after wrong().
#pragma once
#include <fmt/ranges.h>

#include <initializer_list>
#include <string>

#include "base/json_value.h"

namespace fsccl {

// FSCCL_ERR_SYSTEM: it cannot be read; FSCCL_ERR_INVALID_ARGUMENT: it is larger.
Result<std::string> read_text_file(const std::string& path, size_t most_bytes);

class JsonReader {
 protected:
  using Json = JsonValue;

  explicit JsonReader(std::string source) : source_(std::move(source)) {}
  template <class... Args>
  bool wrong(fmt::format_string<Args...> text, Args&&... args) {
    problem_ = fmt::format(text, std::forward<Args>(args)...);
    return false;
  }
  Status problem() const { return fail(FSCCL_ERR_INVALID_ARGUMENT, "{}: {}", source_, problem_); }

  // An object with no other keys than these.
  bool object(const Json& json, const std::string& place, std::initializer_list<const char*> known);
  // A value that is missing and not needed stays as it is.
  bool text(const Json& json, const char* key, const std::string& place, bool needed,
            std::string* value);
  bool number(const Json& json, const char* key, const std::string& place, double most,
              double* value);

 private:
  std::string source_, problem_;
};

}  // namespace fsccl
