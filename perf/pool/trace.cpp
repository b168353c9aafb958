#include "perf/pool/trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <unordered_map>

#include "base/json_file.h"

namespace fsccl::perf {
namespace {

using Json = nlohmann::json;
constexpr uint64_t kMostFileBytes = uint64_t{1} << 30;
constexpr uint64_t kMostBlockBytes = uint64_t{1} << 48;
constexpr uint64_t kMostLiveBytes = uint64_t{1} << 56;
constexpr size_t kMostNameBytes = 256;

class Parser {
 public:
  Parser(const std::string& source, std::string* error) : source_(source), error_(error) {}

  std::optional<Trace> parse(const std::string& text) {
    std::istringstream lines(text);
    std::string line;
    trace_.steps.emplace_back();
    while (std::getline(lines, line)) {
      ++line_;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const Json record = Json::parse(line, nullptr, false);
      if (!record.is_object())
        return fail("not a JSON object; each line of a trace is one"), std::nullopt;
      if (!read(record)) return std::nullopt;
    }
    if (trace_.steps.back().empty()) trace_.steps.pop_back();
    if (trace_.steps.empty())
      return fail(
                 "the trace ends without a step; it needs alloc and free records of a pool's "
                 "kinds"),
             std::nullopt;
    if (!held_.empty()) return fail_held(), std::nullopt;
    finish();
    return std::move(trace_);
  }

 private:
  struct Block {
    uint32_t key = 0;
    uint64_t bytes = 0, line = 0;
    bool of_pool = false;
  };

  // The steps of a trace are run again and again, so they must free all that they allocate.
  bool fail_held() {
    const std::pair<const uint64_t, Block>* first = nullptr;
    for (const auto& block : blocks_)
      if (block.second.of_pool && (!first || block.second.line < first->second.line))
        first = &block;
    line_ = first->second.line;
    return fail(
        fmt::format("{} blocks are not freed at the end of the trace, the first is block {}; add "
                    "their free records, for the "
                    "steps of a trace are repeated",
                    held_.size(), first->first));
  }

  bool fail(const std::string& what) {
    *error_ = fmt::format("{}:{}: {}", source_, line_, what);
    return false;
  }
  bool number(const Json& record, const char* name, uint64_t most, uint64_t* out) {
    const auto member = record.find(name);
    if (member == record.end() || !member->is_number_unsigned() || member->get<uint64_t>() > most)
      return fail(fmt::format(
          "\"{}\" must be a whole number from 0 to {}{}", name, most,
          member == record.end() ? "; it is missing" : fmt::format(", not {}", shown(*member))));
    *out = member->get<uint64_t>();
    return true;
  }
  bool text(const Json& record, const char* name, std::string* out) {
    const auto member = record.find(name);
    if (member == record.end() || !member->is_string() ||
        member->get_ref<const std::string&>().size() > kMostNameBytes)
      return fail(fmt::format("\"{}\" must be a text of at most {} bytes{}", name, kMostNameBytes,
                              member == record.end() ? "; it is missing" : ""));
    *out = member->get<std::string>();
    return true;
  }
  static std::string shortened(const std::string& word) {
    return word.size() <= 40 ? word : word.substr(0, 40) + "..";
  }
  // Lists and objects are not shown: they may be nested deeper than the stack is.
  static std::string shown(const Json& value) {
    return value.is_structured() ? value.type_name() : shortened(value.dump());
  }

  bool read(const Json& record) {
    std::string op;
    if (!text(record, "op", &op)) return false;
    if (op == "meta") return text(record, "name", &trace_.name);
    if (op == "alloc") return alloc(record);
    if (op == "use" || op == "free") return touch(record, op == "use");
    if (op == "event" || op == "wait") return order(record, op == "event");
    if (op == "mark") return mark(record);
    return fail(fmt::format(
        "\"op\" is \"{}\"; known are meta, alloc, use, free, event, wait and mark", shortened(op)));
  }

  bool stream(const Json& record, uint32_t* out) {
    std::string name;
    if (!text(record, "stream", &name)) return false;
    *out = streams_.emplace(name, static_cast<uint32_t>(streams_.size())).first->second;
    if (*out < kMostStreams) return true;
    return fail(fmt::format("stream \"{}\" is one too many; a trace may have {}", shortened(name),
                            kMostStreams));
  }

