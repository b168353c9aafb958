#include "collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>

#include "collective_case.h"
#include "machine.h"
#include "numbers.h"
#include "page_collectives.h"
#include "progress.h"

namespace fsccl::perf {
namespace {

class Sweep {
 public:
  Sweep(const Session& session, const CollectivesOptions& options)
      : session_(session), options_(options), printing_(session.rank() == 0), progress_(printing_) {
    if (options.report.empty()) return;
    if (printing_) page_ = std::make_unique<PageFile>(options.report);
    session.end_where(page_ && !page_->open(), 2);
  }

  uint64_t run() {
    plan();
    session_.end_where(nothing_to_measure(), 2);
    check_memory();
    if (printing_ && !options_.json) print_collectives_head(session_.ranks());
    for (size_t i = 0; i < lines_.size(); i++) {
      progress_.say([&] {
        return fmt::format("{} of {}: {} of {} bytes", i + 1, lines_.size(), lines_[i].kind->name,
                           lines_[i].bytes);
      });
      measure(lines_[i]);
    }
    progress_.clear();
    if (printing_ && !options_.json) print_collectives_end(rows_);
    if (!options_.report.empty()) report();
    uint64_t wrong = 0;
    for (const CollectiveRow& row : rows_) wrong += row.wrong.value_or(0);
    return wrong;
  }

 private:
  // Lists the lines of the table. A line has up to two cases: out of place and in place.
  void plan() {
    for (const CollectiveKind* kind : options_.collectives) {
      if (!known(*kind)) continue;
      const size_t memories = kind->empty() ? 1 : options_.memories.size(),
                   dtypes = kind->empty() ? 1 : options_.dtypes.size();
      for (size_t m = 0; m < memories; m++)
        for (size_t d = 0; d < dtypes; d++)
          for (size_t o = 0; o < (kind->reduces ? options_.ops.size() : 1); o++) {
            const CaseChoice choice{kind,
                                    options_.dtypes[d],
                                    options_.ops[o],
                                    kind->empty() ? Memory::kCaller : options_.memories[m],
                                    false,
                                    0};
            if (kind->reduces && choice.op.kind == FSCCL_OP_PREMUL_SUM &&
                choice.dtype <= FSCCL_UINT64)
              continue;
            if (choice.memory == Memory::kShared && !shared_possible(*kind)) continue;
            for (const uint64_t bytes : kind->empty() ? std::vector<uint64_t>{0} : options_.sizes) {
              lines_.push_back(choice);
              lines_.back().bytes = bytes;
            }
          }
    }
  }

  bool nothing_to_measure() const {
    const bool nothing = lines_.empty();
    if (nothing && printing_)
      fmt::print(stderr, "fsccl-perf: of all that was asked for nothing can be measured\n");
    return nothing;
  }

  // Checks that the buffers of the line that needs most fit in memory.
  void check_memory() const {
    uint64_t largest = 0, most = 0;
    for (const CaseChoice& line : lines_) {
      largest = std::max(largest, line.bytes);
      most = std::max(most, CollectiveCase(session_, options_, line).buffer_bytes());
    }
    session_.must_fit(session_.sum_over_ranks(most) / static_cast<uint64_t>(session_.hosts()),
                      fmt::format("the buffers of calls of {}", format_bytes(largest)),
                      "give a smaller --maxbytes, or fewer ranks");
  }

  void leave_out(const std::string& text) {
    if (printing_ && left_out_.insert(text).second)
      fmt::print(stderr, "fsccl-perf: left out: {}\n", text);
  }

  bool shared_possible(const CollectiveKind& kind) {
    if (kind.shared_slot == SharedSlot::kNo)
      leave_out(fmt::format(
          "{} with --memory shared: a shared slot is for all_gather and broadcast", kind.name));
    else if (kind.rooted() && options_.root != 0)
      leave_out(
          fmt::format("{} with --memory shared and --root {}: in a shared slot the root is rank 0",
                      kind.name, options_.root));
    else
      return true;
    return false;
  }

  // Returns true if the library has the collective; a collective that was named must be there.
  bool known(const CollectiveKind& kind) {
    CollectiveCase probe(
        session_, options_,
        {&kind, FSCCL_FLOAT32, FSCCL_SUM, Memory::kCaller, kind.forms == Forms::kInPlace, 0});
    if (kind.call == find_collective("send_recv")->call && session_.ranks() < 2) {
      leave_out("send_recv: needs two ranks");
      return false;
    }
    if (probe.available()) return true;
    fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
    fsccl_last_error(&info);
    if (!options_.skip_unavailable) must(FSCCL_ERR_NOT_AVAILABLE, kind.name);
    leave_out(info.text);
    return false;
  }

  std::vector<bool> places(const CaseChoice& line) const {
    if (line.memory == Memory::kShared || line.kind->forms == Forms::kOutOfPlace) return {false};
    if (line.kind->forms == Forms::kInPlace) return {true};
    return options_.places;
  }

  void measure(CaseChoice line) {
    const CollectiveRow* rows[2] = {nullptr, nullptr};
    std::optional<CollectiveRow> measured[2];
    for (const bool in_place : places(line)) {
      line.in_place = in_place;
      CollectiveCase test(session_, options_, line);
      if (test.empty())
        return leave_out(fmt::format("{} of {} bytes: less than one element for each rank",
                                     line.kind->name, line.bytes));
      measured[in_place] = test.run();
      rows[in_place] = &*measured[in_place];
      rows_.push_back(*measured[in_place]);
    }
    if (!printing_) return;
    progress_.clear();
    if (!options_.json) return print_line(rows[0], rows[1]);
    for (const CollectiveRow* row : rows)
      if (row) print_json(*row);
  }

  void report() {
    std::vector<MachineLimit> limits;
    for (const uint64_t bytes : options_.sizes) {
      if (bytes < kLeastLimitBytes) continue;
      progress_.say([&] { return fmt::format("what this machine can do at {} bytes", bytes); });
      if (std::optional<MachineLimit> limit = measure_limit(session_, bytes))
        limits.push_back(*limit);
      else
        leave_out(limit_left_out(bytes));
    }
    progress_.clear();
    session_.end_where(page_ && !page_->write(collectives_page(rows_, limits)), 1);
  }

  const Session& session_;
  const CollectivesOptions& options_;
  const bool printing_;
  Progress progress_;
  std::unique_ptr<PageFile> page_;
  std::set<std::string> left_out_;  // messages that were printed about what is left out
  std::vector<CaseChoice> lines_;
  std::vector<CollectiveRow> rows_;
};

}  // namespace

uint64_t run_collectives(Session& session, const CollectivesOptions& options) {
  session.open_pool();
  return Sweep(session, options).run();
}

}  // namespace fsccl::perf
