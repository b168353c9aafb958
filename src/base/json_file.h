// Reads JSON that users supply as a file. The size is limited, and each error names the file, the
// place in it and what was expected. The reader of a format derives from JsonReader, and its
// functions return false after they have called wrong().
#pragma once
#include <fmt/ranges.h>

#include <initializer_list>
#include <string>

#include "base/json_value.h"

namespace fsccl {

// Returns FSCCL_ERR_SYSTEM if the file cannot be read, and FSCCL_ERR_INVALID_ARGUMENT if it is a
// device or larger than `most_bytes`.
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

  // Checks that the value is an object that has no other keys than these.
  bool object(const Json& json, const std::string& place, std::initializer_list<const char*> known);
  // A value that is missing and not needed stays as it is.
  bool text(const Json& json, const char* key, const std::string& place, bool needed,
            std::string* value);
  bool number(const Json& json, const char* key, const std::string& place, double most,
              double* value);
  // The same for a number that is at least `least` if it is there, and for a whole number.
  bool number_from(const Json& json, const char* key, const std::string& place, double least,
                   double most, double* value);
  bool whole(const Json& json, const char* key, const std::string& place, double most,
             double* value);

 private:
  std::string source_, problem_;
};

}  // namespace fsccl