  bool alloc(const Json& record) {
    uint64_t id = 0;
    StepEvent event;
    std::string kind, key;
    if (!number(record, "id", UINT64_MAX, &id) ||
        !number(record, "bytes", kMostBlockBytes, &event.bytes) || !stream(record, &event.stream) ||
        !text(record, "kind", &kind) || !text(record, "key", &key))
      return false;
    if (event.bytes == 0)
      return fail(fmt::format("block {} has 0 bytes; leave such blocks out", id));
    Block block{.bytes = event.bytes, .line = line_, .of_pool = kPoolKinds.contains(kind)};
    if (block.of_pool) {
      block.key = free_key(kind + ':' + key);
      event.key = block.key;
      live_ += event.bytes;
      if (live_ > kMostLiveBytes) return fail("more than 2^56 bytes are live at once");
      trace_.live_bytes = std::max(trace_.live_bytes, live_);
      ++trace_.blocks;
      any_param_ |= kind == "param";
      (kind == "param" ? params_ : kind == "ag_out" ? gathered_ : others_).insert(block.key);
      trace_.steps.back().push_back(event);
    }
    if (blocks_.emplace(id, block).second) return true;
    return fail(fmt::format("block {} is allocated, but it is there already; free it first", id));
  }

  // Two blocks with the same key may exist at once, but the pool needs a different key for each.
  uint32_t free_key(const std::string& name) {
    for (int nth = 0;; ++nth) {
      const uint32_t key = keys_
                               .emplace(nth == 0 ? name : fmt::format("{}#{}", name, nth),
                                        static_cast<uint32_t>(keys_.size()))
                               .first->second;
      if (held_.insert(key).second) return key;
    }
  }

  bool touch(const Json& record, bool use) {
    uint64_t id = 0;
    StepEvent event{.op = use ? StepOp::kUse : StepOp::kGiveBack};
    if (!number(record, "id", UINT64_MAX, &id) || !stream(record, &event.stream)) return false;
    const auto block = blocks_.find(id);
    if (block == blocks_.end())
      return fail(fmt::format(
          "block {} is {}, but no alloc record before this line has made it, or it was freed", id,
          use ? "used" : "freed"));
    event.key = block->second.key;
    if (block->second.of_pool) {
      if (!use) event.stream = 0;
      trace_.steps.back().push_back(event);
    }
    if (use) return true;
    if (block->second.of_pool) {
      held_.erase(block->second.key);
      live_ -= block->second.bytes;
    }
    blocks_.erase(block);
    return true;
  }

  // A trace numbers its events across steps; a pool knows an event by its place in the step.
  bool order(const Json& record, bool records) {
    uint64_t id = 0;
    StepEvent event{.op = records ? StepOp::kRecord : StepOp::kWait};
    if (!number(record, records ? "id" : "event", UINT64_MAX, &id) ||
        !stream(record, &event.stream))
      return false;
    if (records) events_[id] = in_step_++;
    const auto known = events_.find(id);
    if (known == events_.end())
      return fail(
          fmt::format("event {} is waited for, but no event record before this line has it", id));
    event.key = known->second;
    trace_.steps.back().push_back(event);
    return true;
  }

  bool mark(const Json& record) {
    std::string what;
    if (!text(record, "what", &what)) return false;
    if (what != "step_end" && what != "eval_end")
      return fail(
          fmt::format("\"what\" is \"{}\"; known are step_end and eval_end", shortened(what)));
    if (!trace_.steps.back().empty()) trace_.steps.emplace_back();
    in_step_ = 0;
    return true;
  }

  void finish() {
    trace_.streams = std::max<uint32_t>(static_cast<uint32_t>(streams_.size()), 1);
    trace_.keys = static_cast<uint32_t>(keys_.size());
    const std::set<uint32_t>& stable = any_param_ ? params_ : gathered_;
    for (std::vector<StepEvent>& step : trace_.steps)
      for (StepEvent& event : step)
        event.stable = event.takes() && stable.contains(static_cast<uint32_t>(event.key));
    trace_.steady = std::all_of(trace_.steps.begin(), trace_.steps.end(),
                                [&](const auto& step) { return step == trace_.steps[0]; });
    if (trace_.name.empty()) trace_.name = source_;
  }

  const std::set<std::string> kPoolKinds = {"ag_out", "param", "grad", "rs_in", "rs_out"};
  const std::string& source_;
  std::string* error_;
  uint64_t line_ = 0, live_ = 0, in_step_ = 0;
  Trace trace_;
  bool any_param_ = false;
  std::map<std::string, uint32_t> streams_;
  std::unordered_map<std::string, uint32_t> keys_;
  std::set<uint32_t> held_, params_, gathered_, others_;
  std::unordered_map<uint64_t, Block> blocks_;
  std::unordered_map<uint64_t, uint64_t> events_;  // id -> the event's number in its step
};

}  // namespace

std::optional<Trace> parse_trace(const std::string& text, const std::string& source,
                                 std::string* error) {
  return Parser(source, error).parse(text);
}

std::optional<Trace> read_trace(const std::string& path, std::string* error) {
  const Result<std::string> text = read_text_file(path, kMostFileBytes);
  if (text.ok()) return parse_trace(text.value(), path, error);
  *error = text.status().text();
  return std::nullopt;
}

}  // namespace fsccl::perf
