#include "bootstrap/hostlist.h"

#include <charconv>
#include <string_view>

namespace fsccl {

namespace {

constexpr size_t kMaxDigits = 9;
constexpr size_t kMaxNameBytes = 255;

Status malformed(const std::string& list, size_t at, const char* expected) {
  return fail(FSCCL_ERR_CONFIG, "\"{}\": at character {}: {}", list, at + 1, expected);
}

bool of_a_name(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '.' || c == '_';
}

// Reads a list from its begin to its end.
class Cursor {
 public:
  explicit Cursor(const std::string& list) : list_(list) {}

  bool at_end() const { return at_ == list_.size(); }
  bool take(char c) {
    if (at_end() || list_[at_] != c) return false;
    ++at_;
    return true;
  }
  std::string_view name() {
    const size_t begin = at_;
    while (!at_end() && of_a_name(list_[at_])) ++at_;
    return std::string_view(list_).substr(begin, at_ - begin);
  }
  // Reads a number. *digits is how many digits it has.
  Result<int32_t> number(size_t* digits) {
    int32_t value = 0;
    const char* const begin = list_.data() + at_;
    const auto result = std::from_chars(begin, list_.data() + list_.size(), value);
    if (result.ec != std::errc() || *begin == '-') return wrong("a number is expected");
    *digits = static_cast<size_t>(result.ptr - begin);
    if (*digits > kMaxDigits) return wrong("a number has too many digits");
    at_ += *digits;
    return value;
  }
  Status wrong(const char* expected) const { return malformed(list_, at_, expected); }

 private:
  const std::string& list_;
  size_t at_ = 0;
};

// Reads the part after an opening bracket, such as "08-11,3]".
Status read_numbers(Cursor* cursor, std::vector<std::string>* numbers) {
  do {
    size_t digits = 0, last_digits = 0;
    FSCCL_ASSIGN(const int32_t first, cursor->number(&digits));
    int32_t last = first;
    if (cursor->take('-')) {
      FSCCL_ASSIGN(last, cursor->number(&last_digits));
    }
    if (last < first) return cursor->wrong("a range ends before it begins");
    if (static_cast<size_t>(last - first) >= kMaxHosts - numbers->size())
      return cursor->wrong("more hosts than there can be");
    for (int32_t number = first; number <= last; ++number)
      numbers->push_back(fmt::format("{:0{}}", number, digits));
  } while (cursor->take(','));
  return cursor->take(']') ? success() : cursor->wrong("a comma or a closing bracket is expected");
}

// Reads one entry of the list: a name in which each bracket stands for several numbers.
Status read_entry(Cursor* cursor, std::vector<std::string>* hosts) {
  std::vector<std::string> names = {std::string(cursor->name())};
  while (cursor->take('[')) {
    std::vector<std::string> numbers;
    FSCCL_TRY(read_numbers(cursor, &numbers));
    const std::string rest(cursor->name());
    if (names.size() * numbers.size() > kMaxHosts)
      return cursor->wrong("more hosts than there can be");
    if (names.front().size() + kMaxDigits + rest.size() > kMaxNameBytes)
      return cursor->wrong("the name of a host is too long");
    std::vector<std::string> longer;
    for (const std::string& name : names)
      for (const std::string& number : numbers) longer.push_back(name + number + rest);
    names.swap(longer);
  }
  if (names.front().size() > kMaxNameBytes) return cursor->wrong("the name of a host is too long");
  if (names.front().empty()) return cursor->wrong("the name of a host is expected");
  if (hosts->size() + names.size() > kMaxHosts)
    return cursor->wrong("more hosts than there can be");
  hosts->insert(hosts->end(), names.begin(), names.end());
  return success();
}

}  // namespace

Result<std::vector<std::string>> expand_hosts(const std::string& list) {
  Cursor cursor(list);
  std::vector<std::string> hosts;
  do {
    FSCCL_TRY(read_entry(&cursor, &hosts));
  } while (cursor.take(','));
  if (!cursor.at_end()) return cursor.wrong("a comma is expected");
  return hosts;
}

Result<int32_t> count_of_node(const std::string& counts, int32_t node) {
  Cursor cursor(counts);
  int64_t nodes = 0;
  size_t digits = 0;
  do {
    FSCCL_ASSIGN(const int32_t count, cursor.number(&digits));
    int32_t times = 1;
    if (cursor.take('(')) {
      if (!cursor.take('x')) return cursor.wrong("an x and a number are expected");
      FSCCL_ASSIGN(times, cursor.number(&digits));
      if (!cursor.take(')')) return cursor.wrong("a closing parenthesis is expected");
    }
    nodes += times;
    if (node < nodes) return count;
  } while (cursor.take(','));
  if (!cursor.at_end()) return cursor.wrong("a comma is expected");
  return fail(FSCCL_ERR_CONFIG, "\"{}\" has counts for {} nodes, none for node {}", counts, nodes,
              node);
}

}  // namespace fsccl
